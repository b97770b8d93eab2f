"""The Rosetta table: each training engine's losses, by default and by name, as methods.

A row says what an engine computes under a named loss with its defaults, as the method that has the
same gradient in every token's log-probability, and how the engine aggregates. Which of the three
policies an engine compares is part of the method: ``anchored`` marks engines that measure from the
policy that sampled. `tests/constraints/test_rosetta.py` holds every row to the installed
package where there is one, and to the published formula elsewhere. KL penalties towards a reference
model, which engines add on their own, are not part of a row unless it says so. In one file because
it is one table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trustclip.constraints.base import Method
from trustclip.constraints.registry import as_method
from trustclip.support.names import unknown

#: A method as `trustclip.as_method` takes it.
Spec = Mapping[str, Any] | str


@dataclass(frozen=True)
class Row:
    """One loss of an engine.

    Args:
      name: of the loss in the engine, or of what is set.
      method: the method of the same gradient, as `trustclip.as_method` takes it; None if there is
        none, and then ``note`` says why.
      aggregation: the engine's default under this loss, in the names of `trustclip.policy_loss`
        where it has one.
      setting: what is set in the engine beyond its defaults.
      note: what is easily missed.
    """

    name: str
    method: Spec | None
    aggregation: str
    setting: str = ""
    note: str = ""


@dataclass(frozen=True)
class Engine:
    """A training engine and its losses.

    Args:
      title: as its authors write it.
      read: release, or date of the source, that the rows describe.
      checked: what the tests compare the rows with.
      rows: its losses, the default first.
    """

    title: str
    read: str
    checked: Literal["package", "formula"]
    rows: tuple[Row, ...]


def _gspo() -> dict[str, Any]:
    return {"name": "gspo", "low": 0.2, "high": 0.2}


def _cispo(low: float, high: float) -> dict[str, Any]:
    return {"name": "cispo", "low": low, "high": high}


def _dppo(**more: Any) -> dict[str, Any]:
    return {"name": "dppo", "delta": 0.2, **more}


def _around(inner: Spec, name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inner": inner, **more}


def _squared(inner: Spec, tau: float, **more: Any) -> dict[str, Any]:
    """A price of ``tau`` times the squared log-ratio, which is 2 ``tau`` of k2."""
    return _around(inner, "penalty", divergence="k2", beta=2 * tau, **more)


def _sampler(inner: Spec) -> dict[str, Any]:
    return _around(inner, "anchored")


def _centered(inner: Spec) -> dict[str, Any]:
    """Score centering, whose weight is that of the current policy against the sampler."""
    return _around(inner, "centered")


def _verl_presets() -> tuple[Row, ...]:
    """verl's presets of rollout correction: a mask, a weight, and three policies or two."""
    # verl bounds k1 = log(sampler / policy), so that its range a_b is one from 1/b to 1/a here.
    masks: dict[str, dict[str, Any]] = {
        "": {"ceiling": None},
        "icepop": {"floor": 0.5, "ceiling": 5.0},
        "is_rs": {"level": "sequence", "reduction": "sum", "floor": 0.5, "ceiling": 2.0},
        "geo_rs": {"level": "sequence", "floor": 1 / 1.001, "ceiling": 1 / 0.999},
        "k3_rs": {"measure": "k3", "level": "sequence", "ceiling": 0.01},
    }
    #: Preset -> its mask, and whose ratio weighs.
    decoupled = {
        **{"token_is": ("", "token"), "seq_is": ("", "sequence"), "geo_rs": ("geo_rs", "none")},
        **{"token_icepop": ("icepop", "token"), "seq_is_rs": ("is_rs", "sequence")},
        **{"geo_rs_seq_tis": ("geo_rs", "sequence"), "geo_rs_token_tis": ("geo_rs", "token")},
        **{"k3_rs": ("k3_rs", "none"), "k3_rs_seq_tis": ("k3_rs", "sequence")},
        "k3_rs_token_tis": ("k3_rs", "token"),
    }
    bypass = {
        **{"ppo_clip": ("", "none"), "ppo_clip_geo_rs": ("geo_rs", "none")},
        **{"ppo_clip_k3_rs": ("k3_rs", "none"), "pg_is": ("", "sequence")},
        **{"pg_token_icepop": ("icepop", "token"), "pg_geo_rs": ("geo_rs", "none")},
        **{"pg_geo_rs_seq_tis": ("geo_rs", "sequence"), "pg_geo_rs_token_tis": ("geo_rs", "token")},
    }

    def row(mode: str, name: str, mask: str, weigh: str) -> Row:
        inner: Spec = _DUAL
        pair: dict[str, Any] = {}
        if mode == "bypass":
            inner = _sampler(_DUAL) if name.startswith("ppo") else "reinforce"
            pair = {"between": "new_rollout", "weigh_of": "new"}
        ceiling = {} if weigh == "none" or mask == "icepop" else {"weight_ceiling": 2.0}
        method = inner
        if mask or weigh != "none":
            method = _around(inner, "sampler", **masks[mask], **pair, weigh_by=weigh, **ceiling)
        preset = f"{mode}_{name}"
        rejects = mode == "decoupled" and mask not in ("", "icepop")
        note = "its synchronous trainer divides by the tokens that the mask leaves, and we by all"
        setting = f"RolloutCorrectionConfig.{preset}()"
        return Row(preset, method, _TOKEN, setting, note if rejects else "")

    return tuple(
        row(mode, name, *choice)
        for mode, presets in (("decoupled", decoupled), ("bypass", bypass))
        for name, choice in presets.items()
    )


