"""Checks of a verl configuration before a run starts, for errors verl reports late or never."""

import importlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from trustclip.constraints.base import Method, Trait
from trustclip.engines.limits import ENGINES, Remark, refusal
from trustclip.engines.verl.limits import (
    CORRECTION,
    DECISIVE,
    FORWARDED,
    LOSS_MODE,
    LOSS_MODES,
    TARGET,
    WATCH,
    check_watched,
    constraint,
    shadows,
)
from trustclip.support.names import nearest, unknown
from trustclip.support.reading import parse_yaml

#: Largest configuration that is read; verl's own, resolved, is 40 KB.
MOST_BYTES = 4 * 2**20
_REMEDY = (
    "give a resolved one: python -m verl.trainer.main_ppo ARGUMENTS --cfg job --resolve > verl.yaml"
)

#: Oldest and first unknown release of verl that the entry point and the loss's call are known for.
#: verl 0.9.0 takes GSPO's mean by sequences, whatever ``loss_agg_mode`` says.
RELEASES = ((0, 9, 1), (0, 10))

#: verl's own policy losses in those releases.
BUILT_IN = (
    *("vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean"),
    *("dro", "cispo", "bypass_mode"),
)

ACTOR = "actor_rollout_ref.actor"
POLICY_LOSS = f"{ACTOR}.policy_loss"
#: Whether advantages are divided by the standard deviation of their group.
NORM = "algorithm.norm_adv_by_std_in_grpo"
BYPASS = f"{CORRECTION}.bypass_mode"

#: Whether verl's engines hand on the log-probabilities that they sampled with.
CALCULATE = "actor_rollout_ref.rollout.calculate_log_probs"

