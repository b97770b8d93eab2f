"""Tokens in the terminal: the worst first, cut ones in brackets, and no control codes."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
import token_files
from rich.console import Console
from synthetic_runs import Spec, make_run

import trustclip as tc
from trustclip.cli.main import main
from trustclip.logs.tokens import TokenRow, read_tokens, token_batch
from trustclip.report.token_console import OWN, SHADOWS, judge, print_tokens


def printed(path, color=None, **options):
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=color is not None, color_system=color)
    print_tokens(path, console, **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return token_files.write(tmp_path_factory.mktemp("console") / "tokens.parquet")


@pytest.mark.parametrize("name", SHADOWS)
def test_a_shadow_is_what_its_method_gives(path, name):
    method = tc.method(name)
    for row in read_tokens(path):
        item, batch = judge(row, method), token_batch([row])
        assert item is not None
        np.testing.assert_allclose(item.coefficient, tc.coefficient(method, batch)[0])
        gated = batch.mask & ~method.surrogate(batch).kept
        np.testing.assert_array_equal(item.cut, gated[0].numpy())


def test_a_row_says_what_it_can():
    row = TokenRow.of({"logp": [-1.0, -2.0], "logp_old": [-1.0, -1.0], "advantage": -1.0})
    item = judge(row, tc.method("clip"))
    assert item is not None and item.cut.tolist() == [False, True]
    assert judge(row) is None and judge(row, tc.method("icepop")) is None
    half = judge(TokenRow.of({"logp": [-1.0, -2.0], "advantage": 1.0, "coefficient": [1.0, 0.0]}))
    assert half is not None and half.cut.tolist() == [False, True]


@pytest.mark.parametrize("constraint", [OWN, "atr"])
def test_the_worst_come_first_with_their_cut_tokens_in_brackets(path, constraint):
    text = printed(path, worst=True, count=4, constraint=constraint)
    method = None if constraint == OWN else tc.method(constraint)
    items = [item for row in read_tokens(path) if (item := judge(row, method))]
    items = sorted(items, key=lambda item: -item.share)[:4]
    numbers = [int(n) for n in re.findall(r"completion (\d+),", text)]
    assert numbers == [item.row.index for item in items]
    assert text.count("⟦") == sum(int(item.cut.sum()) for item in items)
    assert f"% cut by {constraint}" in text and "<think>" in text


def test_the_strings_cut_most_often_are_counted_over_all_completions(path):
    tokens = [
        (text, not kept)
        for row in token_files.made()
        for text, kept, counts in zip(row.token or (), row.kept, row.mask, strict=True)  # type: ignore[arg-type]
        if counts
    ]
    cut = sum(gone for _, gone in tokens) / len(tokens)
    size = sum(word == "<think>" for word, _ in tokens)
    hits = sum(gone for word, gone in tokens if word == "<think>")
    text = printed(path, count=1)
    assert f"cuts {100 * cut:.2f} % of {len(tokens):,} tokens in 24 completions" in text
    first = text.partition("average")[2].split("\n")[1].split()
    assert first == ["<think>", f"{size}", f"{hits}", f"{100 * hits / size:.1f}",
                     f"{hits / size / cut:.1f}"]  # fmt: skip


def test_of_one_update_the_first(path):
    text = printed(path, update=11, count=2)
    assert [int(n) for n in re.findall(r"completion (\d+),", text)] == [1, 4]
    assert "in 8 completions" in text
    assert "update 11, sampled after update " in text
    with pytest.raises(ValueError, match=r"no tokens of update 12; recorded: 1, 11, 21\."):
        printed(path, update=12)


def test_the_updates_of_another_trainers_export_are_named():
    export = Path(__file__).parents[1] / "data" / "logs" / "prime_rl" / "losses"
    with pytest.raises(ValueError, match=r"no tokens of update 999; recorded: \d"):
        printed(export, update=999, constraint="clip")


def test_texts_cannot_command_the_terminal(path):
    plain = printed(path, count=24)
    assert "\x1b" not in plain and "\x07" not in plain and "\u202e" not in plain
    assert "<U+001B>" in plain and "⏎" in plain and "⇥" in plain
    coloured = printed(path, color="truecolor", count=24)
    codes = set(re.findall(r"\x1b.", coloured))
    assert codes == {"\x1b["}
    # Nothing but colours and weights: no cursor, no screen, no title.
    assert {m[-1] for m in re.findall(r"\x1b\[[\d;]*[A-Za-z]", coloured)} == {"m"}


def test_the_command_reads_a_run_and_says_what_is_missing(path, tmp_path, capsys):
    run = make_run(tmp_path / "run", Spec({"name": "clip", "epsilon": 0.1}, steps=4, every=4))
    assert main(["tokens", str(run)]) == 2
    assert "has no recorded tokens" in capsys.readouterr().err
    token_files.write(run / "tokens" / "update-000003.parquet")
    assert main(["tokens", str(run), "--worst", "--count", "1"]) == 0
    assert "this run cuts" in capsys.readouterr().out
    assert main(["tokens", str(run), "--constraint", "cilp"]) == 2
    assert "did you mean 'clip'?" in capsys.readouterr().err
    assert main(["tokens", str(run), "--count", "0"]) == 2
    assert "`count` should be greater than or equal to 1" in capsys.readouterr().err
