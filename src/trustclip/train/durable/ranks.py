"""What the ranks of a job do together: an action that fails on one rank fails on all of them."""

import atexit
import contextlib
import functools
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from trustclip.support.lock import rank, world
from trustclip.support.names import TrainingError
from trustclip.train.durable.rollcall import GRACE
from trustclip.train.durable.store import CheckpointError, NonFiniteError


@dataclass(frozen=True)
class Ranks:
    """The ranks that act together, from the view of one of them.

    Example:
      >>> Ranks().together(lambda: "done")
      'done'
    """

    rank: int = 0
    world: int = 1
    group: Any = None

    @property
    def first(self) -> bool:
        """Whether this is the one that acts for all."""
        return self.rank == 0

    def together(self, action: Callable[[], Any]) -> Any:
        """Call a function on the first rank; all get its result, or its failure.

        Raises:
          CheckpointError: on the other ranks, what it raised on the first.
        """
        return self.everyone(action if self.first else lambda: None)[0]

    def everyone(self, action: Callable[[], Any]) -> list[Any]:
        """Call a function on every rank; all get the results of all, or the first failure.

        Raises:
          CheckpointError: it failed on another rank, which is named.
          NonFiniteError: the same, of a failure of this kind.
        """
        result = error = None
        try:
            result = action()
        except Exception as caught:
            error = caught
        if self.world == 1:
            if error is not None:
                raise error
            return [result]
        failure = error and (isinstance(error, NonFiniteError), f"rank {self.rank}: {error}")
        outcomes: list[Any] = [None] * self.world
        dist.all_gather_object(outcomes, (result, failure), group=self.group)
        if error is not None:
            raise error
        for _, report in outcomes:
            if report:
                raise (NonFiniteError if report[0] else CheckpointError)(report[1])
        return [result for result, _ in outcomes]


#: Seconds between two polls of the store.
_PAUSE = 0.05


_calls = itertools.count()


def by_first(action: Callable[[], Any]) -> Any:
    """Call a function on the first rank; the others wait for its result, or its failure.

    Every rank of the job calls it, in the same order. The first one does not wait, except briefly
    when it ends, for those that have not read yet. The others wait as long as it takes:
    saving a large model may take longer than any collective call. The result must fit into JSON.

    Raises:
      TrainingError: on the other ranks, what it raised on the first.
      KeyboardInterrupt: on the other ranks, where a signal has ended the first.

    Example:
      >>> by_first(lambda: "done")
      'done'
    """
    if world() == 1:
        return action()
    store, key = _store(), f"trustclip/by-first/{next(_calls)}"
    if rank() > 0:
        return _await_result(store, key)
    report: dict[str, Any] = {"stopped": True}
    try:
        result = action()
        report = {"result": result}
    except Exception as error:
        report = {"failure": f"rank 0: {error}"}
        raise
    finally:
        store.set(key, json.dumps(report))
        atexit.unregister(_until_read)
        atexit.register(_until_read, store, key)
    return result


def _await_result(store: Any, key: str) -> Any:
    while not store.check([key]):
        time.sleep(_PAUSE)
    report = json.loads(store.get(key))
    store.set(f"{key}/{rank()}", "")
    if "failure" in report:
        raise TrainingError(report["failure"])
    if "stopped" in report:
        raise KeyboardInterrupt
    return report["result"]


def _until_read(store: Any, key: str) -> None:
    """Keep a store that lives in this process until the other ranks have read from it."""
    others = range(1, world())
    with contextlib.suppress(RuntimeError):  # one of them has ended
        store.wait([f"{key}/{other}" for other in others], GRACE)


@functools.cache
def _store() -> Any:
    """The ranks' store; cached, since with some launchers it lives in the first rank."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store
    from torch.distributed.rendezvous import rendezvous

    if dist.is_initialized():
        return _get_default_store()
    store, _, _ = next(iter(rendezvous("env://")))
    return store
