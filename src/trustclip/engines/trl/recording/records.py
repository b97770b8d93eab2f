"""What a trainer reports to its recorder about each generation and update."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from trustclip.constraints.base import Method
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.shadow import WatchedWindow
from trustclip.engines.trl.inputs import token_mask
from trustclip.engines.trl.recording.mismatch import Mismatch
from trustclip.engines.trl.recording.shares import gate_counts, gate_shares
from trustclip.engines.trl.recording.tokens import TokenSampler

#: Metrics that a log has for whoever reads it without our programs, beside those of methods and
#: settings that have some of their own (`_ASKED_FOR`). ``docs/metrics.toml`` says what to do.
BRIEF = {
    *("gated", "gated/positive_above", "gated/positive_below", "gated/negative_above"),
    *("gated/negative_below", "advantage_cut", "ratio", "ratio_q01", "ratio_q99", "k3", "ess"),
    *("off_policy", "entropy", "tokens", "nonfinite", "zero_advantage"),
}
#: These metrics are of a sampler that is another program than the trainer.
BRIEF_OF_SAMPLER = {
    *("sampler/k3", "sampler/abs", "sampler/sequence_ess"),
    *("sampler/gated_old", "sampler/gated_rollout"),
}
_ASKED_FOR = ("threshold/", "penalty", "agreement/", "kl_", "shadow/", "drift/share")


@dataclass(frozen=True)
class Generation:
    """One generation of this rank's completions, rewarded."""

    step: int  # updates done when it was sampled
    index: Sequence[int]  # number of each completion in the generation, over all ranks
    rows: Sequence[Mapping[str, Any]]  # of the data set, that the completions answer
    completions: Sequence[Any]  # as reward functions get them: texts, or lists of messages
    tokens: Sequence[Sequence[int]]  # ids of each completion
    rewards: Mapping[str, Sequence[float]]  # by name of the reward function; NaN where it gave none
    total: Sequence[float]  # their weighted sum
    advantages: Tensor  # [batch]


def surprisal(sums: Tensor, of_each: int) -> tuple[float | None, float | None]:
    r"""Entropy of the policy that sampled, nats a token, and its standard error over problems.

    $E[-\log\pi(y_t)]$ is the entropy at $t$, so the mean of $-\log\pi$ over all tokens estimates
    the mean entropy without a bias, with or without an advantage. None without a token, and for the
    error of one problem.

    Args:
      sums: of each completion the sum of $-\log\pi$ and its tokens. Shape [completions, 2].
      of_each: completions of each problem, which follow one another.

    Example:
      >>> surprisal(torch.tensor([[2.0, 4.0], [2.0, 4.0], [4.0, 4.0], [4.0, 4.0]]), 2)
      (0.75, 0.25)
    """
    problems = sums.double().cpu().view(-1, of_each, 2).sum(dim=1)  # [problems, 2]
    total, tokens = problems.sum(dim=0)
    if tokens == 0:
        return None, None
    entropy, many = total / tokens, len(problems)
    rest = problems[:, 0] - entropy * problems[:, 1]
    error = (rest.square().sum() * many / max(many - 1, 1)).sqrt() / tokens
    return entropy.item(), error.item() if many > 1 else None


class Recorder(Protocol):
    """Receives the rewards and gated shares of completions; set it on every rank or on none."""

    def generation(self, generation: Generation) -> None:
        """Record a generation for training; called on every rank with its own completions."""

    def gates(self, row: dict[str, Any]) -> None:
        """Record the share of gated tokens of each completion of an update; called on rank 0.

        Args:
          row: ``{"step": n, "generated": [...], "index": [...], "gated": [...]}``, of all ranks. A
            completion is the ``index``-th of the generation that was sampled after ``generated``
            updates. ``worst`` is that of `Mismatch.read`.
        """

    def notice(self, step: int, name: str, text: str) -> None:
        """Record a warning of the trainer's by its name, and show it; called on every rank."""


