"""What the ranks of a job do together: an action that fails on one rank fails on all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from trustclip.durable.store import CheckpointError, NonFiniteError


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
