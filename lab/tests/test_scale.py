"""The cost of a step on paper: its limits, its sources, and the page that quotes it."""

import doctest
from pathlib import Path
from typing import Any

import pytest
import step_model
from scale import ScaleOptions, main, run
from step_model import MODELS, Work, cost

PAGE = Path(__file__).parents[2] / "docs" / "lab" / "scale.md"


def test_the_examples_of_the_model_hold():
    found = doctest.testmod(step_model)
    assert found.attempted and not found.failed


def test_the_page_quotes_the_program():
    text = PAGE.read_text(encoding="utf-8")
    for table in run(ScaleOptions()):
        assert table.markdown() in text, (
            f"docs/lab/scale.md: {table.title} (lab/benchmarks/scale.py --markdown)"
        )


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


def test_products_by_hand():
    """8B on one GPU, 2^22 tokens: 2 NHV over 728 TFLOP/s is 7.17 s a product."""
    product = 2 * 2**22 * 4096 * 151_936 / 728e12
    full, lora = (cost(MODELS["8b"], 1, Work(tuning=t)) for t in ("full", "lora"))
    assert full.exact_kl == pytest.approx(5.35 * product)
    assert lora.exact_kl == pytest.approx(product)
    assert full.head == pytest.approx((1.21 + 1.46 * 3) * product)
    assert lora.head == pytest.approx((1.21 + 1.21 * 2) * product)


def test_within_half_and_the_whole_of_published_steps():
    comparison = run(ScaleOptions())[3]
    ratios: list[Any] = [row[-1] for row in comparison.rows]
    assert all(0.4 < ratio < 1.1 for ratio in ratios)


def test_from_arguments_to_a_table(capsys):
    assert main(["--model", "8b", "--gpus", "64", "--tuning", "lora"]) == 0
    printed = capsys.readouterr().out
    assert "LoRA, head frozen" in printed and "Qwen3-32B" not in printed.split("published")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "8"], "unknown model '8'; did you mean '8b'?"),
        (["--gpus", "0"], "--gpus must be at least 1, got 0"),
        (["--tokens", "0"], "`tokens` should be greater than or equal to 1, got 0"),
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
