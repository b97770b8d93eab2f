"""What a run's gate did, in sentences: the numbers are the run's, the advice follows from them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from trustclip.cli.main import main
from trustclip.report.console import explain

STEPS = 20


def make(folder: Path, rows: list[dict[str, Any]], method: str = "atr", **args: Any) -> Path:
    """A run directory as training leaves it."""
    folder.mkdir(parents=True)
    config = {
        "command": "rl", "model": "tiny", "seed": 0, "method": method, "method_args": args,
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [
        {"stage": "rl", "step": step, **{f"trustclip/{k}": v for k, v in row.items()}}
        for step, row in enumerate(rows, start=1)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def row(gated: float = 0.02, **others: float) -> dict[str, float]:
    plain = {
        "gated": gated, "gated/positive_above": gated, "off_policy": 0.9, "k3": 0.01,
        "ratio_q01": 0.8, "ratio_q99": 1.3, "entropy": 0.5,
    }  # fmt: skip
    return {**plain, **others}


def said(folder: Path) -> str:
    return "\n".join(explain(folder))


def test_what_the_gate_did(tmp_path: Path) -> None:
    rows = [row(0.0)] * 10 + [
        row(0.04, **{"gated/p_old_0_0.01": 0.5, "gated/p_old_0.9_1": 0.01})
    ] * 9
    text = said(make(tmp_path / "run", [*rows, row(0.08)], delta=0.05))
    assert "run: atr δ=0.05 on tiny, 20 updates, unfinished." in text
    assert "cut 2.2 % of tokens" in text
    assert (
        "in 10 of 20 logged updates, first in update 11; the largest share was 8 %, in update 20"
        in text
    )
    assert "100 % were rewarded tokens that had already become more likely" in text
    assert "in the first half of training it cut 0 %, in the second 4.4 %" in text.lower()
    assert (
        "50 % of those from 0 to 0.01" in text and "The highest share, 22.7 times the mean" in text
    )
    assert "98 % of ratios were in [0.8, 1.3]" in text


def test_inert_is_said_and_what_would_act(tmp_path: Path) -> None:
    text = said(make(tmp_path / "wide", [row(0.0)] * STEPS))
    assert "closed on no token in 20 logged updates" in text
    # k3(1.3) = 0.0376 is the further of the two bounds on one side, k3(0.8) = 0.0231 the nearer.
    assert "tighten the threshold" in text and "delta 0.023" in text
    text = said(make(tmp_path / "on-policy", [row(0.0, off_policy=0.0)] * STEPS))
    assert "every token had ratio 1" in text and "num_iterations" in text
    text = said(make(tmp_path / "soft", [row(0.0)] * STEPS, "soft_gate"))
    assert "reweights tokens and cuts none; 90 %" in text


def test_advice_follows_the_numbers(tmp_path: Path) -> None:
    assert "lower the learning rate" in said(make(tmp_path / "often", [row(0.4)] * STEPS))
    falling = [row(entropy=1.0 - 0.045 * i) for i in range(STEPS)]
    assert "try a wider upper bound" in said(make(tmp_path / "rise", falling))
    other = [{**r, "gated/positive_above": 0.0, "gated/negative_below": 0.02} for r in falling]
    assert "before another threshold" in said(make(tmp_path / "fall", other))
    assert "Nothing unusual." in said(make(tmp_path / "fine", [row()] * STEPS))


def test_further_diagnostics_where_they_are(tmp_path: Path) -> None:
    more = {
        "ess": 0.9, "advantage_cut": 0.04, "agreement/precision": 0.5, "agreement/recall": 0.25,
        "entropy_slope/cut": 0.02, "entropy_slope/kept": -0.1, "threshold/delta": 0.07,
    }  # fmt: skip
    rows = [row(**more)] * (STEPS - 1) + [row(**{**more, "threshold/delta": 0.09})]
    text = said(make(tmp_path / "run", rows))
    assert "4 % of the total absolute advantage, 2.0 times their share of tokens" in text
    assert "would also have cut 50 % of the tokens that were cut" in text
    assert (
        "kept tokens pushed it down and the cut tokens would have pushed it up, 0.2 times" in text
    )
    assert "the gate lowered it" in text and "at least 90 %" in text
    assert "threshold delta changed from 0.07 to 0.09" in text


def test_an_adaptive_method_is_read_back(tmp_path: Path) -> None:
    hold = {"controller": "target_gate", "share": 0.02}
    assert "target_gate" in said(make(tmp_path / "run", [row()] * STEPS, delta=hold))


def test_completions_are_named(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", [row()] * STEPS)
    gates = {"step": 7, "generated": [4, 4, 4, 4], "index": [0, 1, 2, 3], "gated": [0, 0.5, 0.1, 0]}
    (folder / "gates.jsonl").write_text(json.dumps(gates) + "\n")
    assert (
        "50 % of completions. The most affected was number 1 of the generation after update 4"
        in said(folder)
    )


@pytest.mark.parametrize(
    ("make_it", "words"),
    [
        (lambda folder: folder, "no folder"),
        (lambda folder: folder.mkdir() or folder, "neither a run directory"),
        (lambda folder: make(folder, []), "neither an update nor an evaluation"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, capsys, make_it, words: str) -> None:
    assert main(["explain", str(make_it(tmp_path / "it"))]) == 2
    assert words in capsys.readouterr().err


def test_the_command_prints_it(tmp_path: Path, capsys) -> None:
    assert main(["explain", str(make(tmp_path / "run", [row()] * STEPS))]) == 0
    assert "The gate cut 2 % of tokens" in capsys.readouterr().out


def test_shadows_are_compared_by_what_they_cut(tmp_path: Path) -> None:
    """Sums over updates, not means of ratios: the second update cuts ten times the first."""
    rows = [
        row(0.01, **{"shadow/kl2/gated": 0.02, "shadow/kl2/both": 0.01, "shadow/clip/gated": 0.0,
                     "shadow/clip/both": 0.0, "shadow/kl2/cosine": 0.9}),
        row(0.1, **{"shadow/kl2/gated": 0.1, "shadow/kl2/both": 0.05, "shadow/clip/gated": 0.0,
                    "shadow/clip/both": 0.0, "shadow/kl2/cosine": 0.7}),
    ]  # fmt: skip
    text = said(make(tmp_path / "run", rows))
    assert "kl2 would have cut 6.00 %, 55 % of what was cut among them" in text  # 0.06 / 0.11
    assert "(cosine of the updates 0.800); clip would have cut none." in text
    assert "cuts most nearly what atr cut is kl2: 35 % of what either cuts" in text  # .03 of .085
    assert "On the same tokens" not in said(make(tmp_path / "plain", [row()]))


def evaluated(folder: Path, *scores: tuple[int, float, float, float]) -> Path:
    """The run with evaluations: update, score, and the interval's ends."""
    with (make(folder, [row()] * STEPS) / "metrics.jsonl").open("a") as file:
        for step, value, low, high in scores:
            score = {"mean@4": value, "mean@4/low": low, "mean@4/high": high, "pass@4": 0.9}
            line = {"stage": "eval", "step": step, "task": "aime24", **score}
            file.write(json.dumps(line) + "\n")
    return folder


