"""What the ranks of a job do together, and how they notice that one of them is lost.

An action that fails on one rank fails on all. Where a collective call fails, its error states that
a rank did not join, not which one: so ranks that fail sign a list in the store of the process
group, and a rank that has not signed soon after is named. The store lives in torchrun's agent, or
in rank 0 where ranks were started by other means (``env://``, srun).

Relies on torch's `_get_default_store`, which ranks share independently of the backend, and on
`_set_pg_timeout`, since Transformers passes ``ddp_timeout`` neither to gloo on a CPU nor to an
existing process group.
"""

import atexit
import contextlib
import functools
import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store, _set_pg_timeout
from torch.distributed.rendezvous import rendezvous

from trustclip.support.lock import rank, world
from trustclip.support.names import TrainingError
from trustclip.train.durable.store import CheckpointError, NonFiniteError

#: How long the others have to sign after a wait has failed. They began to wait at about the same
#: time, and the end of one closes its connections, on which the rest give up too.
GRACE = timedelta(seconds=3)
#: Seconds between two polls of the store.
_PAUSE = 0.05


class LostRankError(TrainingError):
    """Ranks needed by a collective call do not answer: they hang or have ended."""


class Interrupted(Exception):
    """The run was asked to stop, and everything is saved."""


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
    if dist.is_initialized():
        return _get_default_store()
    store, _, _ = next(iter(rendezvous("env://")))
    return store


@contextlib.contextmanager
def roll_call(seconds: float) -> Iterator[None]:
    """Limit every wait for another rank in this block, and name the rank that did not answer.

    Every rank must enter it. With NCCL, torch's own watchdog ends a process whose wait is over, and
    no exception comes here; ``TORCH_NCCL_DESYNC_DEBUG=1`` makes it name the missing rank.

    Raises:
      LostRankError: a collective call failed; the message names the ranks that do not answer.
    """
    if not _is_distributed():
        yield
        return
    _set_pg_timeout(timedelta(seconds=seconds))
    _get_default_store().delete_key(_key(dist.get_rank()))
    try:
        yield
    except Interrupted:  # on every rank, and no failure
        raise
    except Exception as error:
        store, key = _get_default_store(), _key(dist.get_rank())
        _within_grace(lambda: store.set(key, ""))
        missing = _unsigned() if _is_collective(error) else ""
        if not missing:
            raise
        raise LostRankError(
            f"rank {dist.get_rank()} has had no answer from rank {missing}, which hangs or has "
            f"ended. Start the job again to continue from the last checkpoint. "
            f"({error})"
        ) from error


def leave_if_lost() -> None:
    """End this process, printing its stack, if another rank has failed or stopped waiting.

    For a handler of SIGTERM, which a launcher sends to what is left of a job that has lost a rank:
    no update can be finished then.
    """
    if _is_distributed() and any(_signed() or ()):
        sys.stderr.write(f"rank {dist.get_rank()} ends: another rank has failed. It was here:\n")
        traceback.print_stack()
        sys.stderr.flush()
        os._exit(1)


def leave(status: int = 0, *, done: bool = True) -> NoReturn:
    """End this process with a status that nothing can change any more, whether or not it is a rank.

    The functions of `atexit` are called: a vLLM in this process ends by one, and needs the process
    group for it. Then, of a job that is done, the group is destroyed, as torch asks for, and output
    is flushed, but Python is not shut down: a thread of gloo that still drops a tensor while Python
    does so aborts the process, and a launcher would report a finished run as failed.

    Args:
      status: 0 for success; after a failure the group is left alone, since others may hang in it.
      done: False leaves it alone whatever the status: the job is not over for the others.
    """
    if not (dist.is_available() and dist.is_initialized()):
        sys.exit(status)
    atexit._run_exitfuncs()
    if status == 0 and done and dist.is_initialized():  # vLLM destroys it, too
        dist.destroy_process_group()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader has gone
            stream.flush()
    os._exit(status)


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _is_collective(error: Exception) -> bool:
    """Whether an error was raised by the communication backend, not by this rank's own code."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


def _key(rank: int) -> str:
    return f"trustclip/failed/{rank}"


def _signed() -> list[bool] | None:
    """Whether each rank has failed; None if the store does not answer."""
    store, ranks = _get_default_store(), range(dist.get_world_size())
    return _within_grace(lambda: [store.check([_key(rank)]) for rank in ranks])


def _unsigned() -> str:
    """Ranks that have not reported a failure within `GRACE`, as text."""
    store = _get_default_store()
    keys = [_key(rank) for rank in range(dist.get_world_size())]
    _within_grace(lambda: store.wait(keys, GRACE))
    signed = _signed()
    if signed is None:
        elsewhere = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return "" if elsewhere or dist.get_rank() == 0 else "0"
    return ", ".join(str(rank) for rank, has in enumerate(signed) if not has)


def _within_grace(ask: Callable[[], Any]) -> Any:
    """Answer of the store; None if it fails or takes much longer than its own timeout.

    A store whose process is stopped keeps a client waiting without end, in a call that no signal
    interrupts: so another thread makes the call, and is left behind.
    """
    answers: list[Any] = []

    def work() -> None:
        with contextlib.suppress(RuntimeError):
            answers.append(ask())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(2 * GRACE.total_seconds())
    return answers[0] if answers else None
