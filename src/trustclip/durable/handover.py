"""What the first rank of a job does for all: the others go on when it has, with its result.

Files of the whole job are written by one rank and read by all. A rank that reads on its own time
reads too early, so all that is written in this way passes through here.

Ranks meet in the store by which the launcher lets them find each other. It is there before a
process group is, and who waits for it hears signals, which a rank in a collective call does not.
"""

import functools
import itertools
import json
import os
import time
from collections.abc import Callable
from typing import Any

from trustclip.durable.lock import rank
from trustclip.durable.store import TrainingError

#: Seconds between two looks into the store.
_PAUSE = 0.05

_calls = itertools.count()


def by_first(action: Callable[[], Any]) -> Any:
    """Call a function on the first rank; the others wait for its result, or its failure.

    Every rank of the job calls it, in the same order. The first one does not wait. The others wait
    as long as it takes: saving a large model may take longer than any collective call.

    Args:
      action: returns what JSON can hold.

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
        return _awaited(store, key)
    told: dict[str, Any] = {"stopped": True}
    try:
        result = action()
        told = {"result": result}
    except Exception as error:
        told = {"failure": f"rank 0: {error}"}
        raise
    finally:
        store.set(key, json.dumps(told))
    return result


def _awaited(store: Any, key: str) -> Any:
    while not store.check([key]):
        time.sleep(_PAUSE)
    told = json.loads(store.get(key))
    if "failure" in told:
        raise TrainingError(told["failure"])
    if "stopped" in told:
        raise KeyboardInterrupt
    return told["result"]


@functools.cache
def _store() -> Any:
    """The ranks' store; kept, since on some launches it lives in the first rank."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store
    from torch.distributed.rendezvous import rendezvous

    if dist.is_initialized():
        return _get_default_store()
    store, _, _ = next(iter(rendezvous("env://")))
    return store
