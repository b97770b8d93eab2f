"""Artefacts that want memory, time, another folder, or a number that is none."""

import json
import os
from math import inf
from pathlib import Path

import pyarrow
import pyarrow.parquet
import yaml
from synthetic_runs import make_run

from malicious.artefacts import CONTROLS, SECRET, artefact
from malicious.code import enter_run, enter_suite, evaluation
from malicious.text import SPEC, changed

#: Nine values in each of nine lists of the list before: 3 GB once the aliases are written out.
LAUGHS = "a0: &a0 [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


def problems(folder: Path, *rows: object, name: str = "data.jsonl") -> str:
    """A data set with these rows."""
    (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(folder / name)


@artefact(2, "more than 10,000 values, with its aliases written out")
def recipe_of_a_billion_laughs(folder):
    (folder / "recipe.yaml").write_text(LAUGHS)
    return ["run", str(folder / "recipe.yaml")]


@artefact(2, "more than 10,000 values, with its aliases written out")
def suite_of_a_billion_laughs(folder):
    (folder / "suite.yaml").write_text(LAUGHS)
    return ["suite", str(folder / "suite.yaml"), "--dry-run"]


@artefact(2, "more than 4,000,000 values, with its aliases written out")
def run_of_a_billion_laughs(folder):
    path = make_run(folder / "run", SPEC)
    (path / "config.yaml").write_text(LAUGHS)
    return ["explain", str(path)]


@artefact(2, "or within itself")
def run_within_itself(folder):
    path = make_run(folder / "run", SPEC)
    (path / "config.yaml").write_text("a: &a [*a]\n")
    return ["explain", str(path)]


@artefact(2, "nested too deeply")
def recipe_that_is_too_deep(folder):
    (folder / "recipe.yaml").write_text("a: " + "[" * 2000 + "]" * 2000)
    return ["run", str(folder / "recipe.yaml")]


@artefact(2, "cannot be read")
def record_that_is_too_deep(folder):
    path = make_run(folder / "run", SPEC)
    (path / "summary.json").write_text("[" * 100_000)
    return ["explain", str(path)]


OUTSIDE = {"../../outside": {"name": "atr"}}
enter_run("threshold_that_is_no_number", ["delta", "finite"], method={"name": "atr", "delta": inf})
enter_suite("suite_label_that_leads_elsewhere", ["the label", "names a folder"], methods=OUTSIDE)
enter_suite(
    "swept_value_that_leads_elsewhere", ["cannot be part of a folder name"],
    sweep={"rl.lr_scheduler_type": ["../x"]},
)  # fmt: skip
enter_suite(
    "secret_in_a_suite", ["holds a secret", "HF_TOKEN"], changes={"rl.trl": {"hub_token": SECRET}}
)


@artefact(2, "row 1 has no text in 'response'")
def row_without_an_answer(folder):
    return ["eval", "--grade", problems(folder, {"response": None, "gold": "1"})]


@artefact(2, "more bad rows than max_bad_rows allows")
def data_set_whose_rows_control_the_terminal(folder):
    rows = [{"problem": CONTROLS, CONTROLS: CONTROLS} for _ in range(200)]
    return ["sft", "--model", "tiny", "--dataset", problems(folder, *rows),
            "--output-dir", str(folder / "run")]  # fmt: skip


@artefact(2, "cannot be read as Parquet")
def parquet_that_is_none(folder):
    (folder / "data.parquet").write_bytes(b"PAR1" + b"\xff" * 64 + b"PAR1")
    return ["sft", "--model", "tiny", "--dataset", str(folder / "data.parquet"),
            "--output-dir", str(folder / "run")]  # fmt: skip


@artefact(2, "a row group holds 34,000,000 values in lists, and may hold 32,000,000")
def parquet_of_two_kilobytes_that_takes_gigabytes(folder):
    numbers = pyarrow.nulls(34_000_000, pyarrow.int8())
    row = {"problem": ["1+1"], "answer": ["2"],
           "numbers": pyarrow.ListArray.from_arrays([0, len(numbers)], numbers)}  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.table(row), folder / "data.parquet")
    assert (folder / "data.parquet").stat().st_size < 2500
    return ["sft", "--model", "tiny", "--dataset", str(folder / "data.parquet"),
            "--output-dir", str(folder / "run")]  # fmt: skip


@artefact(2, "token")
def file_of_tokens_with_other_columns(folder):
    table = pyarrow.table({"logp": ["__import__('os')"], "token": [[CONTROLS]]})
    pyarrow.parquet.write_table(table, folder / "tokens.parquet")
    return ["tokens", str(folder / "tokens.parquet")]


@artefact(2, "header too large")
def weights_whose_header_is_larger_than_the_file(folder):
    from trustclip.train.tiny import tiny_model

    path = folder / "model"
    for part in tiny_model(0):
        part.save_pretrained(path)
    (path / "model.safetensors").write_bytes((2**40).to_bytes(8, "little") + b"{}")
    return evaluation(folder, str(path))


@artefact(2, "metrics.jsonl is no regular file")
def folder_in_the_place_of_a_record(folder):
    path = make_run(folder / "run", SPEC)
    (path / "metrics.jsonl").unlink()
    (path / "metrics.jsonl").mkdir()
    return ["explain", str(path)]


@artefact(2, "no file")
def pipe_in_the_place_of_a_recipe(folder):
    os.mkfifo(folder / "recipe.yaml")
    return ["run", str(folder / "recipe.yaml")]


@artefact(0, "Warning at update 12")
def log_line_that_forges_a_row(folder):
    path = make_run(folder / "run", SPEC)
    forged = '{"stage": "notice", "step": 12, "notice": "x", "text": "a\\n{\\"stage\\": 1}"}\n'
    with (path / "metrics.jsonl").open("a") as file:
        file.write(forged)
    return ["explain", str(path)]


@artefact(0, "8 updates")
def secrets_of_an_older_run(folder):
    path = changed(make_run(folder / "run", SPEC), "config.yaml", model=f"https://me:{SECRET}@h/m")
    assert yaml.safe_load((path / "config.yaml").read_text())["model"].startswith("https://me:")
    return ["explain", str(path)]
