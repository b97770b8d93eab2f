"""What a session measured for the head's table: whether ``head="auto"`` takes it on this GPU."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trustclip.head import measured
from trustclip.support.jsonl import write_text
from trustclip_lab.bench.gpu.cases import Row
from trustclip_lab.bench.table import Table

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


def capability(box: Mapping[str, Any]) -> tuple[int, int]:
    """Compute capability of a machine.

    Example:
      >>> capability({"capability": "sm_90"}), capability({"capability": "sm_103"})
      ((9, 0), (10, 3))
    """
    digits = str(box["capability"]).removeprefix("sm_")
    return int(digits[:-1]), int(digits[-1])


def write_entry(folder: Path, box: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any] | None:
    """Write ``measured.json``: the present table with this machine's entry.

    Returns:
      The entry; None, and no file, where the session does not decide it.
    """
    path = folder / "measured.json"
    try:
        measurement = entry(box, rows)
    except NotMeasured:
        path.unlink(missing_ok=True)
        return None
    table = measured.table()
    write_text(path, with_measurement(table, capability(box), **measurement) + "\n")
    return measurement


def with_measurement(
    table: Mapping[str, Mapping[str, Any]], capability: tuple[int, int], **entry: Any
) -> str:
    """The text of `measured.FILE` with one architecture's measurement.

    Args:
      table: what the file holds.
      capability: of the GPU.
      **entry: ``frozen`` and ``trained``, seconds of this head over TRL's; ``device``, ``date``.

    Raises:
      ValueError: a ratio is missing or not positive.

    Example:
      >>> print(with_measurement({}, (9, 0), frozen=0.5, trained=0.75, device="H", date="2026"))
      {
        "9.0": {
          "date": "2026",
          "device": "H",
          "frozen": 0.5,
          "trained": 0.75
        }
      }
    """
    for name in ("frozen", "trained"):
        ratio = entry.get(name)
        if not isinstance(ratio, int | float) or not ratio > 0:
            raise ValueError(f"`{name}` must be a ratio above 0, got {ratio!r}.")
    whole = {**table, ".".join(map(str, capability)): entry}
    return json.dumps(whole, indent=2, sort_keys=True)


def adopt(folder: Path) -> Table:
    """Put what a session wrote into the table that ``head="auto"`` reads.

    Returns:
      What that table now says of each architecture.
    """
    path = folder / "measured.json"
    if path.is_file():
        write_text(measured.FILE, path.read_text(encoding="utf-8"))
        note = f"Adopted {path} as {measured.FILE}."
    else:
        note = f"Nothing to adopt: there is no {path}, since the session does not decide it."
    cells = [
        (number, kind, each[kind], "yes" if measured.takes(each, kind) else "no")
        for number, each in measured.table().items()
        for kind in ("frozen", "trained")
    ]
    columns = ("compute capability", "head", "seconds over TRL's", "auto takes it")
    return Table("The head's table", columns, cells, [note])


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
    number = ".".join(map(str, capability(box)))
    return (
        f"Seconds over those of TRL's head, the worst of {len(result['shapes'])} shapes: {ratios}. "
        f'With `measured.json` of this folder, `head="auto"` {verdict}{why} on GPUs of compute '
        f"capability {number}. `make gpu GPU_OPTIONS=--adopt` puts it in."
    )
