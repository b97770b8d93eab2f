"""What verl can supply to a method, and what supplies the rest. Does not import verl."""

import functools
import json
from collections.abc import Collection, Mapping
from typing import Any

from trustclip.constraints.base import Method, methods
from trustclip.constraints.names import unknown
from trustclip.constraints.registry import as_method, with_arguments
from trustclip.constraints.shadow import shadow_methods
from trustclip.engines import limits

#: Loss mode whose method is set by ``method``, and the default method.
LOSS_MODE, DEFAULT = "trustclip", "atr"

#: Loss mode that trains with another one and reports on it, and the setting that names that one.
WATCH, WATCHED = f"{LOSS_MODE}_watch", "vanilla"

#: Every loss mode of trustclip that trains with one of its methods, with the name of its method.
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


def shadows(settings: Mapping[str, Any]) -> list[Method]:
    """The shadows set in verl's policy-loss settings; see `trustclip.constraints.shadow`.

    Raises:
      ValueError: one of them is unknown, listed twice, or needs what verl cannot give.
    """
    return list(_shadows(json.dumps(settings.get("shadows") or [], default=_plain)))


@functools.lru_cache(maxsize=16)
def _shadows(given: str) -> tuple[Method, ...]:
    return tuple(shadow_methods(json.loads(given), (), "verl"))


def check_watched(settings: Mapping[str, Any], loss_modes: Collection[str]) -> str:
    """The loss mode that ``loss_mode=trustclip_watch`` trains with.

    Args:
      settings: verl's policy-loss settings.
      loss_modes: every name in verl's registry.

    Raises:
      ValueError: a method is set, which would be ignored; or no such loss mode, or one of
        trustclip's, which reports without being watched.
    """
    watched = settings.get("watched") or WATCHED
    if settings.get("method") is not None:
        raise ValueError(
            f"loss_mode={WATCH!r} trains with `watched` and ignores `method`; set loss_mode="
            f"{LOSS_MODE!r} to train with it, or list it in `shadows`."
        )
    others = [mode for mode in loss_modes if not mode.startswith(LOSS_MODE)]
    if watched not in others:
        raise ValueError(unknown("loss mode to watch", watched, others))
    return watched


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
    given = (mode, spec, settings.get("method_args"))
    return _constraint(json.dumps(given, default=_plain))


def _plain(value: Any) -> Any:
    """OmegaConf containers as Python ones, methods as mappings."""
    if isinstance(value, Method):
        return value.to_dict()
    return dict(value) if isinstance(value, Mapping) else list(value)


@functools.lru_cache(maxsize=16)
def _constraint(given: str) -> Method:
    mode, spec, arguments = json.loads(given)
    if not str(mode).startswith(LOSS_MODE):
        raise ValueError(
            f"loss_mode={mode!r} is verl's own and ignores the method; set it to {LOSS_MODE!r}."
        )
    if mode not in LOSS_MODES:
        raise ValueError(unknown("loss_mode", mode, {*LOSS_MODES, WATCH}))
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
