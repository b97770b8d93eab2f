"""TRL: train with any method in `GRPOTrainer`, without a copy of its loss.

TRL computes a loss whose gradient in the log-probability of a token is ``-w A`` before
aggregation. We let it, with its own clip opened wide, and give it per-token advantages
``c A / w`` instead of ``A``: the gradient becomes that of our method, and everything TRL does
around it (aggregation, KL to a reference, correction of the sampler's log-probabilities, entropy
bonus, LoRA, accumulation, distribution) stays TRL's. Two private names of TRL are relied on,
`_compute_loss` and `_get_per_token_logps_and_entropies`, and that the former reads
``inputs["advantages"]`` after calling the latter; the parity tests decide which releases qualify.
"""

import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

# pyright: reportPrivateImportUsage=false
from trl import GRPOTrainer, SFTConfig, SFTTrainer

from trustclip import diagnostics
from trustclip.batch import Surrogate, TokenBatch
from trustclip.engines.adapting import Adapting
from trustclip.engines.decoding import decoder_for, draws_plainly
from trustclip.engines.durable import Durable
from trustclip.engines.exact import Evidence, WatchesKL
from trustclip.engines.scoring import Asked, obstacle, use_head
from trustclip.engines.shares import GateShares, clip_ratios
from trustclip.engines.skipping import only_what_matters, rows_that_matter, widened
from trustclip.engines.trl_config import ConstrainedGRPOConfig, GRPOConfig
from trustclip.loss import gradient
from trustclip.masked import MAX_LOG_RATIO

__all__ = [
    "ConstrainedGRPOConfig",
    "ConstrainedGRPOTrainer",
    "DurableSFTTrainer",
    "GRPOConfig",
    "GRPOTrainer",
    "SFTConfig",
    "SFTTrainer",
]

#: Where batch statistics travel in TRL's dictionary of inputs.
_STATISTICS = "statistics/"

#: What TRL shows of the last generation: columns, and tables of them. Images are left out.
_LOGS, _TABLES = ("prompt", "completion", "advantages"), ("rewards", "extra")


class DurableSFTTrainer(Durable, SFTTrainer):
    """`trl.SFTTrainer` that continues exactly after a kill: see `Durable.train_durably`."""


