"""The lock, the store of checkpoints and a journal alone: many times as fast as a run.

What trains is a hash that is hashed again. So the same seeds reach deeper into the protocol of the
disk than `faults.standin`, whose trainer, settings and tables take most of its time.
"""

import hashlib
import json
from pathlib import Path

from trustclip.logs.writing.extents import Extents
from trustclip.support.flush import flush
from trustclip.support.jsonl import append_jsonl, write_json
from trustclip.support.lock import only_process
from trustclip.train.durable.ranks import Ranks
from trustclip.train.durable.saving import Content, Saver
from trustclip.train.durable.store import CheckpointStore

from .runs import Runs
from .setups import Setup, store_setup

STEPS = 5


def work(folder: Path, setup: Setup) -> bool:
    """Hash `STEPS` times, a row for each, and write the last one down."""
    with only_process(folder):
        rows, extents = folder / "rows.jsonl", Extents()
        store = CheckpointStore(folder / "checkpoints", setup.keep)
        store.clean()
        start = store.origin(dict)
        newest = store.newest()
        state = {"step": 0, "value": "", "cursor": start}
        if newest is not None:
            state = json.loads((newest / "state.json").read_text())
        if "rows.jsonl" in state["cursor"]:
            extents.restore(rows, state["cursor"]["rows.jsonl"])
        else:
            rows.unlink(missing_ok=True)
        value = state["value"]
        for step in range(state["step"] + 1, STEPS + 1):
            value = hashlib.sha256(f"{step}{value}".encode()).hexdigest()
            append_jsonl(rows, [{"step": step, "value": value}])
            if setup.every and (step % setup.every == 0 or step == STEPS):
                _save(store, step, value, rows, extents)
        flush(rows)
        write_json(folder / "final.json", {"value": value})
        return True


def _save(store: CheckpointStore, step: int, value: str, rows: Path, extents: Extents) -> None:
    cursor = {"rows.jsonl": extents.of(rows)}
    flush(rows.parent)  # its name

    def fill(part: Path) -> Content:
        state = {"step": step, "value": value, "cursor": cursor}
        (part / "state.json").write_text(json.dumps(state))
        (part / "rank-0").mkdir()
        (part / "rank-0" / "weights").write_bytes(value.encode() * 9)
        return Content()

    Saver(store, Ranks()).save(step, fill)


def runs(base: Path) -> Runs:
    """Runs of `work`."""
    return Runs(work, base, store_setup)
