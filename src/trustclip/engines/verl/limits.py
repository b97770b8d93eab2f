"""What verl can supply to a method, and what supplies the rest. Does not import verl."""

import functools
import json
from collections.abc import Mapping
from typing import Any

from trustclip.constraints.base import Method, methods
from trustclip.constraints.names import unknown
from trustclip.constraints.registry import as_method, with_arguments
from trustclip.engines import limits

#: Loss mode whose method is set by ``method``, and the default method.
LOSS_MODE, DEFAULT = "trustclip", "atr"

#: Every loss mode of trustclip, with the name of its method.
LOSS_MODES: dict[str, str | None] = {
    LOSS_MODE: None,
    **{f"{LOSS_MODE}_{name}": name for name in methods()},
}

#: The configuration class that verl instantiates for trustclip, as Hydra names it.
TARGET = "trustclip.engines.verl.TrustclipLossConfig"

#: verl has its own remedy for one missing field.
_INSTEAD = {
    "logp_rollout": "let verl weigh the tokens (algorithm.rollout_correction.rollout_is) and name "
    "the inner method here"
}


def refusal(method: Method) -> str | None:
    """The reason why verl cannot train with a method, and what to use instead; None if it can.

    verl calls a policy loss with one micro-batch of one rank: log-probabilities, old
    log-probabilities, advantages, mask, and its own weights for the sampler's correction.
    """
    return limits.refusal(method, "verl", instead=_INSTEAD)


def constraint(settings: Mapping[str, Any]) -> Method:
    """The method set in verl's policy-loss settings; built once for equal settings.

    Args:
      settings: ``loss_mode``, one of `LOSS_MODES`; optionally ``method``: a name, or a mapping of
        ``name`` and hyper-parameters; the method of ``loss_mode`` when missing, else ``"atr"``.
        ``method_args``, hyper-parameters of a name, is deprecated.

    Raises:
      ValueError: a loss mode of verl's own, or unknown; two methods; unknown method or
        hyper-parameter; a method that verl cannot train with.

    Example:
      >>> constraint({"loss_mode": "trustclip", "method": {"name": "kl2", "delta": 0.05}})
      KL2(delta=0.05, side='outward')
    """
    mode, spec = settings.get("loss_mode"), settings.get("method")
    if isinstance(spec, Method):
        spec = spec.to_dict()
    given = (mode, spec, settings.get("method_args"))
    return _constraint(json.dumps(given, default=_plain))


def _plain(value: Any) -> Any:
    """OmegaConf containers as Python ones."""
    return dict(value) if isinstance(value, Mapping) else list(value)


@functools.lru_cache(maxsize=16)
def _constraint(given: str) -> Method:
    mode, spec, arguments = json.loads(given)
    if not str(mode).startswith(LOSS_MODE):
        raise ValueError(
            f"loss_mode={mode!r} is verl's own and ignores the method; set it to {LOSS_MODE!r}."
        )
    if mode not in LOSS_MODES:
        raise ValueError(unknown("loss_mode", mode, LOSS_MODES))
    named = LOSS_MODES[mode]
    name = spec.get("name") if isinstance(spec, dict) else spec
    if named and name not in (None, named):
        raise ValueError(
            f"loss_mode={mode!r} and method={name!r} name two methods; set loss_mode="
            f"{LOSS_MODE!r} with `method`, or leave `method` out."
        )
    chosen = as_method(with_arguments(spec or named or DEFAULT, arguments))
    problem = refusal(chosen)
    if problem:
        raise ValueError(problem)
    return chosen
