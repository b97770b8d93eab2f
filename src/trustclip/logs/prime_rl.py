"""prime-rl's token exports: every token of the trainer and the sampler, one JSON line a sequence.

``enable_token_export`` writes ``token_exports/step_N/rank_R.jsonl``. The trainer measures its ratio
against the sampler; there is no third policy in between, so ``logp_old`` is the sampler's here.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trustclip.logs.digest import digest
from trustclip.logs.log import Log, Source, first_row
from trustclip.logs.tokens import TokenRow
from trustclip.support.inside import Inside
from trustclip.support.jsonl import numbered
from trustclip.support.schemas import conform, mapping

#: Versions of the export that are read, and what a sequence must have.
VERSIONS = (1,)
NEEDED = ("step", "trainer_logprobs", "inference_logprobs", "advantages", "loss_mask")
_LIST = list[float | None]
_RECORD = mapping(
    "Record",
    {
        "step": int,
        **dict.fromkeys(NEEDED[1:4], _LIST),
        "loss_mask": list[bool | int | None],
        "losses": list[dict[str, dict[str, Any] | None]] | None,
        **dict.fromkeys(("rl_weights", "rewards"), _LIST | None),
    },
    total=False,
    more=True,
)


def _accepts(path: Path, head: bytes) -> bool:
    return not {"trainer_logprobs", "inference_logprobs"}.isdisjoint(first_row(head))


def _candidates(folder: Path) -> list[Path]:
    """The exports in a folder."""
    inner = Inside(folder).file("token_exports")
    return [place for place in (folder, inner) if place.is_dir() and _files(place)]


def _files(path: Path) -> list[Path]:
    """Files of an export in the order of their steps: ``step_10`` after ``step_9``."""
    if path.is_file():
        return [path]
    files = [
        (int(step[1]), int(rank[1]), file)
        for file in Inside(path).files("step_*/rank_*.jsonl")
        if (step := re.fullmatch(r"step_(\d+)", file.parent.name))
        and (rank := re.fullmatch(r"rank_(\d+)", file.stem))
    ]
    return [file for _, _, file in sorted(files)]


def _read(path: Path) -> Log:
    """Read an export, or one file of it.

    Raises:
      ValueError: it is damaged, of another version, of several runs, or lacks a column.
    """
    remarks: list[str] = []
    tokens = digest(path, rows(path, remarks), two_policies=True)
    unknown = [
        "what the policy did within a generation apart from what the sampler did (prime-rl "
        "compares the trainer with the sampler, and nothing in between)",
        "truncation",
    ]
    if not any("reward" in row for row in tokens.rows):
        unknown.append("rewards (this release exports none)")
    if "kept" not in tokens.has:
        unknown.append("which tokens were masked (the loss of this run exports no mask)")
    return Log(
        path, "prime-rl", "token export", tokens.rows, digest=tokens, unknown=unknown,
        remarks=remarks, two_policies=True,
    )  # fmt: skip


def rows(path: Path, remarks: list[str] | None = None) -> Iterator[TokenRow]:
    """The sequences of an export, one at a time; raises what `read` does."""
    run: Any = None
    for file in _files(path):
        for number, record in numbered(file, remarks):
            run_id = record.get("run_id")
            if run_id is not None and run is not None and run_id != run:
                raise ValueError(f"{path} holds two runs, {run} and {run_id}; give one of them.")
            run = run_id if run_id is not None else run
            try:
                row = _row(record)
            except ValueError as error:
                raise ValueError(f"{file}:{number}: {error}") from error
            if row is not None:
                yield row


def _row(record: Mapping[str, Any]) -> TokenRow | None:
    """A sequence as ours; None for one without reinforcement learning (distillation)."""
    version = record.get("schema_version")
    if version not in VERSIONS:
        raise ValueError(
            f"version {version} of prime-rl's export; this reader knows {VERSIONS[0]}."
        )
    for name in NEEDED:
        if name not in record:
            raise ValueError(f"there is no `{name}`; a token export has {', '.join(NEEDED)}.")
    conform(record, _RECORD, "the sequence")
    advantages, mask = record["advantages"], _mask(record)
    if not any(mask) or not any(value is not None for value in advantages):
        return None
    masked = record.get("is_masked")
    # The export repeats a sequence's reward for each token.
    rewards = [value for value in record.get("rewards") or () if value is not None]
    has_masked = isinstance(masked, list) and any(flag is not None for flag in masked)
    return TokenRow.of(
        {
            "logp": record["trainer_logprobs"],
            "logp_old": record["inference_logprobs"],
            "logp_rollout": record["inference_logprobs"],
            "advantage": advantages,
            "mask": mask,
            "entropy": record.get("entropy"),
            "kept": [not flag for flag in masked] if has_masked else None,  # type: ignore[union-attr]
            "token_id": record.get("token_ids"),
            "step": record["step"],
            "index": record.get("export_sequence_idx"),
            "reward": rewards[-1] if rewards else None,
        }
    )


def _mask(record: Mapping[str, Any]) -> list[bool]:
    """Tokens of the policy-gradient part of the loss.

    Some releases list the parts of each token under ``losses``, others weigh them by
    ``rl_weights``; null there means the whole ``loss_mask``.
    """
    mask = [bool(flag) for flag in record["loss_mask"]]
    losses, weights = record.get("losses"), record.get("rl_weights")
    if isinstance(losses, list):
        return [bool((parts.get("rl") or {}).get("mask")) for parts in losses]
    if isinstance(weights, list) and any(weight is not None for weight in weights):
        return [flag and bool(weight) for flag, weight in zip(mask, weights, strict=True)]
    return mask


SOURCE = Source(
    "token_exports/step_*/rank_*.jsonl (prime-rl)",
    _accepts,
    _candidates,
    _read,
    rows,
)