class ConstrainedGRPOTrainer(Adapting, WatchesKL, GRPOTrainer):
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
        self._inputs: dict[str, Any] | None = None  # of the loss being computed, if one is
        self._scored: list[tuple[Tensor, Evidence | None]] | None = None  # while generating
        self._sampled: list[list[list[float]]] = []  # log-probabilities of what was just sampled
        self._windows = {"train": diagnostics.Window(), "eval": diagnostics.Window()}
        self._last_closed = 0
        self._shares = GateShares()
        super().__init__(model, reward_funcs, args, **kwargs)
        # TRL's own clip, wide open: its loss is -w A for any advantages.
        self.epsilon_low = self.epsilon_high = math.inf
        self._asked = self._choose_head()
        self._prepare_exact(self._asked)
        if any(isinstance(m, nn.Dropout) and m.p > 0 for m in self.model.modules()):
            warnings.warn(
                "the model has active dropout: two passes of one policy differ, so ratios differ "
                "from 1 before any update. Set disable_dropout=True, and lora_dropout=0.",
                stacklevel=2,
            )

    def _choose_head(self) -> Asked | None:
        """Put our output head into the model, where that is wanted or faster."""
        wanted = self.args.head
        reason = obstacle(self._unwrapped())
        if reason is None and (self.is_deepspeed_enabled or self.args.cast_lm_head_to_fp32):
            reason = "DeepSpeed or cast_lm_head_to_fp32 is on"
        if wanted == "trustclip" and reason is not None:
            raise ValueError(f"head='trustclip' cannot serve this model: {reason}. Use 'auto'.")
        on_cpu = self.accelerator.device.type == "cpu"
        if wanted == "trustclip" or (wanted == "auto" and on_cpu and reason is None):
            return use_head(self._unwrapped(), self.temperature)
        return None

    def get_train_dataloader(self) -> Any:
        loader: Any = super().get_train_dataloader()
        if self.accelerator.device.type == "cpu":
            loader.device = None  # a batch is texts, and moving them nowhere takes its time
        return loader

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        decoder = self._decoder()
        if decoder is None:
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        limit, ends = self.max_completion_length, set(self.eos_token_ids)
        decoded = decoder.decode(prompt_ids, limit, ends, self.temperature)
        self._sampled.append([completion.logps for completion in decoded])
        return [completion.tokens for completion in decoded], None

    def _decoder(self) -> Any:
        """Our decoding loop where it draws from the distribution that was asked for, or None."""
        ours = (
            self.args.decoder == "auto"
            and not (self.use_vllm or self.use_transformers_continuous_batching)
            and not self.args.generation_kwargs
            and draws_plainly(self.generation_config)
            and self.accelerator.distributed_type in ("NO", "MULTI_CPU")
        )
        return decoder_for(self._unwrapped()) if ours else None

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self._scored, self._sampled = [], []
        try:
            output = super()._generate_and_score_completions(inputs)
            scored = self._scored
        finally:
            self._scored = None
        ids, old = output["completion_ids"], output.get("old_per_token_logps")
        first = self.accelerator.process_index * len(ids)
        output["sample_index"] = torch.arange(first, first + len(ids), device=ids.device)
        output["generated"] = torch.full_like(output["sample_index"], self.state.global_step)
        output |= self._kept(next((seen for logps, seen in scored if logps is old), None))
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

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        policy, inputs, known = self._watched(), self._inputs, None
        if self._scored is not None:
            known = self._known(attention_mask, args)
            if known is not None and policy is None:
                return known, None, None
        rows = rows_that_matter(inputs) if inputs is not None and self._may_skip else None
        if rows is not None:
            input_ids, attention_mask = input_ids[rows], attention_mask[rows]
        if self._asked is not None:
            self._asked.entropy = kwargs.get("compute_entropy", False)
        with self._watching(self.accelerator.unwrap_model(model), policy) as seen:
            logps, entropies, aux = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, *args, **kwargs
            )
        evidence = None if seen is None else seen.of_completions(logps.shape[1])
        if inputs is not None:
            kl = self._kl(inputs, self._mask(inputs), evidence, rows)
            if rows is not None:
                logps, entropies = widened(inputs, rows, logps, entropies)
            self._constrain(inputs, logps.detach(), entropies.detach(), kl, rows)
        elif self._scored is not None:
            logps = logps if known is None else known
            self._scored.append((logps, evidence))
        return logps, entropies, aux

    def _known(self, attention_mask: Tensor, args: tuple[Any, ...]) -> Tensor | None:
        """Log-probabilities of the policy that has just sampled, where sampling has told them."""
        if len(self._sampled) != 1 or self.beta:
            return None
        length = args[0]
        if list(map(len, self._sampled[0])) != attention_mask[:, -length:].sum(dim=1).tolist():
            return None  # tools have added to what was sampled
        rows = [row + [0.0] * (length - len(row)) for row in self._sampled[0]]
        return torch.tensor(rows, device=attention_mask.device)

    @property
    def _may_skip(self) -> bool:
        """Whether a completion without an advantage is certain to have no gradient."""
        return (
            self.args.skip_zero_advantage
            and self.model.training
            and not (
                self.beta
                or self._entropy_bonus_enabled
                or self.aux_loss_enabled
                or self.top_entropy_quantile < 1
                or self.method.moves_without_advantage
                or self.method.statistics_over == "micro_batch"
            )
        )

    @torch.no_grad()
    def _constrain(
        self,
        inputs: dict[str, Any],
        logps: Tensor,
        entropy: Tensor,
        kl: dict[str, Tensor],
        rows: Tensor | None,
    ) -> None:
        """Put advantages into ``inputs`` under which TRL's gradient is the method's.

        ``rows`` are those that were scored, None for all; the others cannot matter.
        """
        if self._on_policy(inputs):
            inputs.pop("old_per_token_logps", None)  # so that the ratio is just 1
        old = inputs.get("old_per_token_logps")
        batch = self._tokens(inputs, logps, logps if old is None else old, entropy, kl)
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
        seen = batch if rows is None else only_what_matters(batch)
        self._windows[self._mode].add(seen, surrogate, self.method)
        self._measure(seen, surrogate)
        skipped = 0.0 if rows is None else 1 - len(rows) / len(logps)
        self._metrics[self._mode]["trustclip/skipped"].append(
            self.accelerator.gather(logps.new_tensor(skipped)).mean().item()
        )
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
        kl: dict[str, Tensor] | None = None,
    ) -> TokenBatch:
        """The `TokenBatch` of one of TRL's input dictionaries."""
        advantages = inputs["advantages"]
        if advantages.dim() == 1:
            advantages = advantages[:, None].expand_as(logps)
        statistics = {
            name.removeprefix(_STATISTICS): value
            for name, value in inputs.items()
            if name.startswith(_STATISTICS)
        }
        optional: dict[str, Any] = {
            "entropy": entropy,
            "keys": self._keys(inputs["sample_index"], logps.shape[1]),
            "statistics": statistics or None,
            **(kl or {}),
        }
        return TokenBatch(logps, old, advantages.to(logps.dtype), self._mask(inputs), **optional)

    def _mask(self, inputs: dict[str, Any]) -> Tensor:
        """Tokens that count. Shape [batch, time]."""
        return (inputs["completion_mask"] * inputs.get("tool_mask", 1)).bool()

    def _keys(self, sample_index: Tensor, length: int) -> Tensor:
        """A number of its own for every (update, sample, position). Shape [batch, length]."""
        samples = self.args.per_device_train_batch_size * int(self.args.steps_per_generation or 1)
        row = self.state.global_step * samples * self.accelerator.num_processes + sample_index
        position = torch.arange(length, device=row.device)
        # Tools can lengthen a completion past its limit; 2^20 positions hold any context.
        return row[:, None] * (1 << 20) + position

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
