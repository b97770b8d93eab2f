"""Checkpoints written by all ranks: while training waits for them, or in the background."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from trustclip.durable.content import Content
from trustclip.durable.mirror import Mirror
from trustclip.durable.ranks import Ranks
from trustclip.durable.store import CheckpointStore


class Saver:
    """Writes checkpoints, one at a time; a checkpoint is there on all ranks or on none.

    Args:
      ranks: that write; each has a saver.
      background: return when the state has been copied into memory, and write it in a thread. The
        next checkpoint, and `settle`, wait for it; until it is complete the earlier one serves.
      mirror: gets a copy of each complete checkpoint.
      timeout: seconds that a rank waits for another one in the background.
    """

    def __init__(
        self,
        store: CheckpointStore,
        ranks: Ranks,
        *,
        background: bool = False,
        mirror: Mirror | None = None,
        timeout: float = 1800,
    ) -> None:
        self._store, self._ranks, self._mirror = store, ranks, mirror
        self._background, self._timeout = background, timeout
        self._behind: Ranks | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.bytes_held = 0

    def save(self, step: int, fill: Callable[[Path], Content]) -> None:
        """Save the state of a step; every rank calls it. Fails for the one before, too."""
        self.settle()
        ranks, store = self._ranks, self._store
        folder: Path = ranks.together(lambda: store.begin(step))
        content = Content()

        def collect() -> None:
            nonlocal content
            with store.explained(step):
                content = fill(folder)
                content = content.copied() if self._background else content

        try:
            ranks.everyone(collect)
        except BaseException:
            store.abort(step)
            raise
        if self._background:
            self._start(step, folder, content)
        else:
            self._publish(step, folder, content, ranks)

    def settle(self, *, patient: bool = True) -> None:
        """Wait for a checkpoint that is being written in the background, and raise its failure.

        Without patience it does not wait where other ranks may be lost, and raises nothing.
        """
        if self._thread is None or (not patient and self._ranks.world > 1):
            return
        self._thread.join()
        self._thread, error = None, self._error
        self._error, self.bytes_held = None, 0
        if patient and error is not None:
            raise error

    def _start(self, step: int, folder: Path, content: Content) -> None:
        if self._behind is None:
            group = None
            if self._ranks.world > 1:  # messages of its own, beside those of training
                limit = timedelta(seconds=self._timeout)
                group = dist.new_group(backend="gloo", timeout=limit)
            self._behind = Ranks(self._ranks.rank, self._ranks.world, group)
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
        store = self._store
        try:
            with store.explained(step):
                written = content.write(folder, ranks)
            ranks.together(lambda: store.commit(step, written))
        except BaseException:
            if ranks.first:
                store.abort(step)
            raise
        if self._mirror is not None:
            mirror = self._mirror
            ranks.together(lambda: mirror.send(store.path(step), store.keep))
