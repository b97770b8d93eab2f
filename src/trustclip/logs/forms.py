"""The files of a run: what of each is read, and in which form; a value of another is refused."""

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
#: An evaluation: the scores of each task, and their average.
EVALUATED: Any = mapping("Whole", {"tasks": dict[str, _PART], "average": _PART}, more=True)
_TESTS = mapping("Tests", {"tests": dict[str, list[str]]}, total=False, more=True)
NOTICE = mapping("Notice", {"notice": str, "text": str}, more=True)
_NUMBERS = dict[str, float | None]


SUMMARY = mapping(
    "Summary",
    {
        "command": str,
        "name": str | None,
        "finished": bool,
        "method": dict[str, Any] | None,
        "overlap": dict[str, _TESTS] | None,
        "notices": list[NOTICE] | None,
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
        **dict.fromkeys(("initial", "final"), EVALUATED | None),
    },
    total=False,
    more=True,
)


_METHOD = {"method": dict[str, Any] | None}
#: ``config.yaml``: of the settings those that are read, the method and its place in a recipe.
CONFIG = mapping(
    "Config",
    {**_METHOD, "rl": mapping("Stage", _METHOD, total=False, more=True) | None},
    total=False,
    more=True,
)
#: ``marks.json``: what results depend on, see `trustclip.logs.identity.Marks`.
MARKED = mapping("Marks", {"neutral": dict[str, Any], "extends": str}, more=True)
#: The entry of a run in its suite.
ENTRY = mapping(
    "Entry",
    {
        "label": str | None,
        "model": str | None,
        "seed": int | None,
        "method": dict[str, Any] | None,
        "swept": dict[str, Any] | None,
        "suite": str | None,
        "reference": str | None,
        "reaches": float | None,
    },
    total=False,
    more=True,
)
#: ``suite.yaml``: what the suite says of all its runs, and its runs by folder.
SUITE = mapping(
    "Suite",
    {
        "name": str | None,
        "reference": str | None,
        "reaches": float | None,
        "runs": dict[str, ENTRY] | None,
    },
    total=False,
    more=True,
)

_WORST = mapping(
    "Worst",
    {
        **dict.fromkeys(("generated", "index", "position"), int),
        **dict.fromkeys(("logp_old", "logp_rollout"), float),
        "text": str,
    },
    more=True,
)
#: A row of ``gates.jsonl``: an update, with lists of one entry a completion.
GATES = mapping(
    "Gates",
    {
        "step": int,
        "generated": list[int],
        "index": list[int],
        "gated": list[float | None],
        "worst": list[_WORST],
    },
    total=False,
    more=True,
)


def read_as(form: Any, path: Path) -> Mapping[str, Any]:
    """The mapping in a file, empty where there is none; a value of another form is refused."""
    content = read_mapping(path)
    conform(content, form, str(path))
    return content
