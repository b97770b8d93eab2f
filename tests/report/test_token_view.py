"""The token view: its numbers are those of the methods, its strings those of the completions."""

import base64
import json
import math
import zlib

import numpy as np
import pytest
import token_files
from synthetic_runs import Spec, make_run, undrawn

from trustclip.logs.tokens import TokenRow, read_tokens, write_tokens
from trustclip.report import microscope
from trustclip.report.microscope import COLUMNS, token_page, tokens_data
from trustclip.report.page import build


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return token_files.write(tmp_path_factory.mktemp("tokens") / "tokens.parquet")


def test_the_page_holds_the_tokens_in_single_precision(path):
    data = tokens_data([("a", path)])
    (run,) = data["runs"]
    assert json.loads(json.dumps(data, allow_nan=False)) is not None and run["total"] == 24
    content, at = zlib.decompress(base64.b64decode(data["tokens"])), 0

    def take(kind: str, length: int) -> np.ndarray:
        nonlocal at
        found = np.frombuffer(content, kind, length, at)
        at += found.nbytes
        return found

    for given, row in zip(run["rows"], read_tokens(path), strict=True):
        for name in COLUMNS:
            np.testing.assert_allclose(take("<f4", given["length"]), getattr(row, name), rtol=1e-6)
        flags, places = take("<u4", given["length"]), take("<u4", given["length"])
        assert ((flags & 1) == row.mask).all() and (((flags >> 1) & 1) == row.kept).all()
        assert [tuple(data["texts"][n]) for n in places] == list(
            zip(row.token, row.token_id, strict=True)  # type: ignore[arg-type]
        )
        assert given["reward"] == given["index"] % 2
    assert at == len(content)


def test_of_many_completions_a_sample_is_shown(tmp_path, monkeypatch):
    path = token_files.write(tmp_path / "many.jsonl", 60)
    monkeypatch.setattr(microscope, "MAX_COMPLETIONS", 10)
    (seen,) = tokens_data([("a", path)])["runs"]
    assert (seen["total"], len(seen["rows"])) == (60, 10)
    steps = [row["index"] for row in seen["rows"]]
    assert steps == sorted(steps) and steps != list(range(10))
    monkeypatch.setattr(microscope, "MAX_TOKENS", 100)
    assert len(tokens_data([("a", path)])["runs"][0]["rows"]) < 5


def test_a_file_of_tokens_has_a_page_and_a_bad_one_a_message(path, tmp_path):
    (page,) = build([path], tmp_path / "out")
    text = page.read_text()
    assert 'id="token-text"' in text
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"logp": [-1.0], "advantages": 1.0}\n')
    with pytest.raises(ValueError, match=r"bad.jsonl:1: there is no column `advantage`"):
        build([bad], tmp_path / "none")
    assert not (tmp_path / "none" / "index.html").exists()


def test_numbers_that_are_not_finite_are_shown_as_unknown(tmp_path):
    row = {
        "logp": [-1.0, math.nan],
        "advantage": 1.0,
        "coefficient": [1.0, math.nan],
        "reward": 1e999,
    }
    write_tokens(tmp_path / "a.parquet", [TokenRow.of(row)])
    (run,) = tokens_data([("a", tmp_path / "a.parquet")])["runs"]
    assert run["rows"][0]["reward"] is None
    assert "</pre>" in token_page([tmp_path / "a.parquet"], "Tokens")


def test_the_report_of_a_run_has_its_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr("trustclip.report.draw.figures.draw", undrawn)
    run = make_run(tmp_path / "run", Spec({"name": "clip", "epsilon": 0.1}, steps=8, every=8))
    token_files.write(run / "tokens" / "update-000003.parquet")
    page = build([run], tmp_path / "out")[0].read_text()
    data = page.partition('id="data-tokens">')[2].partition("</script>")[0]
    (seen,) = json.loads(data)["runs"]
    assert seen["total"] == 24 and "coefficient" in seen["rows"][0]["has"]
