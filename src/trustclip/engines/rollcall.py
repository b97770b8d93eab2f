"""Which rank is missing, when the others have waited for it in vain.

A collective call that times out says that somebody did not come, not who, and torch's launcher
names the first rank that gave up, which is one of those that waited. So ranks that fail sign a
list, and whoever has not signed soon after a wait has failed is named.

Relied on in torch: `_get_default_store`, which ranks share beside the backend, and
`_set_pg_timeout`, for Transformers passes ``ddp_timeout`` on neither to gloo on a CPU nor to a
process group that is already there.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store, _set_pg_timeout

#: How long the others have to sign after a wait has failed. They began to wait at about the same
#: time, and the end of one closes its connections, on which the rest give up too.
GRACE = timedelta(seconds=3)


class LostRankError(RuntimeError):
    """Ranks that a collective call needs do not answer: they hang or have ended."""


@contextlib.contextmanager
def roll_call(seconds: float) -> Iterator[None]:
    """Bound every wait for another rank in this block, and say for whom it was in vain.

    Every rank must enter it. With NCCL, torch's own watchdog ends a process whose wait is over, and
    no exception comes here; ``TORCH_NCCL_DESYNC_DEBUG=1`` makes it name the missing rank.

    Args:
      seconds: how long one collective call may wait, above 0.

    Raises:
      LostRankError: a collective call failed; the message names the ranks that do not answer.
    """
    if not _several():
        yield
        return
    _set_pg_timeout(timedelta(seconds=seconds))
    _get_default_store().delete_key(_key(dist.get_rank()))
    try:
        yield
    except Exception as error:
        _sign()
        missing = _unsigned() if _collective(error) else ""
        if not missing:
            raise
        raise LostRankError(
            f"rank {dist.get_rank()} has waited in vain: no answer from rank {missing}, which "
            f"hangs or has ended. Start the job again to continue from the last checkpoint. "
            f"({error})"
        ) from error


def leave_if_lost() -> None:
    """End this process, saying where it was, if another rank has failed or given up waiting for it.

    For a handler of SIGTERM, which a launcher sends to what is left of a job that has lost a rank:
    no update can be finished then.
    """
    lost = _several() and any(_signed())
    if lost:
        sys.stderr.write(f"rank {dist.get_rank()} ends: another one has failed. It was here:\n")
        traceback.print_stack()
        sys.stderr.flush()
        os._exit(1)


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _collective(error: Exception) -> bool:
    """Whether a backend raised it, and not the code of this rank."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


def _key(rank: int) -> str:
    return f"trustclip/failed/{rank}"


def _signed() -> list[bool]:
    """Whether each rank has failed; of none where the list went with the rank that held it."""
    try:
        return [_get_default_store().check([_key(r)]) for r in range(dist.get_world_size())]
    except RuntimeError:
        return []


def _sign() -> None:
    with contextlib.suppress(RuntimeError):
        _get_default_store().set(_key(dist.get_rank()), "")


def _unsigned() -> str:
    """Ranks that have not failed within the time of grace."""
    with contextlib.suppress(RuntimeError):
        _get_default_store().wait([_key(rank) for rank in range(dist.get_world_size())], GRACE)
    return ", ".join(str(rank) for rank, signed in enumerate(_signed()) if not signed)
