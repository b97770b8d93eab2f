"""When a constraint can act: arithmetic of the update schedule, independent of any engine."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    r"""The number of optimizer updates per generation of samples.

    A generation is cut into ``steps_per_generation`` micro-batches, passed over
    ``num_iterations`` times; every ``gradient_accumulation_steps`` micro-batches form an update.
    The first update after a generation sees the policy that sampled: its ratio is 1 on every
    token, and there no constraint on the ratio can act.

    Args:
      steps_per_generation: micro-batches per generation.
      num_iterations: passes over a generation.
      gradient_accumulation_steps: micro-batches per update.

    Example:
      >>> Schedule(4, 1, 4).inert, Schedule(4, 2, 4).inert, Schedule(8, 1, 4).updates_per_generation
      (True, False, 2.0)
    """

    steps_per_generation: int
    num_iterations: int
    gradient_accumulation_steps: int

    @property
    def updates_per_generation(self) -> float:
        """Optimizer updates per generation of samples."""
        micro_batches = self.steps_per_generation * self.num_iterations
        return micro_batches / self.gradient_accumulation_steps

    @property
    def inert(self) -> bool:
        """True where every micro-batch of every generation is trained on at ratio 1."""
        micro_batches = self.steps_per_generation * self.num_iterations
        return self.gradient_accumulation_steps % micro_batches == 0

    def acts(self, method: str, always: bool) -> str:
        """Whether a constraint can act, in words that begin with "yes" or "NO".

        ``always`` says that it acts on fresh samples, too.

        Example:
          >>> Schedule(4, 2, 4).acts("atr", always=False)
          'yes: in 1 of the 2 updates on each generation'
        """
        if always:
            return "yes: it acts at any ratio, also on fresh samples"
        if self.inert:
            return f"NO: {self.explain_inert(method)}"
        updates = self.updates_per_generation
        if updates == int(updates):
            return f"yes: in {updates - 1:.0f} of the {updates:.0f} updates on each generation"
        return f"yes: {updates:g} updates on each generation, not all of them on fresh samples"

    def explain_inert(self, method: str) -> str:
        """Message: why the schedule makes a constraint inert, and which settings avoid it."""
        s, n, g = self.steps_per_generation, self.num_iterations, self.gradient_accumulation_steps
        return (
            f"the constraint {method!r} would be inert: each generation is used for "
            f"{self.updates_per_generation:g} optimizer update (steps_per_generation x "
            f"num_iterations / gradient_accumulation_steps = {s} x {n} / {g}), so every ratio "
            "is 1 and it can never act. Set num_iterations to 2 or more, or steps_per_generation "
            f"to {2 * max(s, g)} or more. To train all the same, set allow_inert."
        )
