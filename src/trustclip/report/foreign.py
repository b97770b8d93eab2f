"""Completions that other programs have written, for the microscope: with their tokens, or as texts.

TRL's completions and verl's rollouts hold texts alone. UNIPO's steps and other JSON documents hold
numbers of tokens under names of their own, in lists or one object a token.
"""

import gzip
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trustclip.logs.recognise import looked_for
from trustclip.logs.tokens import TokenRow
from trustclip.support import parquet
from trustclip.support.reading import content, parse_json

Row = Mapping[str, Any]

#: Largest file of another program that is put into a page, bytes.
LARGEST = 64 << 20
#: Where documents keep their completions, and the names that programs give to what we show.
_LISTS = (
    "completions", "rollouts", "samples", "responses", "trajectories", "rows", "data", "groups",
    "steps", "entries", "prompts", "examples",
)  # fmt: skip
_TEXT = ("completion", "response", "output")
_ABOUT = {
    "problem": ("problem", "prompt", "question", "input"),
    "gold": ("gold", "gts", "ground_truth", "answer", "solution", "target"),
    "reward": ("reward", "score", "total_reward"),
}
_TOKENS = {
    "token": ("token", "tokens", "text", "token_text", "token_strings", "strings"),
    "token_id": ("token_id", "token_ids", "id", "ids"),
    "logp": (
        "logp", "logprob", "logprobs", "log_prob", "log_probs", "new_logprob", "new_logprobs",
        "new_log_probs", "token_logprobs", "current_logprobs",
    ),
    "logp_old": (
        "logp_old", "old_logprob", "old_logprobs", "old_log_prob", "old_log_probs", "logprob_old",
        "logprobs_old",
    ),
    "logp_rollout": (
        "logp_rollout", "rollout_log_probs", "rollout_logprobs", "sampling_logprobs",
        "inference_logprobs",
    ),
    "advantage": ("advantages", "advantage"),
    "entropy": ("entropy", "entropies"),
    "mask": ("mask", "loss_mask", "response_mask"),
}  # fmt: skip


def completions(path: Path) -> Iterator[tuple[TokenRow | None, dict[str, Any]]]:
    """Each completion of a file: its tokens, None where it has a text alone, and what it is about.

    Raises:
      ValueError: there is no such file, it is too large, or holds no completion.
    """
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file.")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} has more than {LARGEST >> 20} MiB, too much to lie in a page.")
    rows = [row for row in _rows(path) if _tokens(row) or _first(row, _TEXT) is not None]
    if not rows:
        raise ValueError(
            f"{path} holds no completion: {looked_for()}; or TRL's completions (prompt, "
            "completion), verl's rollouts (input, output), UNIPO's steps (prompts, responses, "
            "tokens), or JSON with log-probabilities of tokens."
        )
    for number, row in enumerate(rows, start=1):
        numbers = _tokens(row)
        try:
            tokens = TokenRow.of({**row, **numbers}) if numbers else None
        except ValueError as error:
            raise ValueError(f"{path}: completion {number}: {error}") from None
        yield tokens, _about(row, tokens is None)


def _rows(path: Path) -> list[Row]:
    if path.suffix == ".parquet":
        return list(parquet.rows(path, kept=True))
    packed = content(path)
    if packed[:2] == b"\x1f\x8b":
        packed = gzip.GzipFile(fileobj=io.BytesIO(packed)).read(LARGEST)
    if packed.lstrip()[:1] not in (b"{", b"["):
        raise ValueError(f"{path} is neither JSON, JSON lines nor Parquet: {looked_for()}.")
    try:
        return list(_listed(parse_json(packed), {}))
    except ValueError:
        lines = [line for line in packed.splitlines() if line.strip()]
    try:
        return [row for line in lines for row in _listed(parse_json(line), {})]
    except ValueError as error:
        raise ValueError(
            f"{path} is neither JSON nor JSON lines: {looked_for()}: {error}."
        ) from None


def _listed(value: Any, above: Row) -> Iterator[Row]:
    """The completions in a document, wherever they are, with what stands above them."""
    if isinstance(value, list):
        for item in value:
            yield from _listed(item, above)
    elif isinstance(value, dict):
        row = {**above, **value}
        inner = next((name for name in _LISTS if isinstance(value.get(name), list)), None)
        if inner is None or _tokens(row) or _first(row, _TEXT) is not None:
            yield row
        else:
            rest = {name: held for name, held in row.items() if name != inner}
            yield from _listed(value[inner], rest)


def _tokens(row: Row) -> dict[str, Any]:
    """Numbers of a completion's tokens by our names; empty where it has no log-probabilities."""
    tokens = _first(row, ("tokens", "token_data", "completion_tokens"))
    if isinstance(tokens, Mapping):  # UNIPO's: a list for each number
        lists = {name: held for name, held in tokens.items() if name != "prob"}
        if "prob" in tokens:
            lists["log_probs"] = np.log(np.asarray(tokens["prob"], dtype=float)).tolist()
        return _tokens({**row, "tokens": None, **lists})
    each = isinstance(tokens, list) and bool(tokens) and isinstance(tokens[0], Mapping)
    found: dict[str, Any] = {}
    for ours, theirs in _TOKENS.items():
        held = next((row[name] for name in theirs if _is_list(row.get(name))), None)
        if each and (name := next((name for name in theirs if name in tokens[0]), None)):
            held = [token.get(name) for token in tokens]
        if held is not None:
            found[ours] = held
    if "logp" not in found:
        return {}
    return {"advantage": _number(_first(row, _TOKENS["advantage"])) or 0.0, **found}


def _about(row: Row, textual: bool) -> dict[str, Any]:
    """Problem, gold answer and reward; of a text also all else that a row of tokens would say."""
    found = {name: _first(row, names) for name, names in _ABOUT.items()}
    about = {"problem": _words(found["problem"]), "gold": _words(found["gold"])}
    reward = _number(found["reward"])
    if not textual:
        return about | {"reward": reward}
    others = {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and name not in ("step", "advantage", "reward", "score")
    }
    if reward is None and others:
        reward = sum(others.values())  # TRL's: one column for each reward
    step = _number(row.get("step"))
    return about | {
        "reward": reward,
        "update": None if step is None else int(step),
        "said": _words(_first(row, _TEXT)),
        "given": {"advantage": _number(row.get("advantage")), **others},
    }


def _first(row: Row, names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | np.ndarray)


def _number(value: Any) -> float | None:
    number = float(value) if isinstance(value, int | float) else None
    return None if number is None or not np.isfinite(number) else number


def _words(value: Any) -> str | None:
    """A text, or the turns of a conversation."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(t, Mapping) for t in value):
        return "\n\n".join(_words(turn.get("content")) or "" for turn in value)
    if isinstance(value, list) and len(value) == 1:
        return _words(value[0])
    return json.dumps(value, default=str)
