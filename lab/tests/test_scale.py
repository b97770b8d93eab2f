"""The cost of a step on paper: its limits, its sources, and the page that quotes it."""

import doctest
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import step_model
from scale import GPUS, ScaleOptions, main, run
from step_model import MODELS, Work, cost, fits
from step_rates import RATES

PAGE = Path(__file__).parents[2] / "docs" / "lab" / "scale.md"
EVERY = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def test_the_examples_of_the_model_hold():
    found = doctest.testmod(step_model)
    assert found.attempted and not found.failed


def test_the_page_quotes_the_program():
    text = PAGE.read_text(encoding="utf-8")
    for table in run(ScaleOptions()):
        assert table.markdown() in text, (
            f"docs/lab/scale.md: {table.title} (lab/benchmarks/scale.py --markdown)"
        )


def test_the_command_prints_the_rows_of_the_page(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")  # a narrow terminal costs no digit
    assert main([]) == 0
    printed = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    rows = [
        line.strip("| ").split(" | ")
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith(("| Qwen3-", "| Llama-"))
    ]
    assert len(rows) == 27 and all(row in printed for row in rows)


def test_what_the_page_says_in_words():
    every, half = (cost(MODELS[name], 64, Work()) for name in ("1.7b", "8b"))
    assert 0.095 < every.exact_kl / every.training < 0.105
    assert 0.035 < half.exact_kl / half.training < 0.045
    shares = [
        found.exact_kl / found.step
        for model in MODELS.values()
        for gpus in GPUS
        if fits(model, gpus, "full")
        for found in [cost(model, gpus, Work())]
    ]
    assert 0.0285 < max(shares) < 0.0295
    lora = [cost(model, 64, Work(tuning="lora")) for model in MODELS.values()]
    assert all(0.0005 < found.exact_kl / found.step < 0.0015 for found in lora)
    assert max(cost(model, 1, Work()).gate for model in MODELS.values()) < 1e-3


# Totals as the model cards round them.
@pytest.mark.parametrize(
    ("name", "total", "active"),
    [("1.7b", 1.7, None), ("8b", 8.2, None), ("32b", 32.8, None), ("30b-a3b", 30.5, 3.3)],
)
def test_parameters_are_those_of_the_model_cards(name, total, active):
    model = MODELS[name]
    assert model.parameters / 1e9 == pytest.approx(total, abs=0.05)
    if active is not None:
        both_ends = model.product / 1e9
        assert model.body(model.active) / 1e9 + both_ends == pytest.approx(active, abs=0.06)


@EVERY
def test_head_and_kl_are_linear_in_tokens_and_in_gpus(model):
    one = cost(model, 8, Work(tokens=1024))
    two = cost(model, 8, Work(tokens=2048))
    many = cost(model, 64, Work(tokens=2048))
    for name in ("head", "exact_kl", "gate"):
        assert getattr(two, name) == pytest.approx(2 * getattr(one, name))
        assert getattr(many, name) == pytest.approx(getattr(two, name) / 8)
    more = cost(model, 8, Work(completions=4096, tokens=2048))
    assert more.update == pytest.approx(2 * two.update, rel=0.02)


def test_products_by_hand():
    """8B on one GPU, 2^22 tokens: 2 NHV over 728 TFLOP/s is 7.17 s a product."""
    product = 2 * 2**22 * 4096 * 151_936 / 728e12
    full, lora = (cost(MODELS["8b"], 1, Work(tuning=t)) for t in ("full", "lora"))
    assert full.exact_kl == pytest.approx(5.35 * product)
    assert lora.exact_kl == pytest.approx(product)
    assert full.head == pytest.approx((1.21 + 1.46 * 3) * product)
    assert lora.head == pytest.approx((1.21 + 1.21 * 2) * product)


@EVERY
def test_the_head_is_a_small_part_and_smaller_the_larger_the_model(model):
    found = cost(model, 64, Work())
    assert 0 < found.head < 0.2 * (found.old + found.update)
    assert found.head < 0.01 * found.step
    small, large = (cost(MODELS[name], 64, Work()) for name in ("1.7b", "32b"))
    assert small.head / small.training > 2 * large.head / large.training


@EVERY
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_more_gpus_never_make_a_step_longer(model, tuning):
    steps = [cost(model, gpus, Work(tuning=tuning)).step for gpus in (8, 16, 64, 512)]
    assert steps == sorted(steps, reverse=True)


def test_updates_look_at_no_completion_without_advantage():
    full = cost(MODELS["8b"], 8, Work())
    half = cost(MODELS["8b"], 8, Work(zero_share=0.5))
    none = cost(MODELS["8b"], 8, Work(zero_share=1.0))
    assert half.update == pytest.approx(full.update / 2) and none.update == 0
    assert half.exact_kl == pytest.approx(full.exact_kl / 2)
    assert (half.rollout, half.old) == (full.rollout, full.old)


def test_one_update_needs_no_old_policy_and_no_constraint():
    found = cost(MODELS["8b"], 8, Work(updates=1))
    assert found.old == found.exact_kl == 0
    assert cost(MODELS["8b"], 8, Work(updates=1, epochs=2)).old > 0


def test_what_fits():
    assert [name for name in MODELS if fits(MODELS[name], 1, "full")] == ["1.7b"]
    assert [name for name in MODELS if fits(MODELS[name], 8, "full")] == ["1.7b", "8b"]
    assert all(fits(model, 16, "full") and fits(model, 4, "lora") for model in MODELS.values())
    (table, *_) = run(ScaleOptions(model="32b", gpus=1))
    assert table.rows == [["Qwen3-32B", 1, *[None] * 10]]


def test_a_mixture_reads_the_experts_that_it_touches():
    dense = replace(MODELS["30b-a3b"], experts=1, active=1, intermediate=8 * 768)
    few, many = (Work(completions=n, tokens=16, longest=16) for n in (1, 2048))
    gpus = 4
    assert cost(MODELS["30b-a3b"], gpus, few).rollout == pytest.approx(
        cost(dense, gpus, few).rollout, rel=0.01
    )
    assert cost(MODELS["30b-a3b"], gpus, many).rollout > cost(dense, gpus, many).rollout


def test_within_half_and_the_whole_of_published_steps():
    comparison = run(ScaleOptions())[3]
    ratios: list[Any] = [row[-1] for row in comparison.rows]
    assert all(0.4 < ratio < 1.1 for ratio in ratios)


def test_every_rate_says_where_it_comes_from():
    for name, rate in RATES.items():
        assert rate.value > 0 and rate.unit and rate.meaning, name
        assert rate.source != "–" or rate.mark == "assumed", name
    assert sum(rate.mark == "assumed" for rate in RATES.values()) == 3


def test_from_arguments_to_a_table(capsys):
    assert main(["--model", "8b", "--gpus", "64", "--tuning", "lora"]) == 0
    printed = capsys.readouterr().out
    assert "LoRA, head frozen" in printed and "Qwen3-32B" not in printed.split("published")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "8"], "unknown model '8'; did you mean '8b'?"),
        (["--gpus", "0"], "--gpus must be at least 1, got 0"),
        (["--tokens", "0"], "--tokens must be at least 1, got 0"),
        (["--longest", "100"], "--longest must be at least the mean, --tokens 2048, got 100"),
        (["--zero-share", "1.5"], "--zero-share must be from 0 to 1, got 1.5"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    try:
        status = main(arguments)
    except SystemExit as left:
        status = left.code
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert status == 2 and message in told
