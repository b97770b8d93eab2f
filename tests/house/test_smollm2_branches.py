"""Branches of a run from one state: the whole program on the built-in model, and the prediction."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

parquet = pytest.importorskip("pyarrow.parquet")
import smollm2  # noqa: E402
import smollm2_branches as branches  # noqa: E402

from trustclip.logs.reader import find, read_run  # noqa: E402
from trustclip.logs.tokens import TokenRow  # noqa: E402

RECIPE = {
    "name": "small",
    "model": "tiny",
    "output_dir": "small",
    "seed": 0,
    "sft": {"dataset": "arithmetic-primer", "max_steps": 20, "learning_rate": 3e-3,
            "per_device_train_batch_size": 16, "prompt_style": "plain", "max_length": 128},
    "rl": {"dataset": "arithmetic", "limit": 64, "prompt_style": "plain",
           "method": {"name": "atr", "delta": 0.07}, "max_completion_length": 12,
           "num_generations": 4, "per_device_train_batch_size": 8,
           "gradient_accumulation_steps": 1, "steps_per_generation": 4, "num_iterations": 1,
           "learning_rate": 3e-3, "lr_scheduler_type": "constant", "warmup_steps": 0, "lora_r": 4},
    "eval": {"tasks": "arithmetic", "prompt_style": "plain", "k": 2, "max_tokens": 12,
             "limit": 16, "batch_size": 32},
}  # fmt: skip
METHODS = {
    "atr": {"name": "atr", "delta": 0.07},
    "clip": {"name": "clip", "epsilon": 0.2},
    # so narrow that the gates of atr and of mirror treat many tokens differently
    "mirror": {"name": "clip_higher", "low": 0.01, "high": 0.01},
    "none": {"name": "importance_sampling"},
}
SUITE = {
    "name": "regions",
    "recipe": "small.yaml",
    "seeds": [0, 1],
    "changes": {"rl.max_steps": 12, "rl.save_steps": 4, "rl.save_total_limit": 1},
    "methods": METHODS,
    "sweep": {"rl.learning_rate": [1e-2, 3e-2]},
    "reference": "atr",
}


@pytest.mark.slow
def test_branches_begin_in_one_state_and_are_compared_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(RECIPE))
    suite = tmp_path / "regions.yaml"
    suite.write_text(yaml.safe_dump(SUITE | {"output_dir": str(tmp_path / "regions")}))
    (trunk,) = branches.trunks(suite, tmp_path / "branches", seeds=1)
    table = tmp_path / "generations.parquet"
    generations = list(smollm2.generations_of(trunk))
    smollm2.added(table, generations)
    assert branches.alike(trunk, table) == len(generations) == 3
    parted = tmp_path / "parted.parquet"
    smollm2.added(
        parted, [row | {"right": row["right"] + (row["generation"] == 3)} for row in generations]
    )
    assert branches.alike(trunk, parted) == 2
    elsewhere = tmp_path / "elsewhere.parquet"
    smollm2.added(elsewhere, [row | {"right": row["right"] + 1} for row in generations])
    with pytest.raises(ValueError, match="does not begin as the run"):
        branches.alike(trunk, elsewhere)
    rows = list(branches.rows_from(trunk, tmp_path / "branches", 2, METHODS))
    assert [row["arm"] for row in rows] == ["state", *branches.ARMS]
    state = rows[0]
    assert state["kl_old_new"] == pytest.approx(0.0, abs=1e-9)
    assert all(row["kl_old_new"] > 0 and row["kl_new_old"] > 0 for row in rows[1:])
    assert len({row["entropy"] for row in rows}) > 2, "the constraint acts"
    assert np.isfinite([rows[0][name] for name in ("stated", "corrected", "own")]).all()
    assert 0 < rows[0]["tokens"] <= rows[0]["only_atr"] + rows[0]["only_mirror"]
    assert all(
        0 <= rows[0][f"{name}_right"] <= rows[0]["tokens"] for name in ("stated", "corrected")
    )

    # A branch under the run's own constraint is that run: the same samples, and updates.
    own = read_run(tmp_path / "branches/seed0-generation2-atr")
    ours, theirs = (
        [
            {name: value for name, value in row.items() if name != "step_time"}
            for row in branches.rows_of(run.path / "metrics.jsonl")
            if row["stage"] == "rl" and 4 < row["step"] <= 8
        ]
        for run in (trunk, own)
    )
    assert ours == theirs != []
    sampled = [
        [row["response"] for row in branches.rows_of(run.path / "samples.jsonl")
         if row["stage"] == "rl" and row["step"] == 4]
        for run in map(read_run, find([*(tmp_path / "branches").glob("seed0-generation2-*[!e]")]))
    ]  # fmt: skip
    assert all(one == sampled[0] != [] for one in sampled)
    shutil.rmtree(tmp_path / "branches/seed0-generation2-none")
    assert list(branches.rows_from(trunk, tmp_path / "branches", 2, METHODS)) == rows

    # The program does the same, clears up, and leaves out what is there.
    monkeypatch.setattr(branches, "FOLDER", tmp_path)
    given = [str(tmp_path / "branches"), "--suite", str(suite), "--to", str(tmp_path / "tables")]
    monkeypatch.setattr("sys.argv", ["x", *given, "--seeds", "1", "--generations", "2"])
    branches.main()
    written = parquet.read_table(tmp_path / "tables/branches.parquet").to_pylist()
    assert sorted(written, key=str) == sorted([row | {"alike": 3} for row in rows], key=str)
    assert not [*(tmp_path / "branches").glob("seed*")]
    branches.main()
    assert capsys.readouterr().out.endswith("has every state; --to FOLDER makes them anew\n")


def test_the_mirror_image_cuts_where_atr_keeps_and_the_other_way_round() -> None:
    ratios = np.array([0.5, 0.6, 1.0, 1.35, 1.5])
    row = TokenRow.of(
        {"logp": np.log(ratios).tolist(), "logp_old": [0.0] * 5,
         "advantage": [-1.0, -1.0, -1.0, 1.0, 1.0]}
    )  # fmt: skip
    bounds = {"low": 0.422216736, "high": 0.329028262}
    assert branches.mirrored(row, bounds).tolist() == [False, True, True, False, False]
