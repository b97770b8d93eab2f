"""Guards of the program's trainings: they also survive a gradient that is not finite."""

import math
from typing import Any

import torch
from accelerate.utils import reduce
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from trustclip.findings.facts import MAX_SKIPPED, SHORTEST, SKIP_WINDOW
from trustclip.findings.live.guards import NONFINITE_GRADIENT, Row, RowGuards
from trustclip.logs.writing.completions import Notice
from trustclip.support.names import TrainingError
from trustclip.train.durable.shards import local


class TooManySkips(TrainingError):
    """Too large a share of the updates had to be skipped."""


class Guards(RowGuards, TrainerCallback, ExportableState):
    r"""Guards of a training run, as a callback of a Hugging Face trainer.

    **An update whose gradient is not finite is skipped**: parameters, moments and step counts of
    the optimizer stay as they were, on every rank alike, also when one rank alone is affected or
    one micro-batch of several. The learning-rate schedule advances: it depends on the number of
    the update. (float16's scaler skips by itself; DeepSpeed steps elsewhere and is not watched.)

    **It is reported** as ``nonfinite_gradient``, and what `RowGuards` see as well, each once in a
    run and its resumptions; so is what the trainer notices, such as ``inert_constraint``.

    Args:
      notice: called on the main process with the update, the name and the text of each notice.

    Raises:
      TrainingError: while training, when the weights themselves are not finite.
      TooManySkips: while training, when more than 10 % of the last 50 updates were skipped (in a
        run that is shorter still, of 20).
    """

    def __init__(self, notice: Notice) -> None:
        super().__init__(notice)
        self._skipped = 0
        self._recent_skips: list[int] = []  # 1 for a skipped update, 0 for any other

    def summary(self) -> dict[str, Any]:
        """``skipped_steps`` and ``notices``: step, name and text of each."""
        return {"skipped_steps": self._skipped, "notices": self.notices}

    def state(self) -> dict[str, Any]:
        """State for checkpoints: a resumed run keeps its counts and reports nothing twice."""
        return {"args": {}, "attributes": {name: getattr(self, name) for name in _STATE}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note whether this process is the one that reports."""
        self._leads = state.is_world_process_zero

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any
    ) -> None:
        """Skip an update if a gradient is not finite on any rank, by removing all gradients."""
        if args.fp16:  # the scaler skips by itself, on purpose, while it searches for its scale
            return
        step = state.global_step + 1
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        bad = _any_nonfinite([p.grad for p in parameters if p.grad is not None], args.device)
        self._recent_skips = [*self._recent_skips, int(bad)][-SKIP_WINDOW:]
        if not bad:
            return
        if _any_nonfinite([p.detach() for p in parameters], args.device):
            raise TrainingError(
                f"weights were not finite (NaN or infinite) before update {step} began, so "
                "no later gradient can be."
            )
        for parameter in parameters:
            parameter.grad = None
        self._skipped += 1
        self.report(step, "nonfinite_gradient", NONFINITE_GRADIENT)
        recent, updates = sum(self._recent_skips), len(self._recent_skips)
        if recent > MAX_SKIPPED * max(updates, SHORTEST):
            raise TooManySkips(
                f"{recent} of the last {updates} updates, up to number {step}, had a "
                "gradient that is not finite and were skipped: this is not a rare batch. The "
                "weights are those of the last good update. See the last rows of metrics.jsonl "
                "(grad_norm, entropy, trustclip/ratio_q99), lower learning_rate, or check what the "
                "reward function returns and that the model's weights are finite."
            )

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Row | None = None, **_: Any
    ) -> None:
        """Check a logged row."""
        if logs and "loss" in logs:
            self.read(state.global_step, logs)


#: Attributes of `Guards` that a checkpoint keeps: numbers, texts, lists and dictionaries.
_STATE = (
    "_told",
    "_skipped",
    "_recent_skips",
    "_streaks",
    "_first_entropies",
    "_accuracy",
    "_recent",
    "_series",
)


def _any_nonfinite(gradients: list[Tensor], device: torch.device) -> bool:
    """True on every rank if any gradient on any rank has an element that is not finite."""
    # Of a sharded gradient every rank checks its own part, which may be empty.
    parts = map(local, gradients)
    # The largest magnitude is not finite exactly if an element is not, and cannot overflow.
    largest = torch.nn.utils.get_total_norm([g for g in parts if g.numel()], norm_type=math.inf)
    flag = (~largest.isfinite()).to(device, torch.float32)
    ranks: Any = reduce(flag, reduction="sum")
    return ranks.item() > 0
