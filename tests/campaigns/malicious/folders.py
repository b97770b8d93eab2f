"""Run directories that a stranger has changed: every hash is right, and every one wants more.

Each is made from a run that was stopped after its second of three updates; beside it lie files of
the user: ``victim.txt`` and a folder ``precious``. All that `trustclip resume` may do is continue
the run or say in a sentence why not.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOTHING = hashlib.sha256(b"").hexdigest()
EMPTY = {"bytes": 0, "sha256": NOTHING}

Change = Callable[[Path], None]
#: By name: what changes the run directory.
FOLDERS: dict[str, Change] = {}


def newest(run: Path) -> Path:
    """The run's newest checkpoint."""
    return max((run / "checkpoints").glob("step-*"))


def sign(checkpoint: Path) -> None:
    """Give a checkpoint the hashes of the files that it has now."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for name in manifest["files"]:
        content = (checkpoint / name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        manifest["files"][name] = {"bytes": len(content), "sha256": digest}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def enter(name: str, change: Change) -> None:
    """Enter a change into the list."""
    assert name not in FOLDERS
    FOLDERS[name] = change


def state(file: str, *path: Any, value: Any) -> Change:
    """Set a value in a JSON file of every checkpoint; a value of ``...`` removes it."""

    def change(run: Path) -> None:
        for checkpoint in (run / "checkpoints").glob("step-*"):
            content = json.loads((checkpoint / file).read_text())
            if not path:
                content = value
            else:
                inner = content
                for key in path[:-1]:
                    inner = inner[key]
                if value is ...:
                    del inner[path[-1]]
                else:
                    inner[path[-1]] = value
            (checkpoint / file).write_text(json.dumps(content))
            sign(checkpoint)

    return change


def text(file: str, content: str) -> Change:
    """Replace a file of every checkpoint."""

    def change(run: Path) -> None:
        for checkpoint in (run / "checkpoints").glob("step-*"):
            (checkpoint / file).write_text(content)
            sign(checkpoint)

    return change


def link(name: str, target: str) -> Change:
    """Put a link in the place of a file or folder of the run directory."""

    def change(run: Path) -> None:
        path = run / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        depth = len(Path(name).parts)
        path.symlink_to("/".join([".."] * depth + [target]))

    return change


def cursor(name: str, extent: Any) -> Change:
    """Let every checkpoint name a file that it says the run appends to."""
    return state("shared.json", "cursor", name, value=extent)


for _name, _extent in {
    "../victim.txt": 0,
    "../precious/keep.txt": EMPTY,
    "tokens/../../victim.txt": 0,
    "./../victim.txt": EMPTY,
    "config.yaml": EMPTY,
    "final/config.json": 0,
    "checkpoints/start.json": 0,
    "samples.jsonl/../../victim.txt": 0,
    "metrics.jsonl\0": 0,
    "": 0,
    "lock": EMPTY,
}.items():
    enter(f"cursor {_name!r} {type(_extent).__name__}", cursor(_name, _extent))


def _absolute(run: Path) -> None:
    cursor(str(run.parent / "victim.txt"), 0)(run)


enter("cursor of an absolute path", _absolute)


def _of_a_link(run: Path) -> None:
    (run / "gates.jsonl").unlink()
    (run / "gates.jsonl").symlink_to("../victim.txt")
    cursor("gates.jsonl", 0)(run)


enter("cursor of a link", _of_a_link)

#: Files that are written, and folders that are written into or emptied.
for _name in (
    "lock", "summary.json.part", "config.yaml.part", "marks.json", "metrics.jsonl", "samples.jsonl",
    "gates.jsonl", "problems.jsonl", "problems.jsonl.part", "environment.json", "summary.json",
    "extensions.jsonl", "tokens/update-000002.parquet", "tokens/update-000002.parquet.part",
    "final/config.json", "final/model.safetensors", "checkpoints/.writing-start.json",
    "checkpoints/start.json", "sft/lock",
):  # fmt: skip
    enter(f"link {_name} to a file", link(_name, "victim.txt"))
for _name in (
    "final", "tokens", "checkpoints", "sft", "checkpoints/.writing-step-000003",
    "checkpoints/step-000009", "attempt-1",
):  # fmt: skip
    enter(f"link {_name} to a folder", link(_name, "precious"))
enter("link that leads nowhere yet", link("samples-rank1.jsonl", "new.txt"))


def _tracker(run: Path) -> None:
    config = (run / "config.yaml").read_text().replace("sink: none", "sink: tensorboard")
    (run / "config.yaml").write_text(config)
    (run / "tensorboard").symlink_to("../precious")


enter("link of a tracker", _tracker)

RANK = "rank-0.json"
for _name, _change in {
    "cursor value of another type": cursor("metrics.jsonl", []),
    "cursor that is a list": state("shared.json", "cursor", value=[]),
    "shared state that is a list": state("shared.json", value=[1]),
    "identity without its names": state("shared.json", "identity", value={}),
    "attribute of the trainer": state(RANK, "progress", "carried", "args", value="x"),
    "method of the trainer": state(RANK, "progress", "carried", "_save_checkpoint", value=7),
    "attribute of another type": state(RANK, "progress", "carried", "_step", value="x"),
    "samples in training that are none": state(
        RANK, "progress", "carried", "_buffered_inputs", value=[{"a": 1}]
    ),
    "progress that is a list": state(RANK, "progress", value=[]),
    "windows of another form": state(
        RANK, "progress", "windows", "train", value={"metrics": 5, "histogram": 5}
    ),
    "window of no mode": state(RANK, "progress", "windows", "other", value={}),
    "random state of another form": state(RANK, "random", "python", value={"$tuple": [3, 4]}),
    "random state too short": state(
        RANK, "random", "python", value={"$tuple": [3, {"$tuple": [1, 2]}, None]}
    ),
    "trainer state that is a list": state("trainer_state.json", value=[]),
    "trainer state with a foreign name": state("trainer_state.json", "owned", value=1),
    "history of another form": state("trainer_state.json", "log_history", value=[5]),
    "attribute of a callback": state(
        "trainer_state.json", "stateful_callbacks", "Guards", 0, "attributes", "_notice", value=1
    ),
    "state of a callback of another type": state(
        "trainer_state.json", "stateful_callbacks", "Guards", 0, "attributes", "_told", value=5
    ),
    "scheduler that is a list": state("optimizer.json", "scheduler", value=[]),
    "method of the scheduler": state("optimizer.json", "scheduler", "step", value=7),
    "scheduler of another type": state("optimizer.json", "scheduler", "last_epoch", value="x"),
    "optimizer without a state": state("optimizer.json", "optimizer", value=...),
    "learning rate that is a text": state(
        "optimizer.json", "optimizer", "param_groups", 0, "lr", value="x"
    ),
    "key that cannot be one": state(
        "shared.json", "identity", value={"$dict": [[{"$dict": []}, 1]]}
    ),
    "tensor that is none": state(RANK, "loop", "loss", value={"$tensor": []}),
    "state nested too deeply": text("shared.json", '{"a":' * 100_000 + "1" + "}" * 100_000),
    "rank nested too deeply": text(RANK, "[" * 100_000 + "]" * 100_000),
    "state nested deeply": text("shared.json", '{"a":' * 700 + "1" + "}" * 700),
    "tensors whose header is larger than they are": text(
        "rank-0.safetensors", "\xff\x00\x00\x00\x00\x01\x00\x00{}"
    ),
}.items():
    enter(_name, _change)


def _summary(content: Any) -> Change:
    def change(run: Path) -> None:
        (run / "summary.json").write_text(content)

    return change


enter("summary that is a list", _summary("[]"))
enter("summary of another form", _summary('{"finished": "no"}'))
enter("summary nested too deeply", _summary('{"a":' * 100_000 + "1" + "}" * 100_000))


def _pipe(run: Path) -> None:
    (run / "lock").unlink(missing_ok=True)
    os.mkfifo(run / "lock")


enter("pipe in the place of the lock", _pipe)


def seen(folder: Path) -> dict[str, Any]:
    """Bytes, permissions and times of the files in a folder, and where its links lead."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        found[str(path.relative_to(folder))] = content, info.st_mode, info.st_mtime_ns
    return found
