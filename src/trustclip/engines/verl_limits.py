"""What a method can have from verl, and who else can supply the rest. No import of verl."""

from collections.abc import Mapping
from typing import Any

from trustclip.engines import limits
from trustclip.method import Method, method, methods
from trustclip.names import unknown

#: Loss mode that leaves the method to the setting ``method``, and its value when nothing is said.
LOSS_MODE, DEFAULT = "trustclip", "atr"

#: Every loss mode of ours, with the name of the method it stands for.
LOSS_MODES: dict[str, str | None] = {
    LOSS_MODE: None,
    **{f"{LOSS_MODE}_{name}": name for name in methods()},
}

#: The configuration class that verl instantiates for us, as Hydra names it.
TARGET = "trustclip.engines.verl.TrustclipLossConfig"

#: verl has an answer of its own to one missing field.
_INSTEAD = {
    "logp_rollout": "let verl weigh the tokens (algorithm.rollout_correction.rollout_is) and name "
    "the inner method here"
}


def refusal(method: Method) -> str | None:
    """Why verl cannot train with a method, and what can; None where it can.

    verl calls a policy loss with one micro-batch of one rank: log-probabilities, old
    log-probabilities, advantages, mask, and its own weights for the sampler's correction.
    """
    return limits.refusal(method, "verl", instead=_INSTEAD)


def constraint(settings: Mapping[str, Any]) -> Method:
    """The method that verl's settings of the policy loss name.

    Args:
      settings: ``loss_mode``, one of `LOSS_MODES`; optionally ``method``, that of ``loss_mode``
        when missing, else ``"atr"``; and ``method_args``, its hyper-parameters.

    Raises:
      ValueError: a loss mode of verl's own, or unknown; two methods; unknown method or
        hyper-parameter; a method that verl cannot train with.

    Example:
      >>> constraint({"loss_mode": "trustclip_kl2", "method_args": {"delta": 0.05}})
      KL2(delta=0.05, side='outward')
    """
    mode, name = settings.get("loss_mode"), settings.get("method")
    if not str(mode).startswith(LOSS_MODE):
        raise ValueError(
            f"loss_mode={mode!r} is verl's own and leaves the method unused; say {LOSS_MODE!r}."
        )
    if mode not in LOSS_MODES:
        raise ValueError(unknown("loss_mode", mode, LOSS_MODES))
    named = LOSS_MODES[mode]
    if named and name not in (None, named):
        raise ValueError(
            f"loss_mode={mode!r} and method={name!r} name two methods; say loss_mode="
            f"{LOSS_MODE!r} with `method`, or leave `method` out."
        )
    chosen = method(name or named or DEFAULT, **dict(settings.get("method_args") or {}))
    problem = refusal(chosen)
    if problem:
        raise ValueError(problem)
    return chosen