def test_a_score_that_falls_is_said(tmp_path: Path) -> None:
    first, best, last = (0, 0.5, 0.45, 0.55), (10, 0.6, 0.55, 0.65), (20, 0.3, 0.25, 0.35)
    text = said(evaluated(tmp_path / "fell", first, best, last))
    assert (
        "The evaluation score (mean@4, 95 % interval) was 50.0 % [45.0, 55.0] before training and "
        "30.0 % [25.0, 35.0] after update 20; the best was 60.0 % [55.0, 65.0] after update 10. "
        "It fell: the last interval lies below the first one."
    ) in text
    assert "Next: the evaluation score was highest after update 10" in text
    assert "Nothing unusual" not in text
    text = said(evaluated(tmp_path / "noise", first, (20, 0.48, 0.43, 0.53)))
    assert "after update 20. It fell from the first to the last, by less than" in text
    assert "Nothing unusual" in text
    text = said(evaluated(tmp_path / "rose", (0, 0.3, 0.25, 0.35), best))
    assert "and 60.0 % [55.0, 65.0] after update 10." in text and "It fell" not in text
    text = said(evaluated(tmp_path / "late", (0, 0.3, 0.25, 0.35), best, (20, 0.4, 0.35, 0.45)))
    assert "It fell: the last interval lies below the best one." in text
    assert "evaluation score" not in said(make(tmp_path / "none", [row()] * STEPS))
