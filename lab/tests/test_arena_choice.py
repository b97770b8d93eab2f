"""Which trial was chosen is a draw: a contrast's interval can count it."""

import numpy as np
import pytest
from arena_analysis import Question, Runs, differences
from arena_choice import choices, tuned_scores
from made_up_runs import row

from trustclip_lab.stats.equivalence import paired_runs


def test_the_spread_is_that_of_a_plain_loop() -> None:
    rng = np.random.default_rng(3)
    cells = [(rng.random((5, 9)), rng.random((7, 9))) for _ in range(2)]
    drawn = rng.integers(0, 9, (40, 9))
    gaps = []
    for draw in drawn:
        of_cells = []
        for ours, theirs in cells:
            a, b = (max(one, key=lambda trial: sum(trial[i] for i in draw))
                    for one in (ours, theirs))  # fmt: skip
            of_cells.append(a.mean() - b.mean())
        gaps.append(np.mean(of_cells))
    counts = np.array([np.bincount(draw, minlength=9) for draw in drawn], dtype=float)
    ours, theirs = (tuned_scores([pair[side] for pair in cells], counts) for side in (0, 1))
    found = np.std(ours - theirs)
    assert found == pytest.approx(float(np.std(gaps)), abs=1e-12) and found > 0.01


@pytest.mark.slow
def test_it_covers_what_tunings_lead_to() -> None:
    """Six trials a constraint, the best of which is hard to tell: what 400 tunings lead to on
    average is within the interval in nine cases of ten, and in far fewer without the choice."""
    rng = np.random.default_rng(0)
    truths = {"ours": np.linspace(0.5, 0.53, 6), "theirs": np.full(6, 0.5)}
    gaps, widened, alone = [], [], []
    for _ in range(400):
        rows, ends = [], {}
        for name, truth in truths.items():
            scores = truth[:, None] + rng.normal(0, 0.05, (6, 12))
            ends[name] = truth[scores.mean(axis=1).argmax()]
            rows += [
                row(name, "many", 4, s, scores[trial, s], False) | {"learning_rate": trial + 1}
                for trial in range(6) for s in range(12)
            ]  # fmt: skip
        noise = rng.normal(0, 0.01, 20)
        tests = [
            row(name, "many", 4, 100 + seed, end + (name == "ours") * noise[seed], False)
            for name, end in ends.items() for seed in range(20)
        ]  # fmt: skip
        trials, tested = (Runs({c: [r[c] for r in rs] for c in rs[0]}) for rs in (rows, tests))
        asked = Question("which is better", "ours", "theirs")
        (found,) = choices(trials, tested, [asked], draws=60)
        by = tested.constraints
        gaps.append(ends["ours"] - ends["theirs"])
        widened.append((found.both.low, found.both.high))
        tested_alone = paired_runs(differences(by["ours"], by["theirs"]))
        alone.append((tested_alone.low, tested_alone.high))
    truth = np.mean(gaps)
    both, only = (np.mean([low <= truth <= high for low, high in one]) for one in (widened, alone))
    assert both >= 0.88 and only <= 0.65
