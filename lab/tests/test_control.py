"""The suite of control: its settings, its files, and what it makes of its runs."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from rich.console import Console
from scipy import stats as scipy_stats

from trustclip_lab.control import ControlSettings, suite

EXTRA = "needs the extra `control` (stable-baselines3, gymnasium)"


def test_settings_are_checked_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'atr'"):
        ControlSettings(methods=("art",), output_dir=tmp_path)
    with pytest.raises(ValueError, match="`reference` must be one of the methods, got 'kl2'"):
        ControlSettings(methods=("atr",), reference="kl2", output_dir=tmp_path)
    assert ControlSettings(methods=("atr",), output_dir=tmp_path).base == "atr"


def test_every_run_has_a_file_of_its_own_and_seeds_come_first(tmp_path: Path) -> None:
    settings = ControlSettings(
        envs=("A-v1", "B-v1"), methods=("clip", "{name: atr, delta: 0.05}"), output_dir=tmp_path
    )
    every = list(suite.cells(settings))
    assert len({cell.path for cell in every}) == len(every) == 2 * 2 * 5
    assert [cell.seed for cell in every] == [seed for seed in range(5) for _ in range(4)]
    other = dataclasses.replace(settings, learning_rate=0.1)  # type: ignore[type-var]
    assert not {c.path for c in every} & {c.path for c in suite.cells(other)}
    moved = dataclasses.replace(settings, seeds=9)  # type: ignore[type-var]
    assert {c.path for c in every} < {c.path for c in suite.cells(moved)}


def test_runs_that_are_there_are_not_run_again(tmp_path: Path, monkeypatch) -> None:
    run: list[str] = []

    def train(cell: suite.Cell) -> dict[str, float]:
        run.append(cell.path.name)
        best = (10.0 + cell.seed) * (cell.method == "atr") + cell.seed
        return {"final": best, "training": best, "gated": 0.1, "k3": 0.01, "ess": 1.0}

    monkeypatch.setattr(suite, "train", train)
    settings = ControlSettings(methods=("clip", "atr"), seeds=3, output_dir=tmp_path)
    found = suite.run_control(settings, Console(quiet=True))
    assert len(run) == 6
    next(tmp_path.glob("*atr-seed1*")).unlink()
    assert suite.run_control(settings, Console(quiet=True)) == found
    assert len(run) == 7 and "atr-seed1" in run[-1]
    atr = next(row for row in found if row["method"] == "atr")
    assert atr["final"].value == 12.0 and atr["less_final"].value == 11.0
    half = 4.3026527 / math.sqrt(3)  # t(0.975, 2) times the standard error of 10, 11, 12
    assert atr["less_final"].high == pytest.approx(11 + half, rel=1e-6)
    shown = {line[1]: line for line in suite.lines(found)}
    p = 2 * scipy_stats.t.sf(11 * math.sqrt(3), 2)
    assert atr["less_final"].p == pytest.approx(p)
    assert atr["p_holm_final"] == atr["p_holm_training"] == pytest.approx(2 * p)  # a family of two
    gap, of_equal = "+11 [+9, +13]", "1"
    assert shown["atr"][2:7] == ("12 [7, 17]", gap, f"{2 * p:.2g}", of_equal, "larger")
    assert shown["clip"][3:7] == ("-", "-", "-", "-")
    stored = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert stored["env"] == "CartPole-v1" and stored["steps"] == 16384


def test_an_unknown_environment_is_named(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3", reason=EXTRA)
    cell = next(suite.cells(ControlSettings(envs=("CartPool-v1",), output_dir=tmp_path)))
    with pytest.raises(ValueError, match="'CartPool-v1'"):
        suite.train(cell)


@pytest.mark.slow
def test_a_run_from_start_to_end(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3", reason=EXTRA)
    settings = ControlSettings(
        steps=512, n_envs=2, n_steps=64, n_epochs=2, batch_size=64, output_dir=tmp_path
    )
    cell = next(suite.cells(settings))
    first, again = suite.train(cell), suite.train(cell)
    assert first == again and first["final"] > 0 and first["training"] > 0
