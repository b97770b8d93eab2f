"""`trustclip explain`: what is no run, sums over updates; the golden runs have its sentences."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from trustclip.cli.main import main
from trustclip.report.console import explain


def make(folder: Path, rows: list[dict[str, Any]], method: str = "atr", **args: Any) -> Path:
    """A run directory as training leaves it."""
    folder.mkdir(parents=True)
    config = {
        "command": "rl", "model": "tiny", "seed": 0, "method": {"name": method, **args},
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


def test_shadows_are_compared_by_what_they_cut(tmp_path: Path) -> None:
    """Sums over updates, not means of ratios: the second update cuts ten times the first."""
    rows = [
        row(0.01, **{"shadow/kl2/gated": 0.02, "shadow/kl2/both": 0.01, "shadow/clip/gated": 0.0,
                     "shadow/clip/both": 0.0, "shadow/kl2/cosine": 0.9}),
        row(0.1, **{"shadow/kl2/gated": 0.1, "shadow/kl2/both": 0.05, "shadow/clip/gated": 0.0,
                    "shadow/clip/both": 0.0, "shadow/kl2/cosine": 0.7}),
    ]  # fmt: skip
    text = said(make(tmp_path / "run", rows))
    assert "kl2 would have cut 6.00 %, among them 55 % of what atr cut" in text  # 0.06 / 0.11
    assert "(cosine of the updates 0.800); clip would have cut none." in text
    assert "of the tokens that either cuts, both cut 35 %" in text  # .03 of .085
    assert "On the same tokens" not in said(make(tmp_path / "plain", [row()]))
