"""What verl can supply to a method, and what supplies the rest. Does not import verl."""

import functools
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from trustclip.constraints.base import Method, methods
from trustclip.constraints.registry import as_method
from trustclip.constraints.shadow import shadow_methods
from trustclip.engines import limits
from trustclip.engines.limits import Supply
from trustclip.support.names import unknown

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

#: Where verl's correction for the sampler is set, and where a policy loss can read it.
CORRECTION = "algorithm.rollout_correction"
FORWARDED = "actor_rollout_ref.actor.policy_loss.rollout_correction"

#: Settings of the correction that decide what the loss gets.
DECISIVE = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "bypass_mode")

#: verl bounds its weights here (nats): a threshold beyond this bound truncates nothing.
_BOUND = 20.0

#: Settings under which verl's weights are old over sampler probability, and what hands them on.
_CARRY = (
    "verl passes a policy loss its weights alone; set "
    f"{CORRECTION}.rollout_is=token, {CORRECTION}.rollout_is_threshold=inf and "
    f"'+{FORWARDED}=${{{CORRECTION}}}', or let verl weigh the tokens and name the inner method"
)


def carries(correction: Mapping[str, Any]) -> bool:
    """Whether verl's weights under its section ``rollout_correction`` are the ratio old / sampler.

    The whole ratio of each token: the sampler's log-probability then follows from it.

    Example:
      >>> carries({"rollout_is": "token", "rollout_is_threshold": float("inf")})
      True
      >>> carries({"rollout_is": "token", "rollout_is_threshold": 2.0})
      False
    """
    try:  # verl reads "0.5_5.0" as bounds that drop tokens
        threshold = float(str(correction.get("rollout_is_threshold", 2.0)).replace("_", "|"))
    except ValueError:
        return False
    return (
        correction.get("rollout_is") == "token"
        and threshold >= math.exp(_BOUND)
        and not correction.get("rollout_is_batch_normalize")
        and not correction.get("bypass_mode")
    )


def supply(settings: Mapping[str, Any]) -> Supply:
    """What verl passes to a policy loss under its settings, ``rollout_correction`` among them."""
    correction = settings.get("rollout_correction") or {}
    most = limits.ENGINES["verl"]
    if correction.get("bypass_mode"):
        return replace(most, engine="verl's bypass mode", old_is_sampler=True)
    return most if carries(correction) else most.without("logp_rollout", _CARRY)


def shadows(settings: Mapping[str, Any]) -> list[Method]:
    """The shadows set in verl's policy-loss settings; see `trustclip.constraints.shadow`.

    Raises:
      ValueError: one of them is unknown, listed twice, or needs what verl cannot give.
    """
    return list(_parse_shadows(json.dumps(settings.get("shadows") or [], default=_to_plain)))


@functools.lru_cache(maxsize=16)
def _parse_shadows(text: str) -> tuple[Method, ...]:
    return tuple(shadow_methods(json.loads(text), (), "verl"))


def check_watched(settings: Mapping[str, Any], loss_modes: Collection[str]) -> str:
    """The loss mode that ``loss_mode=trustclip_watch`` trains with, one of verl's registry.

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
        ``rollout_correction``: see `supply`.

    Raises:
      ValueError: a loss mode of verl's own, or unknown; two methods; unknown method or
        hyper-parameter; a method that verl cannot train with under these settings.

    Example:
      >>> constraint({"loss_mode": "trustclip", "method": {"name": "kl2", "delta": 0.05}})
      KL2(delta=0.05, side='outward')
    """
    correction = settings.get("rollout_correction") or {}
    decisive = {name: correction.get(name) for name in DECISIVE if correction.get(name) is not None}
    spec = [settings.get(name) for name in ("loss_mode", "method")]
    return _build(json.dumps([*spec, decisive], default=_to_plain))


def _to_plain(value: Any) -> Any:
    """OmegaConf containers as Python ones, methods as mappings."""
    if isinstance(value, Method):
        return value.to_dict()
    return dict(value) if isinstance(value, Mapping) else list(value)


@functools.lru_cache(maxsize=16)
def _build(text: str) -> Method:
    mode, spec, correction = json.loads(text)
    if not str(mode).startswith(LOSS_MODE):
        raise ValueError(
            f"loss_mode={mode!r} is verl's own and ignores the method; set it to {LOSS_MODE!r}."
        )
    if mode not in LOSS_MODES:
        raise ValueError(unknown("loss_mode", mode, {*LOSS_MODES, WATCH}))
    preset = LOSS_MODES[mode]
    name = spec.get("name") if isinstance(spec, dict) else spec
    if preset and name not in (None, preset):
        raise ValueError(
            f"loss_mode={mode!r} and method={name!r} name two methods; set loss_mode="
            f"{LOSS_MODE!r} with `method`, or leave `method` out."
        )
    chosen = as_method(spec or preset or DEFAULT)
    if problem := limits.refusal(chosen, supply({"rollout_correction": correction})):
        raise ValueError(problem)
    return chosen