#: PPO's clip, and the same with verl's ceiling where A < 0.
_CLIP = {"name": "clip", "epsilon": 0.2}
_DUAL = {"name": "dual_clip", "low": 0.2, "high": 0.2, "ceiling": 3.0}
_SAPO = {"name": "soft_gate", "temperature_positive": 1.0, "temperature_negative": 1.05}
_VESPO = {
    "name": "vespo",
    **{"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0},
}
_CLIP_COV = {"name": "clip_cov", "low": 0.2, "high": 0.2}

#: A ceiling that no ratio reaches.
_NEVER = 1e9

_TOKEN, _SEQUENCE = "token_mean", "sequence_mean"
_SHARED = "where a sequence's tokens share their advantage"
_RANDOM = "draws from each micro-batch; compared where all candidates are dropped"
_REFERENCE = "with the proximal policy in place of the reference model"

_TRL = (
    Row("dapo", _CLIP, "dapo"),
    Row("grpo", _CLIP, _SEQUENCE),
    Row("bnpo", _CLIP, _TOKEN),
    Row("dr_grpo", _CLIP, "dr_grpo"),
    Row(
        "gspo",
        _gspo(),
        _SEQUENCE,
        setting="loss_type='grpo', importance_sampling_level='sequence'",
        note="the paper's bounds are 3e-4 and 4e-4; 0.2 hardly ever acts",
    ),
    Row(
        "luspo",
        {"name": "luspo", "low": 0.2, "high": 0.2},
        "mean of sequence sums",
        setting="importance_sampling_level='sequence'",
    ),
    Row(
        "cispo",
        _cispo(1.0, 4.0),
        "dapo",
        setting="epsilon_high=5.0",
        note="epsilon_high is the cap itself: left at 0.2, no weight is above 0.2",
    ),
    Row("sapo", _SAPO, _SEQUENCE),
    Row("vespo", _VESPO, "dapo"),
    Row("delta", {**_DUAL, "ceiling": 4.0}, "dapo", "delta=4.0", "INTELLECT-2's two-sided clip"),
    Row("opsm", _around(_CLIP, "opsm", delta=0.5), "dapo", "off_policy_mask_threshold=0.5"),
    Row(
        "vllm",
        _around(_CLIP, "icepop", floor=None, ceiling=3.0, level="sequence"),
        "dapo",
        setting="use_vllm=True",
        note="the correction of the sampler is on by default",
    ),
)

_VERL = (
    Row("vanilla", _DUAL, _TOKEN, note="the ceiling where A < 0 is always on"),
    Row("dppo_tv", _dppo(ceiling=3.0), _TOKEN, note="clip_ratio_c truncates"),
    Row("dppo_kl", _dppo(divergence="binary_kl", ceiling=3.0), _TOKEN),
    Row("gspo", _gspo(), _TOKEN),
    Row("sapo", _SAPO, _SEQUENCE, note="loss_agg_mode is not read"),
    Row("gpg", "reinforce", _TOKEN),
    Row("clip_cov", _CLIP_COV, _TOKEN, note=_RANDOM),
    Row("kl_cov", {"name": "kl_cov", "share": 2e-4, "beta": 0.1}, _TOKEN, note="per micro-batch"),
    Row(
        "geo_mean",
        {"name": "gmpo", "log_low": 0.2, "log_high": 0.2},
        _SEQUENCE,
        note=f"the mean of the micro-batch; {_SHARED}",
    ),
    Row("dro", _squared("reinforce", 0.025), _TOKEN, "policy_loss.dro_beta=0.05", "no default"),
    Row("cispo", _cispo(0.2, 0.2), _TOKEN),
    Row("bypass_mode", _sampler(_DUAL), _TOKEN, note="two policies"),
    Row(
        "rollout_is",
        _around(_DUAL, "tis", ceiling=2.0),
        _TOKEN,
        setting="algorithm.rollout_correction.rollout_is=token",
    ),
    *(
        Row(
            f"kl_loss {kind}",
            _around(_DUAL, "penalty", divergence=divergence, beta=1e-3),
            _TOKEN,
            setting=f"use_kl_loss=True, kl_loss_type={kind}",
            note=_REFERENCE,
        )
        for kind, divergence in (("low_var_kl", "k3_reverse"), ("mse", "k2"), ("abs", "abs"))
    ),
    Row(
        "kl_loss kl",
        None,
        _TOKEN,
        setting="use_kl_loss=True, kl_loss_type=kl",
        note="k1 in a loss: its gradient is a constant, which holds no policy anywhere",
    ),
    *_verl_presets(),
)

#: Its ``max_importance_ratio`` is the ceiling.
_IPO = {"name": "ipo", "delta": 0.3, "ceiling": 1e4}

_PRIME_RL = (
    Row("ipo", _IPO, _TOKEN, note="the default since 2026-09-18"),
    Row(
        "icepop",
        _around("importance_sampling", "icepop", floor=0.2, ceiling=5.0, policy="new"),
        _TOKEN,
        setting='type = "icepop"',
    ),
    Row("ppo", {**_sampler(_CLIP), "ceiling": 1e4}, _TOKEN, 'type = "ppo"'),
    Row("cispo", _sampler(_cispo(1.0, 4.0)), _TOKEN, 'type = "cispo"', "bounds 0 and 5"),
    Row(
        "ipo+sc",
        _centered(_IPO),
        _TOKEN,
        setting="score_centering = true",
        note="over the set that the sampler kept: exact",
    ),
    Row(
        "ipo+kl",
        _squared({"name": "ipo", "delta": 0.1, "ceiling": None}, 1e-3, anchor="rollout"),
        _TOKEN,
        setting="eps = 0.1, kl_tau = 1e-3",
        note="the default from 2026-08-27 to 2026-09-18",
    ),
    Row(
        "dppo+kl",
        _squared(_dppo(ceiling=_NEVER, anchor="rollout"), 1e-3, anchor="rollout"),
        _TOKEN,
        note="the default from 2026-04-02 to 2026-08-27",
    ),
)

#: Weights of new policy over sampler: truncated at 2, and none outside 0.5 to 5.
_TRUNCATED = _sampler(_cispo(1.0, 1.0))
_BANDED = _around("importance_sampling", "icepop", floor=0.5, ceiling=5.0, policy="new")
_HEAD = "over the sampler's top k, the rest modelled"

_SKYRL = (
    Row(
        "dppo+sc",
        _centered(_dppo(ceiling=_NEVER, anchor="rollout")),
        _TOKEN,
        note="the default since 0.5.0 (2026-11-17), over the set that the sampler kept; candidates "
        "are masked as sampled tokens are, which its release notes leave open",
    ),
    Row("regular", _CLIP, _TOKEN, note="the default before 0.5.0"),
    Row("dual_clip", _DUAL, _TOKEN),
    Row("gspo", _gspo(), _TOKEN),
    Row("sapo", _SAPO, _TOKEN),
    Row("cispo", _cispo(1.0, 4.0), _TOKEN),
    Row("cispo rollout", _sampler(_cispo(1.0, 4.0)), _TOKEN, "cispo.cispo_anchor=rollout"),
    Row(
        "rollout_is",
        _sampler({**_CLIP, "side": "strict"}),
        _TOKEN,
        note="drops whatever is outside",
    ),
    Row("dppo", _dppo(ceiling=_NEVER, anchor="rollout"), _TOKEN),
    Row("importance_sampling", "importance_sampling", "sum"),
    Row("reinforce+sc", _centered("reinforce"), "sum", "score_centering.enabled=True", _HEAD),
    Row(
        "rollout_is+sc",
        _centered(_sampler({**_CLIP, "side": "strict"})),
        "sum",
        setting="score_centering.enabled=True",
        note=_HEAD,
    ),
    Row("clip_cov", _CLIP_COV, _TOKEN, note=_RANDOM),
    Row(
        "kl_cov",
        {"name": "kl_cov", "share": 0.2, "beta": 1.0},
        _TOKEN,
        note="a fifth of the tokens pays; the paper's 0.2 is in per cent",
    ),
)

_OPENRLHF = (
    Row("ppo", _CLIP, _TOKEN),
    Row("gspo", _gspo(), _SEQUENCE, note=_SHARED),
    Row(
        "icepop",
        _around(_CLIP, "icepop", floor=0.5, ceiling=5.0),
        _TOKEN,
        setting="is_correction_enable, is_correction_type icepop",
    ),
    Row(
        "tis",
        _around(
            *(_CLIP, "sampler"),
            **{"ceiling": None, "weigh_by": "token", "weight_floor": 0.5, "weight_ceiling": 5.0},
        ),
        _TOKEN,
        setting="is_correction_enable",
        note="raises weights below 0.5 to 0.5, too, where tis only truncates",
    ),
    Row(
        "seq-mask-tis",
        _around(
            *(_CLIP, "sampler"),
            **{"level": "sequence", "floor": 0.5, "ceiling": 5.0, "weigh_by": "token"},
        ),
        _TOKEN,
        setting="is_correction_enable, is_correction_type seq-mask-tis",
        note="the mask is by the geometric mean, the weight the token's own",
    ),
)

_NEMO_RL = (
    Row("grpo", _CLIP, _TOKEN, note="adds k3 of the reference model at 0.01"),
    Row(
        "gspo",
        _gspo(),
        _SEQUENCE,
        setting="sequence_level_importance_ratios=True, token_level_loss=False",
        note=_SHARED,
    ),
    Row("cispo", _cispo(0.2, 0.2), _TOKEN, "use_cispo=True"),
    Row("reinforce", "reinforce", _TOKEN, "disable_ppo_ratio=True"),
    Row(
        "tis",
        _around(_CLIP, "tis", ceiling=2.0),
        _TOKEN,
        setting="use_importance_sampling_correction=True, type tis, ratio 2",
    ),
    Row(
        "icepop",
        _around(_CLIP, "icepop", floor=0.5, ceiling=5.0),
        _TOKEN,
        setting="use_importance_sampling_correction=True, type icepop, ratio 0.5 to 5",
    ),
)

_SLIME = (
    Row("grpo", _CLIP, _SEQUENCE),
    Row("gspo", _gspo(), _SEQUENCE, "--advantage-estimator gspo", _SHARED),
    Row(
        "cispo",
        _cispo(0.2, 0.2),
        _SEQUENCE,
        setting="--advantage-estimator cispo",
        note="clips both sides; the paper leaves the lower one open",
    ),
    Row("tis", _around(_CLIP, "tis", ceiling=2.0), _SEQUENCE, "--use-tis"),
    Row("opsm", _around(_CLIP, "opsm", delta=1e-4), _SEQUENCE, "--use-opsm"),
)

_AREAL = (
    Row("ppo", _sampler(_CLIP), _TOKEN, note="two policies"),
    Row("decoupled", _CLIP, _TOKEN, "use_decoupled_loss=True", "no weight for the sampler"),
    Row(
        "decoupled+mask",
        _around(_CLIP, "icepop", floor=None, ceiling=5.0),
        _TOKEN,
        setting="use_decoupled_loss=True, rejection_sampling={}",
    ),
    Row(
        "loglinear",
        _around(_CLIP, "anchored", anchor="interpolated"),
        _TOKEN,
        setting="use_decoupled_loss=True, prox_logp_method=loglinear",
        note="A-3PO's anchor",
    ),
    Row("gspo", _sampler(_gspo()), _TOKEN, "importance_sampling_level=sequence", _SHARED),
    Row("sapo", _sampler(_SAPO), _TOKEN, "use_sapo_loss=True"),
    Row(
        "m2po",
        None,
        _TOKEN,
        setting="m2_threshold",
        note="budgets the proximal policy's ratio to the sampler, not the new policy's",
    ),
)

_TINKER = (
    Row(
        "importance_sampling",
        {"name": "importance_sampling", "anchor": "rollout"},
        "sum",
        note="the default of its cookbook before 0.6",
    ),
    Row("ppo", _sampler(_CLIP), "sum"),
    Row("cispo", _sampler(_cispo(1.0, 3.0)), "sum"),
    Row("dro", _squared("reinforce", 0.025, anchor="rollout"), "sum", "beta 0.05"),
    Row(
        "stable_reinforce",
        None,
        "sum",
        note="its server's, unpublished; the default of its cookbook since 0.6",
    ),
)

_UNSLOTH = (
    Row("bnpo", _CLIP, _TOKEN, note="adds k3 of the reference model at 0.001"),
    Row("grpo", _CLIP, _SEQUENCE),
    Row("dr_grpo", _CLIP, "dr_grpo"),
    Row(
        "dapo",
        {"name": "clip_higher", "low": 0.2, "high": 0.28},
        "dapo",
        note="sets epsilon_high to 0.28",
    ),
    Row("sapo", _SAPO, _SEQUENCE),
)

_TORCHTITAN = (
    Row("score_centering", _centered(_TRUNCATED), _TOKEN, note=_HEAD),
    Row("sc alone", _centered("reinforce"), _TOKEN, "max_ratio=None", _HEAD),
)

_MILES = (
    Row("score_centering", _centered("reinforce"), _SEQUENCE, note=_HEAD),
    Row("sc+tis", _centered(_TRUNCATED), _SEQUENCE, "mode tis", _HEAD),
    Row("sc+mis", _centered(_BANDED), _SEQUENCE, "mode mis", _HEAD),
)

ENGINES = {
    "trl": Engine("TRL", "1.16.0", "package", _TRL),
    "verl": Engine("verl", "0.9.1", "package", _VERL),
    "prime-rl": Engine("prime-rl", "2026-10-13", "formula", _PRIME_RL),
    "skyrl": Engine("SkyRL", "2026-08-21", "formula", _SKYRL),
    "openrlhf": Engine("OpenRLHF", "2026-08-13", "formula", _OPENRLHF),
    "nemo-rl": Engine("NeMo RL", "2026-08-22", "formula", _NEMO_RL),
    "slime": Engine("slime", "2026-08-21", "formula", _SLIME),
    "areal": Engine("AReaL", "2026-05-21", "formula", _AREAL),
    "tinker": Engine("Tinker", "2026-08-19", "formula", _TINKER),
    "unsloth": Engine("Unsloth", "2026-08-22", "formula", _UNSLOTH),
    "torchtitan": Engine("torchtitan (rl)", "2026-11-24", "formula", _TORCHTITAN),
    "miles": Engine("miles", "2026-11-24", "formula", _MILES),
}


def presets() -> dict[str, tuple[str, ...]]:
    """Each engine's losses that are methods, its default first: the arguments of `preset`.

    Example:
      >>> presets()["prime-rl"]
      ('ipo', 'icepop', 'ppo', 'cispo', 'ipo+sc', 'ipo+kl', 'dppo+kl')
    """
    return {
        name: tuple(row.name for row in engine.rows if row.method is not None)
        for name, engine in ENGINES.items()
    }


def preset(engine: str, loss: str | None = None) -> Method:
    """The method that has the gradient of an engine's loss.

    Args:
      engine: a key of `presets`.
      loss: one of the engine's losses; its default when None.

    Raises:
      ValueError: unknown engine or loss, or a loss that no method has the gradient of.

    Example:
      >>> preset("verl")
      DualClip(low=0.2, high=0.2, ceiling=3.0)
      >>> preset("tinker", "ppo").requires
      ('logp_rollout',)
    """
    if engine not in ENGINES:
        raise ValueError(unknown("engine", engine, ENGINES))
    losses = {row.name: row for row in ENGINES[engine].rows}
    name = next(iter(losses)) if loss is None else loss
    if name not in losses:
        raise ValueError(unknown(f"loss of {ENGINES[engine].title}", name, losses))
    row = losses[name]
    if row.method is None:
        raise ValueError(f"no method has the gradient of {engine}'s {name!r}: {row.note}.")
    return as_method(row.method)
