"""The theorems of `trustclip_lab.theory`: by finite differences, by hand, and on their page."""

import doctest
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from theory_figures import draw_all

import trustclip as tc
from trustclip.constraints import intervals
from trustclip_lab.theory import (
    CHECKS,
    Case,
    Check,
    clipping,
    estimators,
    run_theory,
    table,
    updates,
)
from trustclip_lab.theory.cases import DOUBLE, entropy, random_cases

DOCS = Path(__file__).parents[2] / "docs/lab"


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(group, marks=[pytest.mark.slow] * (group.__name__ == "entropies_differ"))
        for group in CHECKS
    ],
    ids=lambda group: group.__name__,
)
def test_every_statement_holds_or_fails_as_it_should(group: Callable[[], list[Check]]) -> None:
    for check in group():
        assert check.as_expected, check
        assert check.cases > 20, check


# Both sides by a third road --------------------------------------------------------------------


def state(new: list[float], old: list[float], advantages: list[float]) -> Case:
    new_, old_, a = (torch.tensor(v, dtype=DOUBLE) for v in (new, old, advantages))
    return Case(new_.log(), old_.log(), a, visits=0.7)


def clipped_objective(case: Case, logits: list[float], low: float, high: float) -> float:
    """Eq. 14 of the paper for one state, in plain Python: no min."""
    total = math.fsum(math.exp(v) for v in logits)
    old = case.logp_old.exp().tolist()
    ratios = [math.exp(v) / total / p for v, p in zip(logits, old, strict=True)]
    return case.visits * math.fsum(
        p * min(max(w, low), high) * a
        for p, w, a in zip(old, ratios, case.advantages.tolist(), strict=True)
    )


@pytest.mark.parametrize("event", ["X-", "X+"])
def test_the_logit_difference_by_finite_differences(event: updates.Event) -> None:
    case = state([0.3, 0.4, 0.2, 0.1], [0.47, 0.29, 0.15, 0.09], [1.0, 0.4, -0.5, -1.0])
    low, high = intervals.ratios(intervals.log_k3(0.07))
    epsilon = high - 1 if event == "X-" else 1 - low
    assert updates.indicator(case, 0.07, event).any()
    difference, step = [], 1e-6
    for a in range(4):
        slopes = []
        for bounds in ((low, high), (1 - epsilon, 1 + epsilon)):
            values = []
            for sign in (1, -1):
                logits = case.logits.tolist()
                logits[a] += sign * step
                values.append(clipped_objective(case, logits, *bounds))
            slopes.append((values[0] - values[1]) / (2 * step))
        difference.append(slopes[0] - slopes[1])
    sides = updates.logit_difference(case, 0.07, event)
    for side in sides:
        assert side.tolist() == pytest.approx(difference, abs=1e-9)
    assert max(map(abs, difference)) > 0.01


def test_the_paper_entropy_formula_has_the_wrong_sign_where_ours_has_the_right_one() -> None:
    case = state(
        [0.28, 0.42, 0.18, 0.08, 0.04], [1 / 5, 7 / 15, 1 / 5, 4 / 45, 2 / 45], [1, 0, 0, 0, 0]
    )
    p, h = 0.28, -sum(q * math.log(q) for q in (0.28, 0.42, 0.18, 0.08, 0.04))
    stated = -0.7 * p * (math.log(p) + h)  # AI is 1 for the first action: Cov = p (log p + H)
    assert updates.entropy_slope(case, 0.07, "X+", "stated") == pytest.approx(stated, rel=1e-12)
    exact = updates.entropy_difference(case, 0.07, "X+", eta=1e-5) / 1e-5
    assert updates.entropy_slope(case, 0.07, "X+") == pytest.approx(exact, rel=1e-3)
    assert stated < -0.01 < 0.005 < exact


