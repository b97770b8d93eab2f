"""What the first rank of a job does for all: the others go on when it has, with its result.

Files of the whole job are written by one rank and read by all. A rank that reads on its own time
reads too early, so all that is written in this way passes through here.

Ranks meet in the store through which the launcher lets them find each other. It exists before a
process group does, and a rank that polls it hears signals; in a collective call it would not.
"""

import atexit
import contextlib
import functools
import itertools
import json
import os
import time
from collections.abc import Callable
from typing import Any

from trustclip.durable.lock import rank
from trustclip.durable.rollcall import GRACE
from trustclip.durable.store import TrainingError

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
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
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
    others = range(1, int(os.environ["WORLD_SIZE"]))
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
