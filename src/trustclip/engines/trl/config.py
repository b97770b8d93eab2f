"""Settings of the TRL engine: `trl.GRPOConfig` with a method in place of its clip."""

# ruff: noqa: RUF009 (`_option` and `config_field` make a field of a dataclass)

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, get_args

from trustclip.constraints.base import HINTS, Method, Trait, methods
from trustclip.constraints.candidates import DEFAULT
from trustclip.constraints.registry import as_method
from trustclip.constraints.schedule import Schedule
from trustclip.constraints.shadow import shadow_methods
from trustclip.engines import limits
from trustclip.engines.limits import Supply
from trustclip.engines.settings import config_field
from trustclip.engines.trl.scoring.candidates import DRAWABLE, MOST
from trustclip.engines.trl.upstream import RELEASE, GRPOConfig, is_tested
from trustclip.support.names import unknown

_HEADS = Literal["auto", "trustclip", "trl"]
_DECODERS = Literal["auto", "transformers"]
_METRICS = Literal["brief", "full"]

if TYPE_CHECKING:
    _Methods = list[Any]
else:
    _Methods = list[str]  # as Transformers' HfArgumentParser parses the flag

#: Loss types of TRL that only aggregate; the others include a gate.
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")

#: TRL's settings of its own clip and their replacements; setting one is refused, never ignored.
REPLACED = {
    "epsilon": "method={'name': 'clip', 'epsilon': ...}",
    "epsilon_high": "method={'name': 'clip_higher', 'low': ..., 'high': ...}",
    "delta": "method={'name': 'dual_clip', 'ceiling': ...}",
    "importance_sampling_level": "method={'name': ..., 'level': 'sequence'}",
    "sapo_temperature_pos": "method={'name': 'soft_gate', 'temperature_positive': ...}",
    "sapo_temperature_neg": "method={'name': 'soft_gate', 'temperature_negative': ...}",
    "vespo_k_pos": "method={'name': 'vespo', 'k_positive': ...}",
    "vespo_k_neg": "method={'name': 'vespo', 'k_negative': ...}",
    "vespo_lambda_pos": "method={'name': 'vespo', 'lambda_positive': ...}",
    "vespo_lambda_neg": "method={'name': 'vespo', 'lambda_negative': ...}",
}

#: A level that TRL's own trainer refuses at its first loss: it would train with its own clip.
_LEVEL = "the method's, which `ConstrainedGRPOTrainer` alone trains with"

#: Integer settings and their minimum.
_AT_LEAST = {"inert_patience": 1, "exact_kl_every": 0, "candidates": 0, "num_iterations": 1}


def _option(default: Any, words: str) -> Any:
    """A field of the config, with its words in the help of Transformers' HfArgumentParser."""
    return field(default=default, metadata={"help": words})


