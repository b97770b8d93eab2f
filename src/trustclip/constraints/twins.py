"""Settings of stock trainers with the gradient of a clip, from the bounds of its ratio."""

import math
from typing import Any

from trustclip.constraints.batch import LogBounds

#: Trainer -> its settings; under ``"trustclip"`` another method: ``name`` and arguments.
Twins = dict[str, dict[str, Any]]

#: An offset or a ceiling that no ratio reaches, for a side without a bound.
NEVER = 1e9

#: Path of the actor's settings among verl's Hydra overrides.
ACTOR = "actor_rollout_ref.actor"

#: Path of verl's correction for the engine that sampled.
CORRECTION = "algorithm.rollout_correction"


def clip_twins(log_bounds: LogBounds, ceiling: float | None = None) -> Twins:
    """Twins of PPO's clip: an outward gate of an interval, kept tokens weighted by the ratio.

    Args:
      log_bounds: bounds of the log-ratio, floats, nats; infinite for a side that is open.
      ceiling: ratio above which a token of negative advantage is cut as well (dual clip).

    Example:
      >>> clip_twins((math.log(0.8), math.log(1.28)))["TRL"]
      {'epsilon': 0.2, 'epsilon_high': 0.28}
    """
    low, high = _offsets(log_bounds)
    name = "clip_higher" if ceiling is None else "dual_clip"
    ours, trl = {"name": name, "low": low, "high": high}, {"epsilon": low, "epsilon_high": high}
    if ceiling is not None:
        ours, trl = ours | {"ceiling": ceiling}, trl | {"delta": ceiling}
    # verl's own loss has a dual clip at 3 unless its ceiling is raised.
    above = NEVER if ceiling is None else ceiling
    twins = {"verl": verl_settings(**verl_bounds(low, high), clip_ratio_c=above)}
    # TRL truncates the ratio for either sign of A, so a lower ceiling would also cut A > 0.
    if ceiling is None or ceiling >= 1 + high:
        twins = {"trustclip": ours, "TRL": trl} | twins
    return twins


def sequence_clip_twins(log_bounds: LogBounds) -> Twins:
    """Twins of the same at sequence level (GSPO), where a sequence's tokens share their advantage.

    In TRL three further settings act on the ratio or the loss of the whole sequence and differ from
    the TRL engine here, which has a gradient per token: a KL penalty with
    ``use_bias_correction_kl``, ``top_entropy_quantile`` and token-level vLLM weights (table in
    ``docs/fast-paths.md``).
    """
    low, high = _offsets(log_bounds)
    return {
        "trustclip": {"name": "clip_higher", "low": low, "high": high, "level": "sequence"},
        "TRL": {"importance_sampling_level": "sequence", "epsilon": low, "epsilon_high": high},
        "verl": verl_settings("gspo", **verl_bounds(low, high)),
    }


def verl_settings(loss_mode: str | None = None, /, **actor: Any) -> dict[str, Any]:
    """Overrides for ``verl.trainer.main_ppo``: the policy loss, and settings of the actor.

    Example:
      >>> verl_settings(tau_pos=1.0)
      {'actor_rollout_ref.actor.tau_pos': 1.0}
    """
    mode = {} if loss_mode is None else {"policy_loss.loss_mode": loss_mode}
    return {f"{ACTOR}.{key}": value for key, value in (mode | actor).items()}


def verl_bounds(low: float, high: float) -> dict[str, float]:
    """verl's two bounds. ``clip_ratio`` alone does nothing: these default to 0.2 and win."""
    return {"clip_ratio_low": low, "clip_ratio_high": high}


def _offsets(log_bounds: LogBounds) -> tuple[float, float]:
    """Offsets from ratio 1, without the last digit's rounding: 0.2, not 0.19999999999999996."""
    low, high = (float(bound) for bound in log_bounds)
    above = math.expm1(high) if high < 700 else NEVER  # beyond, e^high is no number
    return round(-math.expm1(low), 15), round(above, 15)
