"""Checkpoints written by all ranks: while training waits for them, or in the background."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from trustclip.durable.content import Content
from trustclip.durable.mirror import Mirror
from trustclip.durable.ranks import Ranks
from trustclip.durable.store import CheckpointStore


@dataclass
class Saver:
    """Writes checkpoints, one at a time; a checkpoint is there on all ranks or on none."""

    store: CheckpointStore
    ranks: Ranks  # that write; each has a saver
    #: Return when the state has been copied into memory, and write it in a thread. The next
    #: checkpoint, and `settle`, wait for it; until it is complete the earlier one serves.
    background: bool = False
    mirror: Mirror | None = None  # gets a copy of each complete checkpoint
    timeout: float = 1800  # seconds that a rank waits for another one in the background
    bytes_held: int = field(default=0, init=False)  # of the copy that is being written
    _behind: Ranks | None = field(default=None, init=False)
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
            with store.explained(step):
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
        self._thread, error = None, self._error
        self._error, self.bytes_held = None, 0
        if patient and error is not None:
            raise error

    def _start(self, step: int, folder: Path, content: Content) -> None:
        if self._behind is None:
            group = None
            if self.ranks.world > 1:  # messages of its own, beside those of training
                limit = timedelta(seconds=self.timeout)
                group = dist.new_group(backend="gloo", timeout=limit)
            self._behind = Ranks(self.ranks.rank, self.ranks.world, group)
        behind, self.bytes_held = self._behind, content.bytes

        def work() -> None:
            try:
                self._publish(step, folder, content, behind)
            except BaseException as error:
                self._error = error

        # A daemon: a job that has failed does not end later because of a checkpoint.
        self._thread = threading.Thread(target=work, name=f"checkpoint-{step}", daemon=True)
        self._thread.start()

    def _publish(self, step: int, folder: Path, content: Content, ranks: Ranks) -> None:
        store = self.store
        try:
            with store.explained(step):
                written = content.write(folder, ranks)
            ranks.together(lambda: store.commit(step, written))
        except BaseException:
            if ranks.first:
                store.abort(step)
            raise
        if self.mirror is not None:
            mirror = self.mirror
            ranks.together(lambda: mirror.send(store.path(step), store.keep))
