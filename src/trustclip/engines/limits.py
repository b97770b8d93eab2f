"""Which methods can be trained by an engine that passes its loss only a few tensors."""

from collections.abc import Collection, Mapping

from trustclip.constraints.base import Method, Trait
from trustclip.constraints.batch import SUPPLIERS

_TRL = "train it with trustclip.engines.trl"
_LOOP = "call trustclip.policy_loss from your own training loop"

#: What to do instead, by missing field; your own loop can supply everything.
_INSTEAD = {name: _TRL for name in ("keys", "entropy", "entropy_old", "kl_old_new", "kl_new_old")}


def refusal(
    method: Method,
    engine: str,
    supplied: Collection[str] = (),
    instead: Mapping[str, str] | None = None,
    whole_loop: bool = False,
) -> str | None:
    """The reason why an engine cannot train a method, and what to use instead; None if it can.

    Args:
      method: the method.
      engine: its name in the sentence.
      supplied: optional fields of `TokenBatch` that the engine has.
      instead: what to do about a missing field, where the engine has a remedy of its own.
      whole_loop: whether it is a trainer, with statistics over all ranks and an end of an update,
        and not only a caller of a loss.

    Example:
      >>> import trustclip as tc
      >>> refusal(tc.method("atr"), "verl") is None
      True
      >>> print(refusal(tc.method("full_kl"), "verl"))
      'full_kl' cannot be trained in verl: it needs `kl_old_new`, which comes from the loss head \
from the old policy's hidden states (exact KL(old || new)), and verl passes none to a policy \
loss; train it with trustclip.engines.trl.
    """
    start = f"{method.name!r} cannot be trained in {engine}: it"
    for name in method.requires:
        if name not in supplied:
            cure = {**_INSTEAD, **(instead or {})}.get(name, _LOOP)
            return (
                f"{start} needs `{name}`, which comes from {SUPPLIERS[name]}, and {engine} passes "
                f"none to a policy loss; {cure}."
            )
    if method.statistics_over is not None and not whole_loop:
        return (
            f"{start} measures statistics over all ranks (per "
            f"{method.statistics_over.replace('_', '-')}), and {engine} passes one "
            f"micro-batch of one rank to a policy loss; {_TRL}."
        )
    if Trait.ADAPTS in method.traits and not whole_loop:
        return (
            f"{start} has a threshold that adapts, and {engine} passes a policy loss neither "
            f"the metrics of all ranks nor the end of an update; {_TRL}."
        )
    if Trait.NEEDS_KL_GRADIENT in method.traits:
        return (
            f"{start} needs the gradient of the full KL, and {engine} passes only that of the "
            f"sampled token; {_LOOP}."
        )
    return None


def check(method: Method, engine: str, supplied: Collection[str] = ()) -> Method:
    """Return the method if the engine can train it; raise a ValueError otherwise.

    Raises:
      ValueError: the engine cannot train it.
    """
    problem = refusal(method, engine, supplied)
    if problem:
        raise ValueError(problem)
    return method
