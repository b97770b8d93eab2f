"""TRL: train with any method in `GRPOTrainer`, without a copy of its loss.

TRL computes a loss whose gradient in the log-probability of a token is ``-w A`` before
aggregation. We let it, with its own clip opened wide, and give it per-token advantages
``c A / w`` instead of ``A``: the gradient becomes that of our method, and everything TRL does
around it (aggregation, KL to a reference, correction of the sampler's log-probabilities, entropy
bonus, LoRA, accumulation, distribution) stays TRL's. Two private names of TRL are relied on,
`_compute_loss` and `_get_per_token_logps_and_entropies`, and that the former reads
``inputs["advantages"]`` after calling the latter; the parity tests decide which releases qualify.
"""

import contextlib
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

# No library of ours phones home, and importing one of theirs on a user's behalf must not either.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

# pyright: reportPrivateImportUsage=false
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from trustclip import diagnostics
from trustclip.batch import Surrogate, TokenBatch
from trustclip.engines import hidden
from trustclip.engines.adapting import Adapting
from trustclip.engines.durable import Durable
from trustclip.engines.schedule import Schedule
from trustclip.engines.shares import GateShares, clip_ratios
from trustclip.head import exact_kl
from trustclip.loss import gradient
from trustclip.masked import MAX_LOG_RATIO
from trustclip.method import Method, method
from trustclip.names import unknown

__all__ = [
    "ConstrainedGRPOConfig",
    "ConstrainedGRPOTrainer",
    "DurableSFTTrainer",
    "SFTConfig",
    "SFTTrainer",
]

#: Loss types of TRL that only aggregate; the others bring a gate of their own.
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")

#: TRL's own clip and what to say instead: ignored settings are refused, not ignored.
_REPLACED = {
    "epsilon": "method='clip', method_args={'epsilon': ...}",
    "epsilon_high": "method='clip_higher', method_args={'low': ..., 'high': ...}",
    "delta": "method='dual_clip', method_args={'ceiling': ...}",
    "importance_sampling_level": "method_args={'level': 'sequence'}",
}


#: Where batch statistics travel in TRL's dictionary of inputs.
_STATISTICS = "statistics/"

#: What TRL shows of the last generation: columns, and tables of them. Images are left out.
_LOGS, _TABLES = ("prompt", "completion", "advantages"), ("rewards", "extra")


