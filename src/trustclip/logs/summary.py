"""``summary.json`` of a run: what of it is read, and in which form."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from trustclip.support.jsonl import read_mapping
from trustclip.support.schemas import conform, mapping

#: Key of the summary: by name of a file, its size in bytes and SHA-256.
HASHES = "hashes"

_SCORE = mapping(
    "Score", dict.fromkeys(("value", "low", "high"), float | None), total=False, more=True
)


def _check_scores(part: dict[str, Any]) -> dict[str, Any]:
    for name, score in part.items():
        if "@" in name:
            conform(score, _SCORE, name)
    return part


#: Scores of a task, or of the average: those with an ``@`` are intervals.
_PART: Any = Annotated[dict[str, Any], AfterValidator(_check_scores)]
_WHOLE: Any = mapping("Whole", {"tasks": dict[str, _PART], "average": _PART}, more=True)
_TESTS = mapping("Tests", {"tests": dict[str, list[str]]}, total=False, more=True)
_NOTICE = mapping("Notice", {"notice": str, "text": str}, more=True)
_BEST = mapping("Best", {"average": _PART}, more=True)
_NUMBERS = dict[str, float | None]


def _check_evaluation(result: dict[str, Any]) -> dict[str, Any]:
    conform(result, _WHOLE if "average" in result else _PART, "scores")
    return result


#: Scores of an evaluation, or those of its average alone.
_EVALUATION: Any = Annotated[dict[str, Any], AfterValidator(_check_evaluation)]

_SUMMARY = mapping(
    "Summary",
    {
        "command": str,
        "name": str | None,
        "finished": bool,
        "method": dict[str, Any] | None,
        "overlap": dict[str, _TESTS] | None,
        "notices": list[_NOTICE] | None,
        "training": _NUMBERS | None,
        "difference": _NUMBERS,
        "skipped_steps": int,
        "seconds": float,
        "cpu_seconds": float,
        "versions": dict[str, str],
        "prompt": dict[str, Any] | None,
        "eval_prompt": dict[str, Any] | None,
        "tasks": dict[str, _PART],
        "average": _PART,
        "best": _BEST | None,
        **dict.fromkeys(
            ("initial", "final", "before", "after", "initial_clean", "final_clean"),
            _EVALUATION | None,
        ),
    },
    total=False,
    more=True,
)


def read_summary(path: Path) -> Mapping[str, Any]:
    """The summary in a file, empty where there is none; a value of another form is refused."""
    summary = read_mapping(path)
    conform(summary, _SUMMARY, str(path))
    return summary
