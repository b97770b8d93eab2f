"""Files of tokens: what is read is what was written, and a wrong column is named with its line."""

import json

import numpy as np
import pytest
import torch

import trustclip as tc
from trustclip.logs.tokens import TokenRow, read_tokens, token_batch, write_tokens


def rows(count=5, seed=0):
    random = np.random.default_rng(seed)
    made = []
    for index in range(count):
        length = int(random.integers(1, 9))
        logp = -random.exponential(size=length)
        made.append(
            TokenRow.of(
                {
                    "logp": logp,
                    "logp_old": logp + 0.1 * random.normal(size=length),
                    "logp_rollout": np.where(random.random(length) < 0.2, np.nan, logp),
                    "advantage": random.normal(),
                    "mask": random.random(length) < 0.8,
                    "token_id": random.integers(0, 99, size=length),
                    "token": ["a\nb"] * length,
                    "step": 4,
                    "generated": 3,
                    "index": index,
                }
            )
        )
    return made


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_what_is_read_is_what_was_written(tmp_path, kind):
    written = rows(70)  # more than are held at once
    write_tokens(tmp_path / f"a.{kind}", written)
    read = list(read_tokens(tmp_path))
    assert len(read) == len(written)
    for one, other in zip(read, written, strict=True):
        for name, value in other.to_dict().items():
            np.testing.assert_array_equal(getattr(one, name), value, err_msg=name)
        assert one.lag == 1


def test_a_method_on_the_batch_equals_it_on_each_row(tmp_path):
    made = rows(7)
    method = tc.method("clip", epsilon=0.05)
    whole = tc.coefficient(method, token_batch(made))
    for row, line in zip(made, whole, strict=True):
        alone = tc.coefficient(method, token_batch([row]))[0]
        torch.testing.assert_close(line[: len(row.logp)], alone)
        assert (line[len(row.logp) :] == 0).all()
    assert whole.abs().sum() > 0


def test_without_an_old_policy_the_ratio_is_one():
    batch = token_batch([TokenRow.of({"logp": [-1.0, -2.0], "advantage": 1.0})])
    assert (batch.log_ratio == 0).all()
    assert batch.logp_rollout is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"advantage": 1.0}, "no column `logp`; found advantage"),
        ({"logprobs": [1.0], "advantage": 1.0}, "no column `logp`; the nearest is `logprobs`"),
        ({"logp": [-1.0], "advantage": [1.0, 2.0]}, "`advantage` has the shape .2., `logp` has 1"),
        ({"logp": ["x"], "advantage": 1.0}, "`logp` must hold one entry per token"),
        ({"logp": [-1.0], "advantage": 1.0, "step": "x"}, "`step` must hold a number"),
        ({"logp": [[-1.0]], "advantage": 1.0}, "`logp` has the shape .1, 1."),
        ({"logp": [-1.0], "advantage": 1.0, "kept": ["false"]}, "`kept` must hold one entry"),
        ({"logp": [-1.0], "advantage": 1.0, "mask": [2]}, "each is true or false"),
        ({"logp": -1.0, "advantage": 1.0}, "one entry per token, in a list"),
    ],
)
def test_a_wrong_column_is_named_with_its_line(tmp_path, row, message):
    path = tmp_path / "tokens.jsonl"
    good = {"logp": [-1.0], "advantage": 1.0}
    path.write_text(json.dumps(good) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=f"tokens.jsonl:2: .*{message}"):
        list(read_tokens(path))


def test_files_that_are_none(tmp_path):
    for name, message in (
        ("none.jsonl", "there are no tokens"),
        ("a.csv", "expected a .jsonl or .parquet"),
        ("a.parquet", "cannot be read as Parquet"),
    ):
        path = tmp_path / name
        if name != "none.jsonl":
            path.write_text("logp\n1\n")
        with pytest.raises(ValueError, match=message):
            list(read_tokens(path))


def test_a_line_still_being_written_is_left_out(tmp_path):
    path = tmp_path / "tokens.jsonl"
    path.write_text('{"logp": [-1.0], "advantage": 1.0}\n{"logp": [-1.0], "adv')
    assert len(list(read_tokens(path))) == 1


@pytest.mark.slow
def test_row_groups_of_long_completions_are_within_what_a_reader_takes(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    length = 400_000
    row = TokenRow.of({name: np.zeros(length) for name in ("logp", "logp_old", "entropy")}
                      | {"advantage": 1.0})  # fmt: skip
    write_tokens(tmp_path / "long.parquet", [row] * 5)
    groups = parquet.ParquetFile(tmp_path / "long.parquet").metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [2, 2, 1]
    assert [len(one.logp) for one in read_tokens(tmp_path / "long.parquet")] == [length] * 5