@dataclass
class ConstrainedGRPOConfig(GRPOConfig):
    """`trl.GRPOConfig` with a method in place of TRL's clip.

    Args:
      method: name of the constraint (see ``trustclip methods``), or ``"package.module:Class"``.
      method_args: its hyper-parameters, for example ``{"delta": 0.07}``.
      allow_inert: train although the schedule keeps the ratio at 1, where no constraint acts.
      inert_patience: warn once when the gate has closed on no token for this many updates.

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

    def __post_init__(self) -> None:
        super().__post_init__()
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
    if args.inert_patience < 1:
        yield f"inert_patience must be at least 1, got {args.inert_patience}."


class DurableSFTTrainer(Durable, SFTTrainer):
    """`trl.SFTTrainer` that continues exactly after a kill: see `Durable.train_durably`."""


class ConstrainedGRPOTrainer(Adapting, Durable, GRPOTrainer):
    """`trl.GRPOTrainer` that trains with the method its config names.

    Takes the arguments of `trl.GRPOTrainer`; ``args`` must be a `ConstrainedGRPOConfig`. Logs
    ``trustclip/*`` (see `trustclip.diagnostics`) and gives ``clip_ratio/*`` the values of the
    method's own gate. `train_durably` continues exactly after a kill.

    Raises:
      ValueError: the method needs something that this model does not have.
    """

    args: ConstrainedGRPOConfig
    accelerator: Any
    model: Any
    max_completion_length: int
    _tag_names: ClassVar = ["trl", "grpo", "trustclip"]
    _name = "GRPO with a policy-divergence constraint"
    _carried = (
        "_buffered_inputs",  # the samples being trained on,
        "_step",  # the place in them,
        "_old_head",  # and the head of the policy that sampled them
        "_last_closed",
        "_total_train_tokens",
        "_current_train_step_time",
        "entropy_coef",
        "_last_world_entropy",
        "_entropy_window_stats",
    )
    _shape = (*Durable._shape, "num_generations", "steps_per_generation", "num_iterations")

    #: Called on the first rank once per update with the share of gated tokens of each completion
    #: trained on: ``{"step": n, "generated": [...], "index": [...], "gated": [...]}``. A completion
    #: was generated after ``generated`` updates, as number ``index`` of that generation. Set it on
    #: every rank or on none.
    on_gates: Callable[[dict[str, Any]], None] | None = None

    def __init__(self, model: Any, reward_funcs: Any = None, args: Any = None, **kwargs: Any):
        if not isinstance(args, ConstrainedGRPOConfig):
            raise ValueError(f"`args` must be a ConstrainedGRPOConfig, got {type(args).__name__}.")
        self.method = args.constraint()
        self._needs_hidden = any(name.startswith("kl_") for name in self.method.requires)
        self._inputs: dict[str, Any] | None = None  # of the loss being computed, if one is
        self._scored: list[tuple[Tensor, Tensor | None]] | None = None  # while generating
        self._old_head: Tensor | None = None
        self._windows = {"train": diagnostics.Window(), "eval": diagnostics.Window()}
        self._last_closed = 0
        self._shares = GateShares()
        super().__init__(model, reward_funcs, args, **kwargs)
        # TRL's own clip, wide open: its loss is -w A for any advantages.
        self.epsilon_low = self.epsilon_high = math.inf
        if self._needs_hidden:
            hidden.check_head(self.accelerator.unwrap_model(self.model))
        if any(isinstance(m, nn.Dropout) and m.p > 0 for m in self.model.modules()):
            warnings.warn(
                "the model has active dropout: two passes of one policy differ, so ratios differ "
                "from 1 before any update. Set disable_dropout=True, and lora_dropout=0.",
                stacklevel=2,
            )

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self._scored = []
        try:
            output = super()._generate_and_score_completions(inputs)
            scored = self._scored
        finally:
            self._scored = None
        ids, old = output["completion_ids"], output.get("old_per_token_logps")
        first = self.accelerator.process_index * len(ids)
        output["sample_index"] = torch.arange(first, first + len(ids), device=ids.device)
        output["generated"] = torch.full_like(output["sample_index"], self.state.global_step)
        if old is not None and self._needs_hidden:
            output["old_hidden"] = next(states for logps, states in scored if logps is old)
            self._old_head = hidden.trained_head(self.accelerator.unwrap_model(self.model))
        if old is not None and self.method.statistics_over == "generation":
            statistics = self.method.statistics(self._tokens(output, old, old), self._sum)
            output |= {_STATISTICS + name: value for name, value in statistics.items()}
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._inputs = dict(inputs)
        try:
            loss = super()._compute_loss(model, self._inputs)
            if "gate" not in self._inputs:
                raise RuntimeError(
                    "this release of TRL computed its loss without asking for log-probabilities, "
                    "so no constraint acted; use a release that trustclip's requirements allow."
                )
            self._log_clip_ratios(*self._inputs["gate"])
            return loss
        finally:
            self._inputs = None

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        watched = self._needs_hidden and (self._inputs, self._scored) != (None, None)
        unwrapped = self.accelerator.unwrap_model(model)
        with hidden.captured(unwrapped) if watched else contextlib.nullcontext([]) as states:
            scored = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        logps, entropies, _ = scored
        last = hidden.of_completions(states, logps.shape[1]) if states else None
        if self._inputs is not None:
            self._constrain(self._inputs, logps.detach(), entropies.detach(), last)
        elif self._scored is not None:
            self._scored.append((logps, last))
        return scored

    @torch.no_grad()
    def _constrain(
        self, inputs: dict[str, Any], logps: Tensor, entropy: Tensor, states: Tensor | None
    ) -> None:
        """Put advantages into ``inputs`` under which TRL's gradient is the method's."""
        old = inputs.get("old_per_token_logps")
        batch = self._tokens(inputs, logps, logps if old is None else old, entropy, states)
        if self.method.statistics_over and batch.statistics is None:
            batch = replace(batch, statistics=self.method.statistics(batch, self._sum))
        c, surrogate = gradient(self.method, batch)
        x = batch.log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        if old is not None:
            # TRL takes the exponential of every token, masked ones and runaways too.
            harmless = batch.mask & (x == batch.log_ratio)
            inputs["old_per_token_logps"] = torch.where(harmless, old, logps - x)
        inputs["advantages"] = c / x.exp()
        inputs["gate"] = (batch, surrogate)
        self._windows[self._mode].add(batch, surrogate)
        self._measure(batch, surrogate)
        if self.on_gates is not None and self._mode == "train":
            self._shares.add(inputs["generated"], inputs["sample_index"], batch, surrogate)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        if self.on_gates is not None and self.accelerator.sync_gradients:
            row = self._shares.read(self.accelerator.gather)
            if self.accelerator.is_main_process:
                self.on_gates({"step": self.state.global_step + 1, **row})
        return loss

    def _progress(self) -> dict[str, Any]:
        logs = self._logs if self.log_completions else {}
        return super()._progress() | {
            "windows": {mode: window.state_dict() for mode, window in self._windows.items()},
            "logs": {name: list(logs[name]) for name in _LOGS if logs},
            "tables": {
                name: {column: list(values) for column, values in logs[name].items()}
                for name in _TABLES
                if logs
            },
        }

    def _restore(self, progress: dict[str, Any]) -> None:
        super()._restore(progress)
        for mode, window in progress["windows"].items():
            self._windows[mode].load_state_dict(window)
        for name, values in progress["logs"].items():
            self._logs[name].extend(values)
        for name, table in progress["tables"].items():
            for column, values in table.items():
                self._logs[name][column].extend(values)

    def _tokens(
        self,
        inputs: dict[str, Any],
        logps: Tensor,
        old: Tensor,
        entropy: Tensor | None = None,
        states: Tensor | None = None,
    ) -> TokenBatch:
        """The `TokenBatch` of one of TRL's input dictionaries."""
        advantages = inputs["advantages"]
        if advantages.dim() == 1:
            advantages = advantages[:, None].expand_as(logps)
        mask = (inputs["completion_mask"] * inputs.get("tool_mask", 1)).bool()
        statistics = {
            name.removeprefix(_STATISTICS): value
            for name, value in inputs.items()
            if name.startswith(_STATISTICS)
        }
        optional: dict[str, Any] = {
            "entropy": entropy,
            "keys": self._keys(inputs["sample_index"], logps.shape[1]),
            "statistics": statistics or None,
        }
        if self._needs_hidden and states is not None:
            for name in {"kl_old_new", "kl_new_old"}.intersection(self.method.requires):
                optional[name] = self._exact_kl(name, states, inputs.get("old_hidden"), mask)
        return TokenBatch(logps, old, advantages.to(logps.dtype), mask, **optional)

    def _keys(self, sample_index: Tensor, length: int) -> Tensor:
        """A number of its own for every (update, sample, position). Shape [batch, length]."""
        samples = self.args.per_device_train_batch_size * int(self.args.steps_per_generation or 1)
        row = self.state.global_step * samples * self.accelerator.num_processes + sample_index
        position = torch.arange(length, device=row.device)
        # Tools can lengthen a completion past its limit; 2^20 positions hold any context.
        return row[:, None] * (1 << 20) + position

    def _exact_kl(self, name: str, new: Tensor, old: Tensor | None, mask: Tensor) -> Tensor:
        """Exact KL at the unmasked positions, 0 elsewhere. Shape [batch, time]."""
        kl = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
        if old is None:  # the policy is still the one that sampled
            return kl
        head = hidden.head(self.accelerator.unwrap_model(self.model))
        order = "old_new" if name == "kl_old_new" else "new_old"
        kl[mask] = exact_kl(
            new[mask], old[mask], head.weight, self._old_head, order,
            bias=head.bias, temperature=self.temperature,
        ).float()  # fmt: skip
        return kl

    def _sum(self, x: Tensor) -> Tensor:
        """Sum over ranks."""
        return self.accelerator.reduce(x, reduction="sum")  # type: ignore[return-value]

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    def _log_clip_ratios(self, batch: TokenBatch, surrogate: Surrogate) -> None:
        """Overwrite what TRL has just logged about its own clip, which is wide open."""
        shares = clip_ratios(batch, surrogate, self._sum, self.accelerator.gather)
        for name, value in shares.items():
            self._metrics[self._mode][f"clip_ratio/{name}"][-1] = value

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        window, self._windows[self._mode] = self._windows[self._mode], diagnostics.Window()
        summary = window.read(self._sum)
        prefix = "trustclip/" if self._mode == "train" else "eval_trustclip/"
        logs.update({prefix + name: value for name, value in summary.items()})
        if self._mode == "train" and summary:
            self._watch_gate(summary)
        super().log(logs, start_time)

    def _watch_gate(self, summary: dict[str, float]) -> None:
        """Warn once when the constraint has done nothing for ``inert_patience`` updates."""
        step = self.state.global_step
        if summary["gated"] > 0 or (not self.method.cuts and summary["off_policy"] > 0):
            self._last_closed = step
        elif step - self._last_closed >= self.args.inert_patience:
            self._last_closed = sys.maxsize  # said once
            warnings.warn(
                f"the constraint {self.args.method!r} has been inert for "
                f"{self.args.inert_patience} updates: its gate closed on no token (mean k3 "
                f"{summary['k3']:.2e} nats). Its threshold is too wide for this learning rate and "
                "number of updates per generation.",
                stacklevel=2,
            )
