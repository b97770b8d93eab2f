"""Guards: silent failures are reported once, and survived where that is possible.

An update with a gradient that is not finite is skipped. The other guards only report: each watches
the logged rows for one kind of failure, with a threshold that no healthy run came near (the tests
measure the margins), and states numbers and remedies.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from accelerate.utils import reduce
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from trustclip.findings import guards as words
from trustclip.findings.facts import (
    ALL_CUT,
    CLOSED,
    COLLAPSED,
    FIRST_ROWS,
    MASTERED,
    MAX_SKIPPED,
    PATIENCE,
    SHORTEST,
    SKIP_WINDOW,
    SPIKE,
    SPIKE_AFTER,
    SPIKE_WINDOW,
)
from trustclip.support.names import TrainingError
from trustclip.train.watch import trends

Notice = Callable[[int, str, str], None]
Row = Mapping[str, Any]


class TooManySkips(TrainingError):
    """Too large a share of the updates had to be skipped."""


class Guards(TrainerCallback, ExportableState):
    r"""Guards of a training run, as a callback of a Hugging Face trainer.

    **An update whose gradient is not finite is skipped**: parameters, moments and step counts of
    the optimizer stay as they were, on every rank alike, also when one rank alone is affected or
    one micro-batch of several. The learning-rate schedule advances: it depends on the number of
    the update. (float16's scaler skips by itself; DeepSpeed steps elsewhere and is not watched.)

    **These are reported**, each once in a run and its resumptions: ``nonfinite_gradient``,
    ``entropy_collapse``, ``constant_reward``, ``inert_constraint``, ``gradient_spike``,
    ``loss_spike``, ``truncated``, ``gate_closed``; over generations (`trends`), ``entropy_rise``,
    and where the sampler reports log-probabilities ``mismatch_drift``, ``mismatch_jump``,
    ``weight_sync`` and ``ess_fall``.

    Args:
      notice: called on the main process with the update, the name and the text of each notice.

    Raises:
      TrainingError: while training, when the weights themselves are not finite.
      TooManySkips: while training, when more than 10 % of the last 50 updates were skipped (in a
        run that is shorter still, of 20).

    Example:
      >>> guards = Guards(lambda step, name, text: print(step, name))
      >>> rows = [{"completions/clipped_ratio": 1.0}] * 3
      >>> for step, row in enumerate(rows, start=1):
      ...     guards.read(step, row)
      3 truncated
      >>> guards.summary()["skipped_steps"], guards.summary()["notices"][0]["step"]
      (0, 3)
    """

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self._is_main = True
        self._complete = False  # whether the row at hand completes a generation
        self._told: list[dict[str, Any]] = []
        self._skipped = 0
        self._recent_skips: list[int] = []  # 1 for a skipped update, 0 for any other
        self._streaks: dict[str, int] = {}  # consecutive rows that show a failure
        self._first_entropies: list[float] = []
        self._accuracy: float | None = None
        self._recent: dict[str, list[float]] = {"grad_norm": [], "loss": []}
        self._series = trends.new_series()

    def summary(self) -> dict[str, Any]:
        """``skipped_steps`` and ``notices``: step, name and text of each."""
        return {"skipped_steps": self._skipped, "notices": [dict(notice) for notice in self._told]}

    def state(self) -> dict[str, Any]:
        """State for checkpoints: a resumed run keeps its counts and reports nothing twice."""
        return {"args": {}, "attributes": {name: getattr(self, name) for name in _STATE}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note whether this process is the one that reports."""
        self._is_main = state.is_world_process_zero

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
        self.report(step, "nonfinite_gradient", words.nonfinite_gradient())
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

    def read(self, step: int, row: Row) -> None:
        """Check a row of metrics, logged after update ``step``, and report any failure."""
        if (accuracy := _number(row, "rewards/correct/mean")) is not None:
            self._accuracy = accuracy
        reported = {notice["notice"] for notice in self._told}
        self._complete = trends.follow(self._series, row)
        for name, look in _WATCHES.items():
            if name in reported:
                continue
            wrong = look(self, row)
            if wrong is not None:
                self._streaks[name] = self._streaks.get(name, 0) + 1 if wrong else 0
            if wrong and self._streaks[name] >= PATIENCE.get(name, 1):
                self.report(step, name, wrong)
        if len(self._first_entropies) < FIRST_ROWS and _number(row, _ENTROPY) is not None:
            self._first_entropies.append(row[_ENTROPY])
        for name, before in self._recent.items():
            if (value := _number(row, name)) is not None:
                self._recent[name] = [*before, abs(value)][-SPIKE_WINDOW:]

    def report(self, step: int, name: str, text: str) -> None:
        """Report a failure, seen here or by the trainer itself, unless that was done before."""
        if any(notice["notice"] == name for notice in self._told):
            return
        self._told.append({"step": step, "notice": name, "text": text})
        if self._is_main:
            self._notice(step, name, text)

    def replay(self, rows: Iterable[Row]) -> None:
        """Read the rows that a run has logged so far, without reporting anything again."""
        notice, self._notice = self._notice, lambda *_: None
        for row in rows:
            if row.get("stage") == "notice":
                self.report(row["step"], row["notice"], row["text"])
            elif "loss" in row:
                self.read(row["step"], row)
        self._notice = notice

    def _collapse(self, row: Row) -> str | None:
        entropy = _number(row, _ENTROPY)
        if entropy is None or len(self._first_entropies) < FIRST_ROWS:
            return None
        first = sorted(self._first_entropies)[FIRST_ROWS // 2]
        mastered = self._accuracy is not None and self._accuracy >= MASTERED
        if mastered or entropy >= COLLAPSED * first:
            return ""
        return words.entropy_collapse(entropy, first, self._accuracy)

    def _constant(self, row: Row) -> str | None:
        share = _number(row, "frac_reward_zero_std")
        if share is None or share < 1:
            return None if share is None else ""
        return words.constant_reward(_number(row, "reward"))

    def _cut_short(self, row: Row) -> str | None:
        share = _number(row, "completions/clipped_ratio")
        if share is None or share < ALL_CUT:
            return None if share is None else ""
        return words.truncated(share)

    def _closed(self, row: Row) -> str | None:
        share = _number(row, "trustclip/gated")
        if not share or share <= CLOSED:  # the first update of a generation has no evidence
            return "" if share else None
        return words.gate_closed(share)

    def _trend(self, look: Callable[[trends.Series], str]) -> str | None:
        return look(self._series) if self._complete else None

    def _spike(self, row: Row, name: str, what: str) -> str | None:
        value, before = _number(row, name), self._recent[name]
        if value is None or len(before) < SPIKE_AFTER:
            return None
        if abs(value) <= SPIKE * max(before) or max(before) == 0:
            return ""
        return words.spike(what, value, before)


#: What each watch says of a row: a description of the failure, "" if all is well, None where the
#: row lacks the metrics for it, which ends no streak of rows that show the failure.
_WATCHES: dict[str, Callable[[Guards, Row], str | None]] = {
    "entropy_collapse": Guards._collapse,
    "constant_reward": Guards._constant,
    "truncated": Guards._cut_short,
    "gate_closed": Guards._closed,
    "entropy_rise": lambda g, row: g._trend(trends.entropy_rise),
    "mismatch_drift": lambda g, row: g._trend(trends.mismatch_drift),
    "mismatch_jump": lambda g, row: g._trend(trends.mismatch_jump),
    "weight_sync": lambda g, row: trends.weight_sync(g._series),
    "ess_fall": lambda g, row: g._trend(trends.ess_fall),
    "gradient_spike": lambda g, row: g._spike(row, "grad_norm", "the gradient's norm"),
    "loss_spike": lambda g, row: g._spike(row, "loss", "the loss"),
}

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

#: Mean entropy over tokens in reinforcement learning; in fine-tuning it is expected to fall.
_ENTROPY = "trustclip/entropy"


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _any_nonfinite(gradients: list[Tensor], device: torch.device) -> bool:
    """True on every rank if any gradient on any rank has an element that is not finite."""
    # Of a sharded gradient every rank checks its own part, which may be empty.
    local = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
    # The largest magnitude is not finite exactly if an element is not, and cannot overflow.
    largest = torch.nn.utils.get_total_norm([g for g in local if g.numel()], norm_type=math.inf)
    flag = (~largest.isfinite()).to(device, torch.float32)
    ranks: Any = reduce(flag, reduction="sum")
    return ranks.item() > 0
