"""Checkpoints written by all ranks: what each rank contributes, and when it is written.

It is written while training waits for it, or in the background.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from trustclip.support.flush import Listed, manifest_entries
from trustclip.train.durable import shards, states
from trustclip.train.durable.ranks import Ranks
from trustclip.train.durable.store import CheckpointStore

Tensors = dict[str, Tensor]


@dataclass
class Content:
    """Files of one rank, and its parts of what all ranks hold together."""

    texts: dict[str, str] = field(default_factory=dict)  # files of text, by name
    tensors: dict[str, Tensors] = field(default_factory=dict)  # safetensors files, by name
    shards: Tensors | None = None  # parts of tensors, for `shards.save`; None where none is sharded

    def state(self, name: str, value: Any) -> None:
        """Add nested state, to be read by `states.load`."""
        tensors, packed = states.pack(value, name)
        self.texts[f"{name}.json"] = json.dumps(packed, allow_nan=False)
        if tensors:
            self.tensors[f"{name}.safetensors"] = tensors

    def copied(self) -> "Content":
        """A copy in CPU memory, which later updates leave alone."""
        return Content(
            self.texts,
            {file: {n: _copy(t) for n, t in part.items()} for file, part in self.tensors.items()},
            None if self.shards is None else shards.copied(self.shards),
        )

    def write(self, folder: Path, ranks: Ranks) -> dict[str, Listed]:
        """Write into a checkpoint's folder, on every rank, and to the disk; lists all files."""
        listings = ranks.everyone(lambda: self.write_own(folder))
        if self.shards is not None:
            parts = self.shards
            ranks.everyone(lambda: shards.save(folder, parts, ranks.group))
            # Shared out by number: only torch knows which rank wrote which file.
            files = sorted((folder / shards.SHARDS).iterdir())[ranks.rank :: ranks.world]
            listings += ranks.everyone(lambda: manifest_entries(folder, files))
        return {name: entry for of_rank in listings for name, entry in of_rank.items()}

    def write_own(self, folder: Path) -> dict[str, Listed]:
        """Write the files of this rank alone, and to the disk."""
        from safetensors.torch import save_file

        for name, text in self.texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        for name, tensors in self.tensors.items():
            plain = {key: tensor.contiguous() for key, tensor in tensors.items()}
            save_file(plain, folder / name, metadata={"format": "pt"})
        return manifest_entries(folder, [folder / name for name in (*self.texts, *self.tensors)])


@dataclass
class Saver:
    """Writes checkpoints, one at a time; a checkpoint is there on all ranks or on none."""

    store: CheckpointStore
    ranks: Ranks  # that write; each has a saver
    #: Return when the state has been copied into memory, and write it in a thread. The next
    #: checkpoint, and `settle`, wait for it; until it is complete the previous one is the newest.
    background: bool = False
    timeout: float = 1800  # seconds that a rank waits for another one in the background
    _background_ranks: Ranks | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _error: BaseException | None = field(default=None, init=False)

    def save(self, step: int, fill: Callable[[Path], Content]) -> None:
        """Save the state of a step; every rank calls it. Fails for the one before, too."""
        self.settle()
        ranks, store = self.ranks, self.store
        folder: Path = ranks.together(lambda: store.begin(step))
        content = Content()

        def collect() -> None:
            nonlocal content
            with store.explained(store.path(step)):
                content = fill(folder)
                content = content.copied() if self.background else content

        try:
            ranks.everyone(collect)
        except BaseException:
            store.abort(step)
            raise
        if self.background:
            self._start(step, folder, content)
        else:
            self._publish(step, folder, content, ranks)

    def settle(self, *, patient: bool = True) -> None:
        """Wait for a checkpoint that is being written in the background, and raise its failure.

        Without patience it does not wait where other ranks may be lost, and raises nothing.
        """
        if self._thread is None or (not patient and self.ranks.world > 1):
            return
        self._thread.join()
        self._thread, error, self._error = None, self._error, None
        if patient and error is not None:
            raise error

    def _start(self, step: int, folder: Path, content: Content) -> None:
        if self._background_ranks is None:
            group = None
            if self.ranks.world > 1:  # its messages must not mix with those of training
                limit = timedelta(seconds=self.timeout)
                group = dist.new_group(backend="gloo", timeout=limit)
            self._background_ranks = Ranks(self.ranks.rank, self.ranks.world, group)
        ranks = self._background_ranks

        def work() -> None:
            try:
                self._publish(step, folder, content, ranks)
            except BaseException as error:
                self._error = error

        # A daemon: a job that has failed does not end later because of a checkpoint.
        self._thread = threading.Thread(target=work, name=f"checkpoint-{step}", daemon=True)
        self._thread.start()

    def _publish(self, step: int, folder: Path, content: Content, ranks: Ranks) -> None:
        store = self.store
        try:
            with store.explained(store.path(step)):
                written = content.write(folder, ranks)
            ranks.together(lambda: store.commit(step, written))
        except BaseException:
            if ranks.first:
                store.abort(step)
            raise


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()
