"""For the tests of a trainer: an assertion that its loss is a method."""

from collections.abc import Mapping, Sequence
from typing import Any

from trustclip.constraints.base import Method
from trustclip.constraints.conformance import LossFunction, conform


def assert_conforms(
    loss: LossFunction,
    method: Method | str | Mapping[str, Any],
    aggregation: str | None = None,
    leave_out: Sequence[str] = (),
) -> None:
    """Fail a test, in the sentences of `trustclip.conform`, if a loss is not a method.

    Args:
      loss: as in `trustclip.conform`, and so are the others.
      method: what the loss is meant to be.
      aggregation: how it must add up its tokens; any way when None.
      leave_out: names of batches that the trainer never makes.

    Raises:
      AssertionError: the loss has another gradient.
      ValueError: the two cannot be compared.

    Example:
      >>> def minus_ratio(logp, logp_old, advantages, mask):
      ...     return -((logp - logp_old).exp() * advantages * mask).sum() / mask.sum()
      >>> assert_conforms(minus_ratio, "importance_sampling", "token_mean")
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    if not (found := conform(loss, method, aggregation, leave_out)):
        raise AssertionError(str(found))
