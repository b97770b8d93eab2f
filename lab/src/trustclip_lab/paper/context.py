"""What the paper's tables do not say: schedule, twin, and test problems in the training set."""

from dataclasses import dataclass

from trustclip.constraints.registry import interval
from trustclip.constraints.schedule import Schedule
from trustclip.methods.atr import ATR
from trustclip_lab.paper.cells import BENCHMARKS, printed_rows

#: ATR's threshold in Tables 2 and 3.
DELTA = 0.07
#: The paper's Table 4 states gradient accumulation 4 and leaves the rest to TRL's defaults:
#: steps_per_generation is then gradient_accumulation_steps, and num_iterations 1.
SCHEDULE = Schedule(steps_per_generation=4, num_iterations=1, gradient_accumulation_steps=4)
#: AMC problems that stand in DAPO-Math-17k, each pair read; `trustclip decontaminate` finds 53.
CONTAMINATED = 55


@dataclass(frozen=True)
class Context:
    """What to know when reading the tables.

    Args:
      updates_per_generation: by Table 4 and TRL's defaults.
      inert: whether every ratio is then 1, so that no constraint ever acts.
      interval: lowest and highest ratio of ATR at the paper's threshold.
      twin_tested: whether Table 3 has the clip-higher of that interval.
      contaminated: AMC problems in the training set.
      amc: AMC problems.
    """

    updates_per_generation: float
    inert: bool
    interval: tuple[float, float]
    twin_tested: bool
    contaminated: int
    amc: int


def context() -> Context:
    """What the tables leave out, computed where it can be.

    Example:
      >>> result = context()
      >>> result.inert, result.twin_tested, result.contaminated, result.amc
      (True, False, 55, 83)
      >>> print("[{:.3f}, {:.3f}]".format(*result.interval))
      [0.671, 1.422]
    """
    low, high = (float(bound) for bound in interval(ATR(delta=DELTA)))
    twin = f"Clip-Higher (ε_l = {1 - low:.3f}, ε_u = {high - 1:.3f})"
    return Context(
        updates_per_generation=SCHEDULE.updates_per_generation,
        inert=SCHEDULE.inert,
        interval=(low, high),
        twin_tested=any(row["method"] == twin for row in printed_rows("paper_table3.csv")),
        contaminated=CONTAMINATED,
        amc=BENCHMARKS["amc23"],
    )