@dataclass
class ConstrainedGRPOConfig(GRPOConfig):
    """`trl.GRPOConfig` with a method in place of TRL's clip.

    It has the settings of `trustclip.engines.settings.EngineSettings` too: ``method``, ``shadows``,
    ``allow_inert``, ``sampler``, ``replay`` and ``candidates``.

    Args:
      inert_patience: warn once when the gate has closed on no token for this many updates.
      head: output head that computes log-probabilities: ``"trustclip"`` (see `trustclip.head`),
        ``"trl"``, or ``"auto"``: trustclip's on a CPU, TRL's Triton kernels on a GPU.
      decoder: implementation of sampling: ``"transformers"``, or ``"auto"``:
        `trustclip.engines.trl.sampling` for the models it supports, with plain sampling, on a CPU;
        see ``docs/fast-paths.md``.
      share_prompts: score all completions of a prompt in a batch in one pass over that prompt, and
        nothing over padding: exact, to rounding. None decides by the lengths of prompts and
        completions, before training, and prints the decision. It needs the Llama family and
        trustclip's head.
      whole_groups: the completions of a prompt stay together in a generation's updates, as far as
        they fit; TRL deals them out one by one. Fewer prompts an update, so more of each is shared.
      skip_zero_advantage: leave completions that cannot move the policy, those of zero advantage,
        out of the forward and backward pass wherever the gradient is the same without them.
      gradient_checkpointing: as in TRL; None keeps the states instead, on a CPU, where they take an
        eighth of the free memory or less, and prints so. The gradient is the same bit for bit.
      metrics: ``"brief"`` logs what a person reads, at most 25 of our metrics; ``"full"`` all of
        them. With a recorder (`trustclip.findings.live.recorder.Recorder`) a log always has all.
      exact_kl_every: log the exact KL divergence of each token, and how the gate agrees with one
        on it, in every n-th generation; 0 for never. The training is bit for bit the same, and to
        rounding where prompts are shared, because these passes share none.

    Raises:
      ValueError: unknown method or hyper-parameter; a setting of TRL that cannot be honoured; a
        schedule under which the constraint is inert.

    Example:
      >>> args = ConstrainedGRPOConfig("out", method={"name": "atr", "delta": 0.07},
      ...     num_iterations=2, per_device_train_batch_size=8, use_cpu=True, bf16=False)
      >>> args.method.delta, args.schedule().updates_per_generation
      (0.07, 2.0)
    """

    _VALID_DICT_FIELDS: ClassVar = [*GRPOConfig._VALID_DICT_FIELDS, "method"]

    # `str` must come second: Transformers' HfArgumentParser parses the flag as that type.
    method: Method | str | dict[str, Any] | None = config_field("method")
    allow_inert: bool = config_field("allow_inert")
    inert_patience: int = _option(50, "Warn after this many updates in which no token was gated.")

    head: _HEADS = _option("auto", "Output head to use: auto, trustclip or trl.")
    decoder: _DECODERS = _option("auto", "Sampling code on a CPU: auto or transformers.")
    candidates: int | None = config_field("candidates")
    replay: bool = config_field("replay")
    share_prompts: bool | None = _option(None, "One pass over each prompt; None: where it pays.")
    whole_groups: bool = _option(False, "Keep the completions of a prompt in one update.")
    skip_zero_advantage: bool = _option(True, "Skip completions that cannot change the policy.")
    gradient_checkpointing: bool | None = _option(None, "As in TRL; None: by the memory.")
    metrics: _METRICS = _option("brief", "What is logged: brief, or full for every metric.")
    shadows: _Methods | None = config_field("shadows")
    exact_kl_every: int = _option(0, "Log exact KL every n-th generation; 0: never.")

    def __post_init__(self) -> None:
        if self.importance_sampling_level == _LEVEL:  # of a config's own values
            self.importance_sampling_level = "token"
        # `activation_checkpointing` is its name from Transformers 5 on.
        named = self.gradient_checkpointing, getattr(self, "activation_checkpointing", None)
        self.checkpoints_unasked = named == (None, None)
        if self.gradient_checkpointing is None:  # TRL's default, until the trainer knows the model
            self.gradient_checkpointing = named[1] is not False  # pyright: ignore
        super().__post_init__()
        for name, kinds in {"head": _HEADS, "decoder": _DECODERS, "metrics": _METRICS}.items():
            allowed = get_args(kinds)
            if getattr(self, name) not in allowed:
                raise ValueError(unknown(name, getattr(self, name), allowed))
        self.method = chosen = as_method("atr" if self.method is None else self.method)
        self.shadows = shadows(self.shadows or (), chosen, supply(self))  # type: ignore[assignment]
        if problems := [*_not_honoured(self, chosen)]:
            raise ValueError("cannot train with these settings: " + " ".join(problems))
        self.importance_sampling_level = _LEVEL
        acts = Trait.ACTS_ON_POLICY in chosen.traits
        if self.schedule().inert and not (self.allow_inert or acts):
            raise ValueError(self.schedule().explain_inert(chosen.name))

    def constraint(self) -> Method:
        """The method."""
        assert isinstance(self.method, Method)  # since `__post_init__`
        return self.method

    def kept_candidates(self) -> int:
        """How many of the sampler's likeliest tokens are kept at each position, or `DRAWABLE`.

        For a replay, vLLM returns all that top-k leaves.
        """
        if self.replay:
            return int(self.top_k) if self.use_vllm else DRAWABLE
        needed = "candidates" in self.constraint().requires
        return DEFAULT * needed if self.candidates is None else self.candidates

    def watched(self) -> list[Method]:
        """The shadows."""
        return cast("list[Method]", self.shadows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values from which ``ConstrainedGRPOConfig(**values)`` builds an equal config.

        Tokens of the hub are left out.
        """
        values = super().to_dict()
        values |= {name: None for name in values if name.endswith("_token")}
        # It follows from `steps_per_generation`, and TRL refuses both.
        values["generation_batch_size"] = None
        watched = [method.to_dict() for method in self.watched()]
        return {**values, "method": self.constraint().to_dict(), "shadows": watched}

    def schedule(self) -> Schedule:
        """The update schedule: how many updates use one generation."""
        return Schedule(
            int(self.steps_per_generation or 1),
            self.num_iterations,
            self.gradient_accumulation_steps,
        )


def supply(args: ConstrainedGRPOConfig) -> Supply:
    """What TRL passes to a method under these settings.

    The sampler's log-probabilities come from vLLM, trustclip's decoder, or `generate`, recorded.
    """
    most = limits.ENGINES["TRL"]
    if args.scale_rewards != "group":
        why = f"scale_rewards={args.scale_rewards!r} does otherwise; set scale_rewards='group'"
        most = replace(most, unscaled=why)
    for reason in _no_candidates(args):
        most = most.without("candidates", reason)
    if args.use_vllm or not args.use_transformers_continuous_batching:
        return most
    return most.without(
        "logp_rollout",
        "continuous batching returns none to TRL; set use_transformers_continuous_batching=False",
    )


def _no_candidates(args: ConstrainedGRPOConfig) -> Iterator[str]:
    """Settings under which no candidates are kept, each as a reason and what to do."""
    if args.candidates == 0:
        yield "`candidates` is 0; leave it out, or set how many to keep"
    if args.head == "trl":
        yield "head='trl' scores the sampled token alone; leave `head` out"
    if args.use_transformers_continuous_batching:
        yield (
            "continuous batching scores the sampled token alone; leave "
            "use_transformers_continuous_batching out"
        )
    if args.use_vllm and (args.candidates or 0) > MOST:
        yield f"vLLM is asked for {MOST} tokens at most, and `candidates` is {args.candidates}"


def _no_replay(args: ConstrainedGRPOConfig, chosen: Method) -> Iterator[str]:
    """Why the sampler's cut cannot be replayed under these settings, each as a sentence."""
    if not args.replay:
        return
    if args.use_vllm and args.vllm_importance_sampling_correction and not is_tested(RELEASE):
        yield (
            f"`replay` was not tested with trl {RELEASE}: from 1.17 on TRL corrects for the "
            "tokens that top-p or top-k cut off, and the same mass would be divided out twice. Set "
            "vllm_importance_sampling_correction=False, or leave `replay` out."
        )
    if args.candidates is not None:
        yield "`replay` takes as `candidates` what the sampler could draw: leave `candidates` out."
    elif "candidates" not in (supplied := supply(args)).fields:
        yield f"`replay` needs what the sampler could draw: {supplied.missing['candidates']}."
    if not any((args.top_p < 1, args.top_k, args.min_p)):
        yield (
            "`replay` has nothing to replay: no token is cut off; set top_p, top_k or min_p, or "
            "leave `replay` out."
        )
    elif args.use_vllm and not 0 < args.top_k <= MOST:
        yield (
            "`replay` asks vLLM for the tokens that top_k leaves, and not for its sampling mask, "
            f"which TRL does not turn on: set top_k, to {MOST} at most, beside top_p and min_p."
        )
    if args.beta:
        yield "`replay` and `beta` compare policies over different sets of tokens: leave one out."
    exact = [n for n in chosen.requires if n.startswith(("kl_", "top_k_", "logp_ref"))]
    if exact or args.exact_kl_every:
        what = f"{chosen.name!r}" if exact else "`exact_kl_every`"
        yield f"{what} is over all tokens, `replay` trains on a part of them: leave one out."


def shadows(
    specs: Iterable[Any], method: Method, supplied: Supply = limits.ENGINES["TRL"]
) -> list[Method]:
    """Shadows beside a method, checked: they get what the engine has at no cost.

    Raises:
      ValueError: one of them is unknown, listed twice, or needs more than that.
    """
    exact = {name for name in method.requires if name.startswith("kl_")}
    free = {"entropy", "keys", "logp_rollout", *exact} & supplied.fields
    return shadow_methods(specs, free, "TRL")


def too_small(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Settings of this engine out of their range, each with its error text."""
    for name, least in _AT_LEAST.items():
        if values.get(name) is not None and values[name] < least:
            yield name, f"must be at least {least}, got {values[name]}."


def replaced(args: Any) -> Iterator[str]:
    """One sentence per setting of TRL's own losses that is set and that the method replaces."""
    known = type(args).__dataclass_fields__
    for name, instead in REPLACED.items():
        if name in known and getattr(args, name) != known[name].default:
            yield f"{name}={getattr(args, name)!r} has no effect here; use {instead}."


def _not_honoured(args: ConstrainedGRPOConfig, chosen: Method) -> Iterator[str]:
    """One sentence per setting that would be silently ignored or wrong."""
    if args.loss_type not in LOSS_TYPES:
        others = " TRL's other loss types include their own gate; here the method defines it"
        name = HINTS.get(args.loss_type, args.loss_type)
        instead = f": method={name!r}." if name in methods() else "."
        yield f"loss_type is {args.loss_type!r}; allowed: {', '.join(LOSS_TYPES)}.{others}{instead}"
    yield from replaced(args)
    if args.share_prompts and args.head == "trl":
        yield "share_prompts needs trustclip's head, and head='trl' asks for TRL's: leave one out."
    if problem := limits.refusal(chosen, supplied := supply(args)):
        yield problem
    elif args.candidates and "candidates" not in supplied.fields:
        yield f"`candidates` cannot be recorded: {supplied.missing['candidates']}."
    yield from _no_replay(args, chosen)
    if (
        Trait.CORRECTS_SAMPLER in chosen.traits
        and args.use_vllm
        and args.vllm_importance_sampling_correction
    ):
        yield (
            f"{chosen.name!r} corrects for the sampler, and so does TRL: set "
            "vllm_importance_sampling_correction=False, or the correction is applied twice."
        )
    if Trait.REVERSES in chosen.traits and args.off_policy_mask_threshold is not None:
        yield (
            f"off_policy_mask_threshold reads the sign of the advantage, and {chosen.name!r} in "
            "this variant reverses it for tokens that it rolls back; set one of the two."
        )
    yield from (f"{name} {text}" for name, text in too_small(vars(args)))