def test_the_natural_gradient_undoes_the_fisher_matrix() -> None:
    case = next(random_cases(1))
    gradient = case.gradient(tc.method("clip", epsilon=0.5))
    p = case.logp.exp()
    fisher = p.diag() - p[:, None] * p
    torch.testing.assert_close(fisher @ updates.natural(case, gradient), gradient)
    assert entropy(torch.zeros(5, dtype=DOUBLE)) == pytest.approx(math.log(5))


def test_the_operators_disagree_between_one_and_the_interval_for_either_sign() -> None:
    case = state([0.6, 0.4], [0.5, 0.5], [1.0, -1.0])  # ratios 1.2 and 0.8
    for low, high, advantages, want in [
        (1.3, 1.5, [1.0, 1.0], ([1.2, 0.8], [0.0, 0.8])),
        (1.3, 1.5, [-1.0, -1.0], ([0.0, 0.0], [-1.2, 0.0])),
        (0.5, 0.7, [1.0, 1.0], ([0.0, 0.0], [0.0, 0.8])),
        (0.5, 0.7, [-1.0, -1.0], ([-1.2, -0.8], [-1.2, 0.0])),
    ]:
        sided = Case(case.logits, case.logits_old, torch.tensor(advantages, dtype=DOUBLE))
        both = clipping.gradient_equality(sided, low, high)
        assert both.left.tolist() == pytest.approx(want[0])
        assert both.right.tolist() == pytest.approx(want[1])


def test_the_asymmetry_of_what_can_be_reached_turns_at_its_probability() -> None:
    low, high = intervals.ratios(intervals.log_k3(0.07))
    for p, wider in ((1 / (2 - low) - 1e-9, True), (1 / (2 - low) + 1e-9, False)):
        bottom, top = clipping.reachable_bounds(0.07, p)
        assert (top - 1 > 1 - bottom) == wider
    assert clipping.reachable_bounds(0.07, 1 / high - 1e-9) == (low, high)


def test_the_variance_of_k3_passes_that_of_k1_at_a_ratio_of_three_and_a_half() -> None:
    """In the limit of a rare token, where w - 1 = 2 log w."""
    rare = torch.tensor([1e-6, 1 - 1e-6], dtype=DOUBLE).log()
    kl = estimators.crossing(rare, torch.tensor([1.0, 0.0], dtype=DOUBLE))
    w = 3.512862417
    assert kl == pytest.approx(1e-6 * (w - 1 - math.log(w)), rel=1e-4)


# The command and the page ----------------------------------------------------------------------


def test_a_surprise_is_told_and_is_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "CHECKS", (lambda: [Check("fine", 1, 0.0, True)],))
    assert run_theory(Console(quiet=True)) == 0
    for check in (Check("made up", 1, 0.5, False), Check("made up", 1, 0.0, True, should=False)):
        monkeypatch.setattr(table, "CHECKS", (lambda check=check: [check],))
        console = Console(record=True, width=120)
        assert run_theory(console) == 1
        assert "not as expected: made up" in console.export_text()


def test_a_wrong_formula_is_a_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = intervals.log_k3(0.07)
    monkeypatch.setattr(intervals, "log_k3", lambda delta: (low, high))
    from trustclip_lab.theory.theorems import k3_is_an_interval

    assert not all(check.as_expected for check in k3_is_an_interval())


@pytest.mark.slow
def test_the_figures(tmp_path: Path) -> None:
    made = draw_all(tmp_path)
    assert {path.name for path in made} == {"constraint.svg", "entropy.svg", "estimators.svg"}
    for path in made:
        assert ET.parse(path).getroot().tag.endswith("svg")
        assert (DOCS / "theory" / path.name).exists(), "a figure of the page"


def test_the_page_runs() -> None:
    page = (DOCS / "theory.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) > 8
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "theory.md", None, 0)
    outcome = doctest.DocTestRunner(verbose=False).run(examples)
    assert outcome.failed == 0
    assert outcome.attempted > 30
