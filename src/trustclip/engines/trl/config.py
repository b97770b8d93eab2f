"""Settings of the TRL engine: `trl.GRPOConfig` with a method in place of its clip."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, get_args

from trustclip.constraints.base import Method, Trait
from trustclip.constraints.names import unknown
from trustclip.constraints.registry import as_method, with_arguments
from trustclip.constraints.shadow import shadow_methods
from trustclip.engines import limits
from trustclip.engines.schedule import Schedule
from trustclip.engines.trl.upstream import GRPOConfig

_HEADS = Literal["auto", "trustclip", "trl"]
_DECODERS = Literal["auto", "transformers"]

if TYPE_CHECKING:
    _Methods = list[Any]
else:
    _Methods = list[str]  # as Transformers' HfArgumentParser parses the flag

#: Loss types of TRL that only aggregate; the others include a gate.
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")

#: Optional fields of `TokenBatch` that the engine supplies; the sampler's log-probabilities, where
#: something gives them (see `trustclip.engines.trl.fast_paths.sampler_missing`).
SUPPLIED = {"entropy", "keys", "kl_old_new", "kl_new_old", "top_k_kl", "top_k_tv", "logp_rollout"}

#: TRL's settings of its own clip and their replacements; setting one is refused, never ignored.
_REPLACED = {
    "epsilon": "method={'name': 'clip', 'epsilon': ...}",
    "epsilon_high": "method={'name': 'clip_higher', 'low': ..., 'high': ...}",
    "delta": "method={'name': 'dual_clip', 'ceiling': ...}",
    "importance_sampling_level": "method={'name': ..., 'level': 'sequence'}",
}

#: Integer settings of this engine and their minimum.
_AT_LEAST = {"inert_patience": 1, "exact_kl_every": 0}


@dataclass
class ConstrainedGRPOConfig(GRPOConfig):
    """`trl.GRPOConfig` with a method in place of TRL's clip.

    Args:
      method: the constraint: a `trustclip.Method`, a name (see ``trustclip methods``, or
        ``"package.module:Class"``), or a mapping, for example ``{"name": "atr", "delta": 0.07}``;
        "atr" when None. It becomes a `trustclip.Method`, built once; `to_dict` has the mapping.
      method_args: deprecated: hyper-parameters, where ``method`` is a name.
      allow_inert: train although the schedule keeps the ratio at 1, where no constraint acts.
      inert_patience: warn once when the gate has closed on no token for this many updates.
      head: output head that computes log-probabilities: ``"trustclip"`` (see `trustclip.head`),
        ``"trl"``, or ``"auto"``: trustclip's on a CPU, TRL's Triton kernels on a GPU.
      decoder: implementation of sampling: ``"transformers"``, or ``"auto"``:
        `trustclip.engines.trl.decoding` for the models it supports, with plain sampling, on a CPU;
        see ``docs/fast-paths.md``.
      skip_zero_advantage: leave completions that cannot move the policy, those of zero advantage,
        out of the forward and backward pass wherever the gradient is the same without them.
      shadows: methods to watch with: ``trustclip/shadow/*`` logs what they would have kept of the
        same tokens; see `trustclip.constraints.shadow`. The training is bit for bit the same.
      exact_kl_every: log the exact KL divergence of each token, and how the gate agrees with one
        on it, in every n-th generation; 0 for never. The training is bit for bit the same.

    Raises:
      ValueError: unknown method or hyper-parameter; a setting of TRL that cannot be honoured; a
        schedule under which the constraint is inert.

    Example:
      >>> args = ConstrainedGRPOConfig("out", method={"name": "atr", "delta": 0.07},
      ...     num_iterations=2, per_device_train_batch_size=8, use_cpu=True, bf16=False)
      >>> args.method.delta, args.schedule().updates_per_generation
      (0.07, 2.0)
    """

    _VALID_DICT_FIELDS: ClassVar = [*GRPOConfig._VALID_DICT_FIELDS, "method", "method_args"]

    # `str` must come second: Transformers' HfArgumentParser parses the flag as that type.
    method: Method | str | dict[str, Any] | None = field(
        default=None, metadata={"help": "The constraint: a name, or JSON of name and values."}
    )
    method_args: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Deprecated: hyper-parameters of the constraint."}
    )
    allow_inert: bool = field(
        default=False, metadata={"help": "Train even if the schedule makes the method inert."}
    )
    inert_patience: int = field(
        default=50, metadata={"help": "Warn after this many updates in which no token was gated."}
    )

    head: _HEADS = field(
        default="auto", metadata={"help": "Output head to use: auto, trustclip or trl."}
    )
    decoder: _DECODERS = field(
        default="auto", metadata={"help": "Sampling code on a CPU: auto or transformers."}
    )
    skip_zero_advantage: bool = field(
        default=True, metadata={"help": "Skip completions that cannot change the policy."}
    )
    shadows: _Methods | None = field(
        default=None, metadata={"help": "Methods to watch with, without training on them."}
    )
    exact_kl_every: int = field(
        default=0, metadata={"help": "Log exact KL every n-th generation; 0: never."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in (("head", get_args(_HEADS)), ("decoder", get_args(_DECODERS))):
            if getattr(self, name) not in allowed:
                raise ValueError(unknown(name, getattr(self, name), allowed))
        chosen = as_method(with_arguments(self.method or "atr", self.method_args))  # type: ignore[arg-type]
        self.method, self.method_args = chosen, None
        self.shadows = shadows(self.shadows or (), chosen)  # type: ignore[assignment]
        problems = [*_not_honoured(self, chosen)]
        if problems:
            raise ValueError("cannot train with these settings: " + " ".join(problems))
        acts = Trait.ACTS_ON_POLICY in chosen.traits
        if self.schedule().inert and not (self.allow_inert or acts):
            raise ValueError(self.schedule().explain_inert(chosen.name))

    def constraint(self) -> Method:
        """The method."""
        assert isinstance(self.method, Method)  # since `__post_init__`
        return self.method

    def watched(self) -> list[Method]:
        """The shadows."""
        return cast("list[Method]", self.shadows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values from which ``ConstrainedGRPOConfig(**values)`` builds an equal config."""
        watched = [method.to_dict() for method in self.watched()]
        return {**super().to_dict(), "method": self.constraint().to_dict(), "shadows": watched}

    def schedule(self) -> Schedule:
        """The update schedule: how many updates are made with one generation."""
        return Schedule(
            int(self.steps_per_generation or 1),
            self.num_iterations,
            self.gradient_accumulation_steps,
        )


def refusal(method: Method) -> str | None:
    """The reason why TRL cannot train with a method, and what to use instead; None if it can."""
    return limits.refusal(method, "TRL", SUPPLIED, whole_loop=True)


def shadows(specs: Iterable[Any], method: Method) -> list[Method]:
    """Shadows beside a method, checked: they get what the engine has at no cost.

    Raises:
      ValueError: one of them is unknown, listed twice, or needs more than that.
    """
    exact = {name for name in method.requires if name.startswith("kl_")}
    return shadow_methods(specs, {"entropy", "keys", "logp_rollout", *exact}, "TRL")


def too_small(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Settings of this engine below their minimum, each with its error text."""
    for name, least in _AT_LEAST.items():
        if name in values and values[name] < least:
            yield name, f"must be at least {least}, got {values[name]}."


def _not_honoured(args: ConstrainedGRPOConfig, chosen: Method) -> Iterator[str]:
    """One sentence per setting that would be silently ignored or wrong."""
    if args.loss_type not in LOSS_TYPES:
        yield unknown("loss_type", args.loss_type, LOSS_TYPES) + (
            " TRL's other loss types include their own gate; here the method defines it."
        )
    for name, instead in _REPLACED.items():
        default = GRPOConfig.__dataclass_fields__[name].default
        if getattr(args, name) != default:
            yield f"{name}={getattr(args, name)!r} has no effect here; use {instead}."
    if problem := refusal(chosen):
        yield problem
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