#: Settings that only verl's own losses read, with their defaults.
_IGNORED = {
    **{f"{ACTOR}.{name}": 0.2 for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high")},
    f"{ACTOR}.clip_ratio_c": 3.0,
    f"{ACTOR}.tau_pos": 1.0,
    f"{ACTOR}.tau_neg": 1.05,
    f"{POLICY_LOSS}.clip_cov_ratio": 0.0002,
    f"{POLICY_LOSS}.clip_cov_lb": 1.0,
    f"{POLICY_LOSS}.clip_cov_ub": 5.0,
    f"{POLICY_LOSS}.kl_cov_ratio": 0.0002,
    f"{POLICY_LOSS}.ppo_kl_coef": 0.1,
    f"{POLICY_LOSS}.dro_beta": None,
}

#: Keys that a `TrustclipLossConfig` takes.
_OWN_KEYS = ("method", "shadows", "watched")
_KEYS = {
    "_target_",
    "loss_mode",
    "rollout_correction",
    *_OWN_KEYS,
    *(key.removeprefix(f"{POLICY_LOSS}.") for key in _IGNORED if key.startswith(POLICY_LOSS)),
}


def _error(text: str) -> Remark:
    return Remark("error", text)


@dataclass(frozen=True)
class Installed:
    """The verl installation in this environment."""

    version: str | None  # None where verl is not installed
    loss_modes: Collection[str] = (*BUILT_IN, *LOSS_MODES, WATCH)  # names in its registry
    plugin: bool = True  # whether verl imports trustclip's plugin automatically


def installed() -> Installed:
    """Inspect the verl installation in this environment; imports verl if it is installed."""
    try:
        version = metadata.version("verl")
    except metadata.PackageNotFoundError:
        return Installed(None)
    modes = importlib.import_module("verl.trainer.ppo.core_algos").POLICY_LOSS_REGISTRY
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    plugins = {name.strip() for name in policy.split(",")}
    entry_points = {point.name for point in metadata.entry_points(group="verl.plugins")}
    allowed = policy == "auto" or LOSS_MODE in plugins
    return Installed(version, tuple(modes), LOSS_MODE in entry_points and allowed)


def load(arguments: Sequence[str]) -> dict[str, Any]:
    """verl's configuration, resolved, in a YAML file, the only argument.

    Raises:
      ValueError: no file, or more than one argument; a file too large, or not resolved.
      FileNotFoundError: no such file.
    """
    if len(arguments) != 1 or not arguments[0].endswith((".yaml", ".yml")):
        raise ValueError(f"--verl reads one configuration, a YAML file; {_REMEDY}.")
    path = Path(arguments[0])
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} is larger than {MOST_BYTES // 2**20} MiB: no configuration.")
    content = parse_yaml(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or "defaults" in content:
        raise ValueError(f"{path} holds no resolved configuration; {_REMEDY}.")
    return content


def read(config: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """Value at a dotted path; ``default`` if there is none.

    Example:
      >>> read({"a": {"b": 1}}, "a.b"), read({}, "a.b", 2)
      (1, 2)
    """
    value: Any = config
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return default
        value = value[name]
    return value


def remarks(config: Mapping[str, Any], verl: Installed) -> Iterator[Remark]:
    """Errors and notes about a resolved configuration of ``verl.trainer.main_ppo``.

    Example:
      >>> config = {"actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": "trustclip_art"}}}}
      >>> for remark in remarks(config, Installed("0.9.1")):
      ...     print(remark.level, remark.text[:61])
      error unknown loss_mode 'trustclip_art'; did you mean 'trustclip_at
    """
    yield from _environment(verl)
    settings = read(config, POLICY_LOSS, {})
    mode = read(settings, "loss_mode", "vanilla")
    if not str(mode).startswith(LOSS_MODE):
        yield from _other_loss(mode, settings, verl)
        return
    chosen = None
    try:
        shadows(settings)
        if mode == WATCH:
            watched = check_watched(settings, verl.loss_modes)
            yield Remark("note", f"loss_mode={mode!r} trains with {watched!r} and reports on it.")
        else:
            chosen = constraint(settings)
    except ValueError as error:
        yield _error(str(error))
    yield from _import_problems(config, settings, verl)
    if mode == WATCH:
        return
    yield from _bypass_mode(config)
    yield from _ignored_settings(config, settings)
    if chosen is not None:
        yield from _meanings(config, chosen)
        yield from _sampler(config, settings, chosen)
        yield from _inert(config, chosen)
    yield from _scale(config)


def _environment(verl: Installed) -> Iterator[Remark]:
    if verl.version is None:
        yield Remark("note", "verl is not installed here: its own registry was not checked.")
        return
    release = tuple(int(part) for part in re.findall(r"\d+", verl.version)[:3])
    if not RELEASES[0] <= release < RELEASES[1]:
        yield Remark("note", f"verl {verl.version} is untested; known to work: 0.9 from 0.9.1 on.")


def _other_loss(mode: object, settings: Mapping[str, Any], verl: Installed) -> Iterator[Remark]:
    """Errors for a loss mode that is not trustclip's."""
    near = nearest(mode, LOSS_MODES)
    if mode not in verl.loss_modes:
        yield _error(unknown("loss_mode", mode, {*verl.loss_modes, *LOSS_MODES}))
    elif set(_OWN_KEYS) & set(settings) or settings.get("_target_") == TARGET:
        yield _error(
            f"loss_mode={mode!r} is verl's own and ignores `method`; set it to {LOSS_MODE!r}."
        )
    else:
        hint = f" (the nearest of trustclip's: {near!r})" if near else ""
        yield _error(f"loss_mode={mode!r} is verl's own: no method of trustclip acts{hint}.")


def _import_problems(
    config: Mapping[str, Any], settings: Mapping[str, Any], verl: Installed
) -> Iterator[Remark]:
    """Errors if verl's processes would not import trustclip or not accept its settings."""
    targeted = settings.get("_target_") == TARGET
    library = str(read(config, "actor_rollout_ref.model.external_lib") or "")
    if not (verl.plugin or targeted or "trustclip.engines.verl" in library):
        yield _error(
            "verl's processes will not import trustclip (its entry point `verl.plugins` is not "
            "installed, or VERL_USE_EXTERNAL_PLUGINS excludes it), and would fail at the first "
            f"update with an unknown loss mode; set {POLICY_LOSS}._target_={TARGET}."
        )
    own = [key for key in _OWN_KEYS if key in settings]
    if own and not targeted:
        yield _error(
            f"verl's own PolicyLossConfig takes no `{own[0]}`; set {POLICY_LOSS}._target_={TARGET}."
        )
    for key in settings:
        if key not in _KEYS:
            yield _error(unknown("key", key, _KEYS, of=POLICY_LOSS))


def _bypass_mode(config: Mapping[str, Any]) -> Iterator[Remark]:
    """Remarks about bypass mode, in which some of verl's trainers replace the policy loss."""
    if not read(config, BYPASS, False):
        return
    if not read(config, "trainer.use_v1", True):
        trainer = "the trainer of trainer.use_v1=False"
    elif "async_training" in config or "n_gpus_per_node" in read(config, "rollout", {}):
        trainer = "the experimental asynchronous trainer"
    else:
        yield Remark(
            "note",
            f"{BYPASS}=True: the ratio is measured against the policy that sampled, not against "
            "the one the update started from, and verl's rollout_is and rollout_rs do not act.",
        )
        return
    yield _error(
        f"{BYPASS}=True: {trainer} replaces loss_mode by its own `bypass_mode`, so no method of "
        "trustclip acts; set it to False."
    )


def _meanings(config: Mapping[str, Any], chosen: Method) -> Iterator[Remark]:
    """An error where verl's mask or advantages do not mean what the method reads off them."""
    supplied = ENGINES["verl"]
    masks = str(read(config, f"{CORRECTION}.rollout_rs") or "")
    if "token" in masks and not read(config, BYPASS, False):
        # A gap in the mask is then no end of a turn.
        why = f"{CORRECTION}.rollout_rs={masks} masks tokens inside of turns"
        supplied = replace(supplied, no_turns=why)
    if not read(config, NORM, True):
        supplied = replace(supplied, unscaled=f"{NORM}=False does otherwise; set it to True")
    if problem := refusal(chosen, supplied):
        yield _error(problem)


def _sampler(
    config: Mapping[str, Any], settings: Mapping[str, Any], chosen: Method
) -> Iterator[Remark]:
    """Remarks about where a method's log-probabilities of the sampler come from."""
    if "logp_rollout" not in chosen.requires:
        return
    own, forwarded = read(config, CORRECTION, {}) or {}, settings["rollout_correction"]
    for key in DECISIVE:
        if (own.get(key) or None) != (forwarded.get(key) or None):
            yield _error(
                f"{CORRECTION}.{key}={own.get(key)}, but {FORWARDED}.{key}={forwarded.get(key)}: "
                f"the loss would misread verl's weights; set '+{FORWARDED}=${{{CORRECTION}}}'."
            )
    if not read(config, CALCULATE, True):
        yield _error(f"{CALCULATE}=False: {chosen.name!r} needs what it computes; set it to True.")
    if not own.get("bypass_mode"):
        yield Remark(
            "note",
            f"{CORRECTION}.rollout_is: the weights give {chosen.name!r} the log-probabilities of "
            "the sampler and weigh no token; what corrects is the method.",
        )


def _ignored_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[Remark]:
    """Errors for changed settings that only verl's own losses read."""
    for path, default in _IGNORED.items():
        value = read(config, path, default)
        if value != default:
            instead = "dual_clip" if path.endswith("clip_ratio_c") else "the method"
            yield _error(
                f"{path}={value} has no effect: loss_mode={settings['loss_mode']!r} does not read "
                f"it; set the thresholds of {instead} in {POLICY_LOSS}.method."
            )


def _inert(config: Mapping[str, Any], chosen: Method) -> Iterator[Remark]:
    """An error for a schedule that trains on every token at ratio 1; else a note."""
    sizes = [
        read(config, path)
        for path in ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs")
    ]
    if not all(isinstance(size, int) for size in sizes) or read(config, BYPASS, False):
        return
    batch, mini, epochs = sizes
    updates = batch // mini * epochs
    text = (
        f"data.train_batch_size / ppo_mini_batch_size x ppo_epochs = {batch} / {mini} x {epochs} = "
        f"{updates} update{'s' if updates > 1 else ''} per generation"
    )
    if updates > 1 or Trait.ACTS_ON_POLICY in chosen.traits:
        yield Remark("note", f"{text}; {chosen.name!r} can act.")
    else:
        yield _error(
            f"the constraint {chosen.name!r} would be inert: {text}, so every token is trained on "
            f"at ratio 1, where no constraint acts; set {ACTOR}.ppo_epochs to 2, or "
            f"ppo_mini_batch_size to {max(batch // 2, 1)} or less."
        )


def _scale(config: Mapping[str, Any]) -> Iterator[Remark]:
    mode = read(config, f"{ACTOR}.loss_agg_mode")
    if mode == "seq-mean-token-sum-norm" and read(config, f"{ACTOR}.loss_scale_factor") is None:
        yield _error(
            f"{ACTOR}.loss_agg_mode={mode} without loss_scale_factor divides by the longest answer "
            "of each micro-batch, so the step size changes with the split; set it to "
            "data.max_response_length."
        )
