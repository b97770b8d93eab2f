"""Damaged files and texts of strangers: what reads them raises only its documented errors."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trustclip.logs.recognise import read_log
from trustclip.logs.tokens import TokenRow, read_tokens
from trustclip.support.jsonl import read_jsonl
from trustclip.support.text import markdown_text, one_line
from trustclip.train.files import load_recipe

RECIPES = [path.read_bytes() for path in sorted(Path(__file__).parents[2].glob("recipes/*.yaml"))]
LOGS = [
    b'{"logp": [-1.0, -2.5], "advantage": 0.5, "mask": [true, false], "token": ["a", ""]}',
    b'{"step": 1, "loss": 0.1, "reward": NaN}\n{"step": 2, "kl": 1e400}\n',
    b'{"train/loss": 1, "global_step": 3}\n{"torn',
]


def damaged(examples: list[bytes]) -> st.SearchStrategy[bytes]:
    """Examples that are cut, doubled or spliced in up to five places."""
    pieces = st.binary(max_size=3) | st.sampled_from([b"[" * 9, b"{}", b"-1", b"\n", *examples])
    changes = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8), pieces), max_size=5)

    def spliced(example: bytes, places: list[tuple[float, int, bytes]]) -> bytes:
        data = bytearray(example)
        for share, cut, piece in places:
            place = int(share * len(data))
            data[place : place + cut] = piece[:20]
        return bytes(data)

    return st.builds(spliced, st.sampled_from(examples), changes)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "file.jsonl"


@settings(max_examples=10)
@given(damaged(RECIPES))
def test_a_recipe_is_read_or_refused(file, data):
    file.write_bytes(data)
    with contextlib.suppress(ValueError, OSError):
        load_recipe(file)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=200)
@given(damaged(LOGS))
def test_a_log_is_read_or_refused(file, data):
    file.write_bytes(data)
    for read in (read_log, read_jsonl, lambda path: list(read_tokens(path))):
        with contextlib.suppress(ValueError, OSError):
            read(file)


@settings(max_examples=200)
@given(damaged(LOGS[:1]))
def test_a_row_of_tokens_is_refused_or_comes_back_as_it_was(data):
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(data)
        taken = TokenRow.of(value).to_dict() if isinstance(value, dict) else None
        assert taken is None or repr(TokenRow.of(taken).to_dict()) == repr(taken)


@settings(max_examples=200)
@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
def test_a_text_that_is_shown_holds_no_control_characters_and_no_markup(text):
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in one_line(text))
    written = markdown_text(text)
    assert "<" not in written and "\n" not in written
