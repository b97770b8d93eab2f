"""Which methods an engine can train that calls a loss with a few tensors of a micro-batch."""

from collections.abc import Collection, Mapping

from trustclip.batch import SUPPLIERS
from trustclip.method import Method

_TRL = "train it with trustclip.engines.trl"
_LOOP = "call trustclip.policy_loss from a training loop of your own"

#: What to do instead, by missing field; a loop of one's own has everything.
_INSTEAD = {name: _TRL for name in ("keys", "entropy", "kl_old_new", "kl_new_old")}


def refusal(
    method: Method,
    engine: str,
    supplied: Collection[str] = (),
    instead: Mapping[str, str] | None = None,
) -> str | None:
    """Why an engine cannot train with a method, and what can; None where it can.

    Args:
      method: the method.
      engine: its name in the sentence.
      supplied: optional fields of `TokenBatch` that the engine has.
      instead: what to do about a missing field, where the engine has an answer of its own.

    Example:
      >>> import trustclip as tc
      >>> refusal(tc.method("atr"), "verl") is None
      True
      >>> print(refusal(tc.method("full_kl"), "verl"))
      'full_kl' cannot be trained in verl: it needs `kl_old_new`, which comes from the loss head \
from the old policy's hidden states (exact KL(old || new)), and verl gives a policy loss none; \
train it with trustclip.engines.trl.
    """
    start = f"{method.name!r} cannot be trained in {engine}: it"
    for name in method.requires:
        if name not in supplied:
            cure = {**_INSTEAD, **(instead or {})}.get(name, _LOOP)
            return (
                f"{start} needs `{name}`, which comes from {SUPPLIERS[name]}, and {engine} gives a "
                f"policy loss none; {cure}."
            )
    if method.statistics_over is not None:
        return (
            f"{start} measures statistics over all ranks (per "
            f"{method.statistics_over.replace('_', '-')}), and {engine} gives a policy loss one "
            f"micro-batch of one rank; {_TRL}."
        )
    if method.adapts:
        return (
            f"{start} has a threshold that adapts, and {engine} gives a policy loss no metrics of "
            f"all ranks and no end of an update; {_TRL}."
        )
    if method.needs_kl_gradient:
        return (
            f"{start} needs the gradient of the full KL, and {engine} passes only that of the "
            f"sampled token; {_LOOP}."
        )
    return None


def check(method: Method, engine: str, supplied: Collection[str] = ()) -> Method:
    """The method itself.

    Raises:
      ValueError: the engine cannot train with it.
    """
    problem = refusal(method, engine, supplied)
    if problem:
        raise ValueError(problem)
    return method
