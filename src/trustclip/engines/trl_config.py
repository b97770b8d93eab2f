"""Settings of the TRL engine: `trl.GRPOConfig` with a method in place of its clip."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

# No library of ours phones home, and importing one of theirs on a user's behalf must not either.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

# pyright: reportPrivateImportUsage=false
from trl import GRPOConfig

from trustclip.engines.schedule import Schedule
from trustclip.method import Method, method
from trustclip.names import unknown

_HEADS = Literal["auto", "trustclip", "trl"]
_DECODERS = Literal["auto", "transformers"]

#: Loss types of TRL that only aggregate; the others bring a gate of their own.
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")

#: TRL's own clip and what to say instead: ignored settings are refused, not ignored.
_REPLACED = {
    "epsilon": "method='clip', method_args={'epsilon': ...}",
    "epsilon_high": "method='clip_higher', method_args={'low': ..., 'high': ...}",
    "delta": "method='dual_clip', method_args={'ceiling': ...}",
    "importance_sampling_level": "method_args={'level': 'sequence'}",
}

#: Settings of ours that are counts, and the least of each.
_AT_LEAST = {"inert_patience": 1, "exact_kl_every": 0}


@dataclass
class ConstrainedGRPOConfig(GRPOConfig):
    """`trl.GRPOConfig` with a method in place of TRL's clip.

    Args:
      method: name of the constraint (see ``trustclip methods``), or ``"package.module:Class"``.
      method_args: its hyper-parameters, for example ``{"delta": 0.07}``.
      allow_inert: train although the schedule keeps the ratio at 1, where no constraint acts.
      inert_patience: warn once when the gate has closed on no token for this many updates.
      head: whose output head computes log-probabilities: ``"trustclip"`` (see `trustclip.head`),
        ``"trl"``, or ``"auto"``: ours on a CPU, TRL's Triton kernels on a GPU.
      decoder: who samples: ``"transformers"``, or ``"auto"``: `trustclip.engines.decoding` for the
        models it knows, with plain sampling, on a CPU. (vLLM comes before both.)
      skip_zero_advantage: leave completions that cannot move the policy, those of zero advantage,
        out of the forward and backward pass wherever the gradient is the same without them.
      exact_kl_every: in every so many-th generation, also compute the exact KL divergence of each
        token trained on, and how the gate agrees with one that sees it; 0 for never. The training
        stays the same to the last bit.

    Raises:
      ValueError: unknown method or hyper-parameter; a setting of TRL that cannot be honoured; a
        schedule under which the constraint is inert.

    Example:
      >>> args = ConstrainedGRPOConfig("out", method="atr", method_args={"delta": 0.07},
      ...     num_iterations=2, per_device_train_batch_size=8, use_cpu=True, bf16=False)
      >>> args.constraint().delta, args.schedule().updates_per_generation
      (0.07, 2.0)
    """

    _VALID_DICT_FIELDS: ClassVar = [*GRPOConfig._VALID_DICT_FIELDS, "method_args"]

    method: str = field(
        default="atr", metadata={"help": "Name of the constraint, or package.module:Class."}
    )
    method_args: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Hyper-parameters of the constraint, as a mapping."}
    )
    allow_inert: bool = field(
        default=False, metadata={"help": "Train although the schedule makes the method inert."}
    )
    inert_patience: int = field(
        default=50, metadata={"help": "Warn when the gate closed on no token for this long."}
    )

    head: _HEADS = field(
        default="auto", metadata={"help": "Whose output head: auto, trustclip or trl."}
    )
    decoder: _DECODERS = field(
        default="auto", metadata={"help": "Who samples on a CPU: auto or transformers."}
    )
    skip_zero_advantage: bool = field(
        default=True, metadata={"help": "Leave out completions that cannot move the policy."}
    )
    exact_kl_every: int = field(
        default=0, metadata={"help": "Watch the exact KL in every so many-th generation."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in (("head", get_args(_HEADS)), ("decoder", get_args(_DECODERS))):
            if getattr(self, name) not in allowed:
                raise ValueError(unknown(name, getattr(self, name), allowed))
        chosen = self.constraint()
        problems = [*_not_honoured(self, chosen)]
        if problems:
            raise ValueError("cannot train with these settings: " + " ".join(problems))
        if self.schedule().inert and not (self.allow_inert or chosen.acts_on_policy):
            raise ValueError(self.schedule().explain_inert(self.method))

    def constraint(self) -> Method:
        """The method that `method` and `method_args` name."""
        return method(self.method, **(self.method_args or {}))  # type: ignore[arg-type]

    def schedule(self) -> Schedule:
        """How many updates one generation serves."""
        return Schedule(
            int(self.steps_per_generation or 1),
            self.num_iterations,
            self.gradient_accumulation_steps,
        )


def too_small(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Settings of ours below what they may be, and what each must be."""
    for name, least in _AT_LEAST.items():
        if name in values and values[name] < least:
            yield name, f"must be at least {least}, got {values[name]}."


def _not_honoured(args: ConstrainedGRPOConfig, chosen: Method) -> Iterator[str]:
    """One sentence per setting that would be silently ignored or wrong."""
    if args.loss_type not in LOSS_TYPES:
        yield unknown("loss_type", args.loss_type, LOSS_TYPES) + (
            " The others bring a gate of their own; a method names one here."
        )
    for name, instead in _REPLACED.items():
        default = GRPOConfig.__dataclass_fields__[name].default
        if getattr(args, name) != default:
            yield f"{name}={getattr(args, name)!r} has no effect here; use {instead}."
    if chosen.needs_kl_gradient:
        yield (
            f"{args.method!r} in this variant needs the gradient of the full KL, and TRL passes "
            "only that of the sampled token's log-probability; use trustclip.policy_loss."
        )
    if chosen.reverses and args.off_policy_mask_threshold is not None:
        yield (
            f"off_policy_mask_threshold reads the sign of the advantage, and {args.method!r} in "
            "this variant reverses it for tokens that it rolls back; set one of the two."
        )
    yield from (f"{name} {text}" for name, text in too_small(vars(args)))
