"""What a session measured for the head's table: whether ``head="auto"`` takes it on this GPU."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trustclip.head import measured
from trustclip.support.jsonl import write_json
from trustclip_lab.bench.gpu.cases import Row

#: Lines of the race: this head where every method can have it, and the one that it replaces.
OURS, THEIRS = "trustclip", "TRL, chunked"
#: Largest error of a gradient in bfloat16, relative to its largest entry.
_ALLOWED = 2e-2
#: Checks of the first stage that are not the head's.
_OTHERS = ("every method", "intervals")


class NotMeasured(Exception):
    """A session does not decide it yet; the message says what is missing."""


def entry(box: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """What `measured.FILE` holds of an architecture.

    Of all shapes the worst ratio counts. A head that failed a check, or whose gradient was off,
    gets ``refused``, the reason, and is not taken however fast it is.

    Args:
      box: the machine.
      rows: outcomes of the stages ``correctness`` and ``head``, the last of each case.

    Raises:
      NotMeasured: no GPU, a stage without an outcome, or a race without TRL's head.
    """
    if "capability" not in box:
        raise NotMeasured("no GPU was at hand")
    races = [dict(row.values or {}) for row in rows if (row.stage, row.state) == ("head", "done")]
    checks = [row for row in rows if row.stage == "correctness" and row.key not in _OTHERS]
    if not any(row.state == "done" for row in checks):
        raise NotMeasured("the stage `correctness` has not run")
    measurement: dict[str, Any] = {"device": box["device"], "date": box["date"], "shapes": []}
    wrong = [row.key for row in checks if row.state == "failed" or _fails(row)]
    for kind in ("frozen", "trained"):
        ratios = []
        for race in races:
            lines = {line["label"]: line for line in race["lines"]}
            times = [lines.get(name, {}).get("ms") for name in (OURS, THEIRS)]
            if race["trained"] != (kind == "trained") or race.get("tiny") or None in times:
                continue
            ratios.append(times[0] / times[1])
            measurement["shapes"].append(f"{kind}, {race['shape']}")
            error = lines[OURS].get("error")
            if error is None or not error <= _ALLOWED:
                wrong.append(f"gradient, {kind}, {race['shape']}")
        if not ratios:
            raise NotMeasured(f"no race of a {kind} head has both `{OURS}` and `{THEIRS}`")
        measurement[kind] = round(max(ratios), 4)
    if wrong:
        measurement["refused"] = f"wrong on {box['date']}: {'; '.join(wrong)}"
    return measurement


def _fails(row: Row) -> bool:
    return row.state == "done" and not (row.values or {}).get("passes", True)


def write_entry(folder: Path, box: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write ``measured.json``: the present table with this machine's entry, where there is one."""
    path = folder / "measured.json"
    try:
        measurement = entry(box, rows)
    except NotMeasured:
        path.unlink(missing_ok=True)
    else:
        write_json(path, measured.table() | {box["capability"]: measurement})


def words(box: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The page's paragraph about it."""
    try:
        result = entry(box, rows)
    except NotMeasured as reason:
        return f'`head="auto"` keeps TRL\'s head on a GPU: {reason}.'
    ratios = ", ".join(f"{kind} {result[kind]:g}" for kind in ("frozen", "trained"))
    takes = [kind for kind in ("frozen", "trained") if measured.takes(result, kind)]
    verdict = f"takes this head where it is {' or '.join(takes)}" if takes else "keeps TRL's head"
    why = f" ({result['refused']})" if "refused" in result else ""
    return (
        f"Seconds over those of TRL's head, the worst of {len(result['shapes'])} shapes: {ratios}. "
        f'With `measured.json` of this folder, `head="auto"` {verdict}{why} on GPUs of compute '
        f"capability {box['capability']}: copy it to src/trustclip/head/."
    )
