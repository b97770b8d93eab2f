"""prime-rl's token exports: every token of the trainer and the sampler, one JSON line a sequence.

``enable_token_export`` writes ``token_exports/step_N/rank_R.jsonl``. The trainer measures its ratio
against the sampler; there is no third policy in between, so ``logp_old`` is the sampler's here.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trustclip.logs.digest import digest
from trustclip.logs.log import Log, first_row
from trustclip.logs.tokens import TokenRow
from trustclip.support.jsonl import scan

LOOKED_FOR = "token_exports/step_*/rank_*.jsonl (prime-rl)"

#: Versions of the export that are read, and what a sequence must have.
VERSIONS = (1,)
NEEDED = ("step", "trainer_logprobs", "inference_logprobs", "advantages", "loss_mask")


def accepts(path: Path, head: bytes) -> bool:
    """Whether a file is one of these."""
    first = first_row(head)
    return "trainer_logprobs" in first or "inference_logprobs" in first


def candidates(folder: Path) -> list[Path]:
    """The exports in a folder."""
    inner = folder / "token_exports"
    return [place for place in (folder, inner) if place.is_dir() and _files(place)]


def _files(path: Path) -> list[Path]:
    """Files of an export in the order of their steps: ``step_10`` after ``step_9``."""
    if path.is_file():
        return [path]
    found = [
        (int(step[1]), int(rank[1]), file)
        for file in path.glob("step_*/rank_*.jsonl")
        if (step := re.fullmatch(r"step_(\d+)", file.parent.name))
        and (rank := re.fullmatch(r"rank_(\d+)", file.stem))
    ]
    return [file for _, _, file in sorted(found)]


def read(path: Path) -> Log:
    """Read an export, or one file of it.

    Raises:
      ValueError: it is damaged, of another version, of several runs, or lacks a column.
    """
    remarks: list[str] = []
    found = digest(path, rows(path, remarks), two_policies=True)
    unknown = [
        "what the policy did within a generation apart from what the sampler did (prime-rl "
        "compares the trainer with the sampler, and nothing in between)",
        "truncation",
    ]
    if not any("reward" in row for row in found.rows):
        unknown.append("rewards (this release exports none)")
    if "kept" not in found.has:
        unknown.append("which tokens were masked (the loss of this run exports no mask)")
    return Log(
        path=path,
        trainer="prime-rl",
        kind="token export",
        rows=found.rows,
        tokens=lambda: rows(path),
        digest=found,
        unknown=unknown,
        remarks=remarks,
        two_policies=True,
    )


def rows(path: Path, remarks: list[str] | None = None) -> Iterator[TokenRow]:
    """The sequences of an export, one at a time; raises what `read` does."""
    run: Any = None
    for file in _files(path):
        for line in scan(file):
            if line.row is None:
                if not line.torn:
                    raise ValueError(f"{file}:{line.number} is not a JSON object.")
                if remarks is not None:
                    remarks.append(f"{file.name}: the last line is half written, and left out")
                continue
            given = line.row.get("run_id")
            if given is not None and run is not None and given != run:
                raise ValueError(f"{path} holds two runs, {run} and {given}; give one of them.")
            run = given if given is not None else run
            try:
                row = _row(line.row)
            except ValueError as error:
                raise ValueError(f"{file}:{line.number}: {error}") from error
            if row is not None:
                yield row


def _row(given: Mapping[str, Any]) -> TokenRow | None:
    """A sequence as ours; None for one without reinforcement learning (distillation)."""
    version = given.get("schema_version")
    if version not in VERSIONS:
        raise ValueError(
            f"version {version} of prime-rl's export; this reader knows {VERSIONS[0]}."
        )
    for name in NEEDED:
        if name not in given:
            raise ValueError(f"there is no `{name}`; a token export has {', '.join(NEEDED)}.")
    advantages, mask = given["advantages"], _mask(given)
    if not any(mask) or not any(value is not None for value in advantages):
        return None
    masked = given.get("is_masked")
    has_masked = isinstance(masked, list) and any(flag is not None for flag in masked)
    return TokenRow.of(
        {
            "logp": given["trainer_logprobs"],
            "logp_old": given["inference_logprobs"],
            "logp_rollout": given["inference_logprobs"],
            "advantage": advantages,
            "mask": mask,
            "entropy": given.get("entropy"),
            "kept": [not flag for flag in masked] if has_masked else None,  # type: ignore[union-attr]
            "token_id": given.get("token_ids"),
            "step": given["step"],
            "index": given.get("export_sequence_idx"),
            "reward": _reward(given.get("rewards")),
        }
    )


def _mask(given: Mapping[str, Any]) -> list[bool]:
    """Tokens of the policy-gradient part of the loss.

    Some releases list the parts of each token under ``losses``, others weigh them by
    ``rl_weights``; null there means the whole ``loss_mask``.
    """
    mask = [bool(flag) for flag in given["loss_mask"]]
    losses, weights = given.get("losses"), given.get("rl_weights")
    if isinstance(losses, list):
        return [bool(parts.get("rl", {}).get("mask")) for parts in losses]
    if isinstance(weights, list) and any(weight is not None for weight in weights):
        return [flag and bool(weight) for flag, weight in zip(mask, weights, strict=True)]
    return mask


def _reward(rewards: Any) -> float | None:
    """Reward of a sequence, which the export repeats for each token."""
    given = [value for value in rewards or () if value is not None]
    return given[-1] if given else None
