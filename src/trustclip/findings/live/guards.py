"""Guards of a training that read its rows: each failure is reported once, in the findings' words.

Each guard watches the logged rows for one kind of failure, with a threshold that no healthy run
came near (the tests measure the margins), and states numbers and remedies.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trustclip.findings import facts
from trustclip.findings.live import trends
from trustclip.logs.writing.completions import Notice

Row = Mapping[str, Any]

#: Of an update that was skipped, by the trainer itself.
NONFINITE_GRADIENT = (
    "the gradient of this update is not finite (NaN or infinite), so the update was "
    "skipped: weights and optimizer are unchanged. One such batch does no harm; more "
    f"than {facts.MAX_SKIPPED:.0%} of {facts.SKIP_WINDOW} updates end the run."
)


class RowGuards:
    """Guards that read the rows of a training, and report each failure once.

    ``entropy_collapse``, ``constant_reward``, ``gradient_spike``, ``loss_spike``, ``truncated`` and
    ``gate_closed``; over generations (`trends`), ``entropy_rise``, and where the sampler reports
    log-probabilities ``mismatch_drift``, ``weight_sync`` and ``ess_fall``.

    Args:
      notice: called with the update, the name and the text of each notice.
      leads: whether this process reports at all.

    Example:
      >>> guards = RowGuards(lambda step, name, text: print(step, name))
      >>> rows = [{"completions/clipped_ratio": 1.0}] * 3
      >>> for step, row in enumerate(rows, start=1):
      ...     guards.read(step, row)
      3 truncated
      >>> guards.notices[0]["step"]
      3
    """

    def __init__(self, notice: Notice, leads: bool = True) -> None:
        self._notice, self._leads = notice, leads
        self._complete = False  # whether the row at hand completes a generation
        self._told: list[dict[str, Any]] = []
        self._streaks: dict[str, int] = {}  # consecutive rows that show a failure
        self._first_entropies: list[float] = []
        self._accuracy: float | None = None
        self._recent: dict[str, list[float]] = {"grad_norm": [], "loss": []}
        self._series = trends.new_series()

    @property
    def notices(self) -> list[dict[str, Any]]:
        """Step, name and text of each failure that was reported."""
        return [dict(notice) for notice in self._told]

    def read(self, step: int, row: Row) -> None:
        """Check a row of metrics, logged after update ``step``, and report any failure."""
        if (accuracy := _number(row, "rewards/correct/mean")) is not None:
            self._accuracy = accuracy
        self._complete = trends.follow(self._series, row)
        for name, look in _WATCHES.items():
            wrong = look(self, row)
            if wrong is not None:
                self._streaks[name] = self._streaks.get(name, 0) + 1 if wrong else 0
            if wrong and self._streaks[name] >= facts.PATIENCE.get(name, 1):
                self.report(step, name, wrong)
        if len(self._first_entropies) < facts.FIRST_ROWS and _number(row, _ENTROPY) is not None:
            self._first_entropies.append(row[_ENTROPY])
        for name, before in self._recent.items():
            if (value := _number(row, name)) is not None:
                self._recent[name] = [*before, abs(value)][-facts.SPIKE_WINDOW :]

    def report(self, step: int, name: str, text: str) -> None:
        """Report a failure, seen here or by the trainer itself, unless that was done before."""
        if any(notice["notice"] == name for notice in self._told):
            return
        self._told.append({"step": step, "notice": name, "text": text})
        if self._leads:
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
        if entropy is None or len(self._first_entropies) < facts.FIRST_ROWS:
            return None
        first = sorted(self._first_entropies)[facts.FIRST_ROWS // 2]
        mastered = self._accuracy is not None and self._accuracy >= facts.MASTERED
        if mastered or entropy >= facts.NEARLY_SURE * first:
            return ""
        right = "" if self._accuracy is None else f", with {self._accuracy:.0%} of answers right"
        return (
            f"the entropy fell from {first:.3g} to {entropy:.3g} nats per token "
            f"({entropy / first:.0%}){right}: the policy has almost stopped exploring. Lower "
            "learning_rate, let rare tokens rise further (a method with a wider upper bound, such "
            "as clip_higher or atr), or stop at an earlier checkpoint."
        )

    def _constant(self, row: Row) -> str | None:
        share = _number(row, "frac_reward_zero_std")
        if share is None or share < 1:
            return None if share is None else ""
        reward = _number(row, "reward")
        level = "" if reward is None else f" (mean reward {reward:.3g})"
        return (
            f"in the last {facts.PATIENCE['constant_reward']} generations every answer to a "
            f"problem got the same reward{level}: advantages are zero and there is nothing to "
            "learn. Use problems that are solved sometimes but not always, raise num_generations, "
            "or check the answer format with the completions in samples.jsonl."
        )

    def _cut_short(self, row: Row) -> str | None:
        share = _number(row, "completions/clipped_ratio")
        if share is None or share < facts.ALL_CUT:
            return None if share is None else ""
        return (
            f"{share:.0%} of completions have no end token, so the length limit probably cut them "
            "off: a truncated answer cannot be right. Raise max_completion_length, or teach the "
            "model the format and its end first (sft)."
        )

    def _closed(self, row: Row) -> str | None:
        share = _number(row, "trustclip/gated")
        if not share or share <= facts.CLOSED:  # the first update of a generation has no evidence
            return "" if share else None
        return (
            f"the gate is closed on {share:.0%} of tokens in updates where it closes at all: "
            "the constraint stops training more than it steers it. Lower learning_rate, take fewer "
            "updates per generation (num_iterations, steps_per_generation), or widen its threshold."
        )

    def _trend(self, look: Callable[[trends.Series], str]) -> str | None:
        return look(self._series) if self._complete else None

    def _spike(self, row: Row, name: str, what: str) -> str | None:
        value, before = _number(row, name), self._recent[name]
        if value is None or len(before) < facts.SPIKE_AFTER:
            return None
        if abs(value) <= facts.SPIKE * max(before) or max(before) == 0:
            return ""
        largest = max(before)
        return (
            f"{what} jumped to {value:.3g}, {abs(value) / largest:.0f} times the largest of the "
            f"{len(before)} rows before ({largest:.3g}). One jump may pass; if reward or entropy "
            "then fall, go back to the checkpoint before the jump and lower learning_rate or "
            "max_grad_norm."
        )


#: What each watch says of a row: a description of the failure, "" if all is well, None where the
#: row lacks the metrics for it, which ends no streak of rows that show the failure.
_WATCHES: dict[str, Callable[[RowGuards, Row], str | None]] = {
    "entropy_collapse": RowGuards._collapse,
    "constant_reward": RowGuards._constant,
    "truncated": RowGuards._cut_short,
    "gate_closed": RowGuards._closed,
    "entropy_rise": lambda g, row: g._trend(trends.entropy_rise),
    "mismatch_drift": lambda g, row: g._trend(trends.mismatch_drift),
    "weight_sync": lambda g, row: trends.weight_sync(g._series),
    "ess_fall": lambda g, row: g._trend(trends.ess_fall),
    "gradient_spike": lambda g, row: g._spike(row, "grad_norm", "the gradient's norm"),
    "loss_spike": lambda g, row: g._spike(row, "loss", "the loss"),
}

#: Mean entropy over tokens in reinforcement learning; in fine-tuning it is expected to fall.
_ENTROPY = "trustclip/entropy"


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    return value if isinstance(value, int | float) and math.isfinite(value) else None
