"""Enumerable problems: exact quantities by another road, and training with every method."""

import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats as scipy_stats

import trustclip as tc
from trustclip_lab.tabular import (
    Outcome,
    Schedule,
    TabularSettings,
    Tree,
    bandit,
    run_tabular,
    train,
    tree,
)
from trustclip_lab.tabular.sweep import (
    MARGIN,
    Row,
    against,
    at_best_rates,
    lines,
    markdown,
)
from trustclip_lab.tabular.training import Generation
from trustclip_lab.theory import Case

DOUBLE = torch.float64
SCHEDULE = Schedule(8.0, generations=8, updates=4, episodes=64, reward_noise=0.0, delta=0.07)


def policy(problem: Tree, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(problem.states, problem.actions, dtype=DOUBLE, generator=generator)


def paths(problem: Tree, logits: torch.Tensor) -> list[float]:
    """Probability of every path, one product at a time."""
    chances = logits.softmax(-1).tolist()
    found = []
    for path in itertools.product(range(problem.actions), repeat=problem.depth):
        state, first, probability = 0, 0, 1.0
        for level, action in enumerate(path):
            probability *= chances[first + state][action]
            state = state * problem.actions + action
            first += problem.actions**level
        found.append(probability)
    return found


@pytest.mark.parametrize("problem", [bandit(0), tree(1)], ids=["bandit", "tree"])
def test_exact_quantities_are_those_of_the_paths(problem: Tree) -> None:
    old, new = policy(problem, 0), policy(problem, 1)
    chances, others = paths(problem, old), paths(problem, new)
    exact = problem.exact(old)
    rewards = problem.success.tolist()
    assert math.fsum(chances) == pytest.approx(1)
    assert exact.returns == pytest.approx(math.fsum(map(lambda p, r: p * r, chances, rewards)))
    # The chain rule: what a path has is what its tokens have together.
    assert problem.depth * exact.entropy == pytest.approx(
        -math.fsum(p * math.log(p) for p in chances)
    )
    kl = math.fsum(p * math.log(p / q) for p, q in zip(chances, others, strict=True))
    mean, largest = problem.kl(old, new)
    assert problem.depth * mean == pytest.approx(kl)
    assert largest >= mean


def test_samples_follow_the_policy_and_the_rewards() -> None:
    problem = tree(2)
    logits = policy(problem, 3)
    states, actions, rewards = problem.sample(logits, 40_000, torch.Generator().manual_seed(0))
    visits, _ = problem.visits(logits)
    seen = torch.bincount(states.flatten(), minlength=problem.states) / len(states)
    torch.testing.assert_close(seen.double(), visits, rtol=0, atol=0.01)
    assert rewards.mean().item() == pytest.approx(problem.exact(logits).returns, abs=0.01)
    at_root = torch.bincount(actions[:, 0], minlength=3) / len(actions)
    torch.testing.assert_close(at_root.double(), logits[0].softmax(-1), rtol=0, atol=0.01)
    children = states[:, 1] - 1
    assert torch.equal(children, actions[:, 0]), "the next state is the one the action leads to"


def sampled_and_exact(side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of one large batch of a bandit, and the sum over its arms with mean advantages."""
    problem, method = bandit(3), tc.method("atr", delta=0.02, side=side)
    old = 0.3 * policy(problem, 0)
    new = old + 0.4 * policy(problem, 1)
    case = Case(new[0], old[0], problem.success - problem.exact(old).returns)
    schedule = Schedule(1.0, 1, 2, episodes=80_000, reward_noise=0.0, delta=0.07)
    generation = Generation.of(problem, old, schedule, 0, torch.Generator().manual_seed(0))
    leaf = new.clone().requires_grad_()
    objective = method.surrogate(generation.batch(method, leaf)).objective.mean()
    # One of the group's eight is its own baseline, so 7/8 of the advantage is left.
    return torch.autograd.grad(objective, leaf)[0][0], 7 / 8 * case.gradient(method)


def test_a_large_batch_has_the_exact_gradient() -> None:
    sampled, exact = sampled_and_exact("strict")
    torch.testing.assert_close(sampled, exact, rtol=0, atol=2e-3)
    assert sampled.abs().max() > 0.01


def test_training_raises_the_return_and_repeats_itself() -> None:
    before = bandit(0).exact(torch.zeros(1, 10, dtype=DOUBLE)).returns / bandit(0).success.max()
    outcome = train(bandit(0), tc.method("atr"), SCHEDULE, seed=0)
    assert outcome.returns > before + 0.2
    assert outcome.entropy < math.log(10)
    assert train(bandit(0), tc.method("atr"), SCHEDULE, seed=0) == outcome
    assert train(bandit(0), tc.method("atr"), SCHEDULE, seed=1) != outcome


@pytest.mark.parametrize("name", tc.methods())
def test_every_method_trains(name: str) -> None:
    brief = Schedule(4.0, generations=2, updates=3, episodes=16, reward_noise=0.1, delta=0.07)
    outcome = train(tree(0), tc.method(name), brief, seed=0)
    assert 0 < outcome.returns < 1 and outcome.kl >= 0


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_a_threshold_that_adapts_holds_its_share(share: float) -> None:
    held = tc.method("clip", epsilon=tc.controllers.target_gate(share=share))
    schedule = Schedule(32.0, generations=20, updates=8, episodes=64, reward_noise=0.0, delta=0.07)
    assert train(tree(1), held, schedule, seed=1).gated == pytest.approx(share, rel=0.4)


def test_a_method_that_requires_what_is_not_there_is_refused() -> None:
    brief = Schedule(4.0, generations=1, updates=1, episodes=8, reward_noise=0.0, delta=0.07)
    with pytest.raises(ValueError, match=r"'anchored' cannot be trained .* it needs `lag`"):
        train(tree(0), tc.method("anchored", anchor="interpolated"), brief, seed=0)


def test_the_table_and_its_rows(tmp_path: Path) -> None:
    settings = TabularSettings(
        methods=("none", "atr", "clip"),
        environments=("bandit",),
        learning_rates=(8.0,),
        seeds=3,
        generations=3,
        reward_noise=0.1,
    )
    console = Console(record=True, width=140)
    rows = run_tabular(settings, console, tmp_path / "rows.jsonl")
    text = console.export_text()
    for expected in ("bandit, lr 8", "atr", "minus clip", "10% of rewards flipped", "±"):
        assert expected in text
    assert [row.method for row in rows] == ["none", "atr", "clip"]
    assert rows[0].interval("gated").high == 0
    saved = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert saved[1]["outcomes"][0]["returns"] == rows[1].outcomes[0].returns
    with pytest.raises(ValueError, match=r"rows\.jsonl"):
        run_tabular(settings, console, tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"methods": ("art",)}, "'atr'"),
        (
            {"methods": ("clip", "{name: penalty, anchor: ref}")},
            "the tabular problem: it needs `logp_ref`",
        ),
        ({"reference": "kl2"}, "reference"),
        ({"episodes": 12}, "episodes"),
        ({"seeds": 1}, "seeds"),
        ({"reward_noise": 0.6}, "reward_noise"),
        ({"environments": ("maze",)}, "maze"),
        ({"learning_rates": (0.0,)}, "learning_rates"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        TabularSettings(**wrong)


def _row(method: str, rate: float, returns: list[float]) -> Row:
    some = Outcome(0.0, 1.0, 0.1, 0.1, 0.0, 0.0, 0.0, 0.0)
    return Row("tree", rate, method, tuple(replace(some, returns=value) for value in returns))


def test_differences_are_tested_both_ways_with_holm() -> None:
    base = [0.50, 0.60, 0.70, 0.55, 0.65, 0.58, 0.62, 0.71]
    alike = [value + 0.001 * (-1) ** i for i, value in enumerate(base)]
    better = [value + 0.05 + 0.001 * (-1) ** i for i, value in enumerate(base)]
    rows = [_row("atr", 8, base), _row("same", 8, alike), _row("better", 8, better)]
    found = against(rows, "atr")
    assert {name: one.conclusion for name, one in found.items()} == {
        "same": "equivalent", "better": "larger"
    }  # fmt: skip
    gap = np.array(better) - np.array(base)
    expected: Any = scipy_stats.ttest_1samp(gap, 0)
    assert found["better"].p_holm == pytest.approx(2 * expected.pvalue)  # the smaller of two
    error = np.std(np.array(alike) - np.array(base), ddof=1) / math.sqrt(8)
    one_sided = scipy_stats.t.cdf((abs(np.mean(alike) - np.mean(base)) - MARGIN) / error, 7)
    assert found["same"].p_equivalent == pytest.approx(2 * one_sided)
    text = markdown(rows, "atr", "tree")
    assert "| better (8) | 5.0 [4.9, 5.1] | larger |" in text
    assert len(list(lines(rows, "atr"))) == 3


def test_a_rate_is_chosen_on_problems_that_are_not_reported() -> None:
    """The first two of eight prefer 8; that the others prefer 32 must not be seen."""
    low, high = [0.9, 0.9, *[0.1] * 6], [0.2, 0.2, *[0.8] * 6]
    (row,) = at_best_rates([_row("atr", 8, low), _row("atr", 32, high)], "tree")
    assert row.learning_rate == 8 and row.values("returns") == low[2:]
    assert at_best_rates([_row("atr", 8, low)], "tree") == []
    assert at_best_rates([_row("atr", 8, low), _row("atr", 32, high)], "bandit") == []


@pytest.mark.slow
def test_the_page_shows_what_the_command_prints() -> None:
    """Made again; a last digit may be another machine's."""
    page = (Path(__file__).parents[2] / "docs/lab/tabular.md").read_text(encoding="utf-8")
    settings = TabularSettings(environments=("tree",), learning_rates=(8.0, 32.0))
    rows = run_tabular(settings, Console(quiet=True))
    slow, fast = ([row for row in rows if row.learning_rate == rate] for rate in (8.0, 32.0))
    said = page[page.index("<!-- tree -->") : page.index("<!-- /tree -->")].split("\n", 2)[2]
    shown = markdown(fast, "clip", "tree")
    number = r"[+−]?\d+(?:\.\d+)?"
    assert re.sub(number, "", said).strip() == re.sub(number, "", shown).strip()
    for one, other in zip(re.findall(number, said), re.findall(number, shown), strict=True):
        values = [float(text.replace("−", "-")) for text in (one, other)]
        last = 10.0 ** -len(one.partition(".")[2])
        assert values[0] == pytest.approx(values[1], abs=1.51 * last)
    assert {one.conclusion for one in against(fast, "clip").values()} == {"inconclusive"}
    above = [name for name, one in against(slow, "clip").items() if one.conclusion == "larger"]
    assert above == ["none", "atr", "full_kl", "trpo", "soft_gate"]
    listed = re.search(r"the command finds (.*?) above it", page)
    assert listed is not None and re.findall(r"`(\w+)`", listed[1]) == above