class Recorded:
    """What every trainer here measures, logs and records; a mixin before TRL's class."""

    args: Any
    accelerator: Any
    model: Any
    processing_class: Any
    state: Any
    use_vllm: bool
    rollout_func: Any
    num_generations: int
    reward_func_names: list[str]
    reward_weights: Tensor
    method: Method
    _metrics: Any

    #: ``"full"`` logs every metric, as a recorder does; ``"brief"`` those of `BRIEF`.
    metrics: Literal["brief", "full"] = "brief"
    #: Gets every generation and the gated share of its completions; see `Recorder`.
    recorder: Recorder | None = None
    #: Records a sample of completions token by token; set it on every rank or on none.
    token_sampler: TokenSampler | None = None
    _recorded_tokens = 0
    #: Methods to watch with, and the metrics since the last log, by mode.
    _shadows: list[Method]
    _windows: dict[str, WatchedWindow]
    #: Mismatch of the update under way, and `gate_counts` of its micro-batches.
    mismatch: Mismatch
    _gated: list[Tensor]
    #: Arguments and rewards of TRL's last reward computation.
    _rewarded: tuple[Any, Any, Any, Tensor]

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    def _sum(self, x: Tensor) -> Tensor:
        """Sum over ranks."""
        return self.accelerator.reduce(x, reduction="sum")

    @property
    def _all_metrics(self) -> bool:
        """Whether metrics beside `BRIEF` are read."""
        return self.recorder is not None or self.metrics == "full"

    def _watch_with(self, shadows: list[Method]) -> None:
        self._shadows = shadows
        self._windows = {mode: WatchedWindow(shadows) for mode in ("train", "eval")}
        self.mismatch, self._gated = Mismatch(), []

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> Tensor:
        rewards = super()._calculate_rewards(inputs, prompts, completions, ids)  # type: ignore[misc]
        first = self.accelerator.process_index * len(prompts)
        own = rewards[first : first + len(prompts)]  # TRL has gathered those of all ranks
        self._rewarded = inputs, completions, ids, own
        return rewards

    def _number_completions(self, output: dict[str, Any]) -> None:
        """Give each completion its number in the generation, and the updates done before it."""
        ids = output["completion_ids"]
        first = self.accelerator.process_index * len(ids)
        output["sample_index"] = torch.arange(first, first + len(ids), device=ids.device)
        output["generated"] = torch.full_like(output["sample_index"], self.state.global_step)

    def _record_generation(self, output: dict[str, Any]) -> None:
        """Add the weighted sum of its rewards to a generation, and record it if it trains."""
        rows, completions, tokens, rewards = self._rewarded  # rewards: [batch, functions]
        weights = self.reward_weights.to(rewards.device)  # [functions]
        output["reward"] = (rewards * weights).nansum(dim=1)  # [batch]
        if self.recorder is not None and self._mode == "train":
            self.recorder.generation(
                Generation(
                    step=self.state.global_step,
                    index=output["sample_index"].tolist(),
                    rows=rows,
                    completions=completions,
                    tokens=tokens,
                    rewards=dict(zip(self.reward_func_names, rewards.T.tolist(), strict=True)),
                    total=output["reward"].tolist(),
                    advantages=output["advantages"],
                )
            )

    @torch.no_grad()
    def _record_entropy(self, output: Mapping[str, Any]) -> None:
        """Log the entropy over all completions of a generation; see `surprisal`."""
        logp = output.get("old_per_token_logps")
        logp = output.get("sampling_per_token_logps") if logp is None else logp
        if logp is None:
            return
        valid = token_mask(output) & logp.isfinite()
        sums = torch.stack([-logp.where(valid, 0).sum(dim=1), valid.sum(dim=1).to(logp.dtype)])
        whole = self.accelerator.gather(sums.T.contiguous())  # [completions, 2]
        entropy, error = surprisal(whole, self.num_generations)
        if entropy is not None:
            self._metrics["train"]["trustclip/sampling_entropy"].append(entropy)
        if error is not None:
            self._metrics["train"]["trustclip/sampling_entropy_error"].append(error)

    def _record_loss(
        self,
        inputs: Mapping[str, Any],
        batch: TokenBatch,
        surrogate: Surrogate,
        coefficient: Tensor | None,
        scored: TokenBatch,
    ) -> None:
        """Record a micro-batch of an update; ``scored`` masks the tokens that were not scored."""
        if self.recorder is not None:
            self._gated.append(gate_counts(inputs, batch, surrogate))
            self.mismatch.add(inputs, scored)
        if self.token_sampler is not None and coefficient is not None:
            self.token_sampler.add(self.state.global_step, inputs, batch, surrogate, coefficient)

    def _notice(self, name: str, text: str) -> None:
        """Issue a warning through the recorder, or as a Python warning without one."""
        if self.recorder is not None:
            self.recorder.notice(self.state.global_step, name, text)
        else:
            warnings.warn(text, stacklevel=2)

    def _forget_update(self) -> None:
        """Drop the records of an abandoned update."""
        self._gated.clear()
        self.mismatch.forget()
        if self.token_sampler is not None:
            self.token_sampler.forget()

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)  # type: ignore[misc]
        if self.accelerator.sync_gradients:
            self._finish_update()
        return loss

    def _finish_update(self) -> None:
        """Record what the gate did in the update that ends."""
        gather = self.accelerator.gather
        if self.recorder is not None:
            row = gate_shares(gather(torch.cat(self._gated)))
            self._gated.clear()
            row |= self.mismatch.read(gather, self.processing_class.decode)
            if self.accelerator.is_main_process:
                self.recorder.gates({"step": self.state.global_step + 1, **row})
        if self.token_sampler is not None:
            step, used = self.state.global_step, self._recorded_tokens
            self._recorded_tokens = self.token_sampler.finish(step, used, gather)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        mode = self._mode
        window, self._windows[mode] = self._windows[mode], WatchedWindow(self._shadows)
        summary = window.read(self._sum)
        if not self._all_metrics:
            shown = BRIEF | BRIEF_OF_SAMPLER if self.use_vllm or self.rollout_func else BRIEF
            logged = {k: v for k, v in summary.items() if k in shown or k.startswith(_ASKED_FOR)}
        else:
            logged = summary
        prefix = "trustclip/" if mode == "train" else "eval_trustclip/"
        logs.update({prefix + name: value for name, value in logged.items()})
        if mode == "train" and summary:
            self._examine(summary)
        super().log(logs, start_time)  # type: ignore[misc]

    def _examine(self, summary: dict[str, float]) -> None:
        """Look at the metrics of the updates since the last log."""


def attach_recorders(trainer: Any) -> None:
    """Attach the trainer to its recording callbacks, those that have ``attach``."""
    for callback in trainer.callback_handler.callbacks:
        if hasattr(callback, "attach"):
            callback.attach(trainer)
