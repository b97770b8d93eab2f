"""Problem sources: formats, columns, golds, bad rows, names, and calls to the hub."""

import csv
import json
import logging
import tempfile
import tracemalloc
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trustclip.train.problems import files, rows
from trustclip.train.problems.hub import HUB_SOURCES
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.rows import DAPO_PREFIX, DAPO_SUFFIX, clean_answer
from trustclip.train.problems.sources import RowSelection, TooManyBadRows, load_problems

load_tests = partial(load_problems, use="test")

GOOD: dict[str, Any] = {"id": "good", "problem": "What is 1+2?", "answer": "3"}


def write_jsonl(path: Path, rows: list) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def read(source: str, **options: Any) -> SimpleNamespace:
    """Problems of a source, and the bad rows as they are listed in ``quarantine.jsonl``."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "quarantine.jsonl"
        problems = load_problems(source, quarantine=file, **options)
        lines = file.read_text().splitlines() if file.exists() else []
    rows = [SimpleNamespace(**json.loads(line)) for line in lines]
    return SimpleNamespace(problems=problems, bad_rows=rows)


def row_bytes(**changes: object) -> bytes:
    """A row unlike GOOD, with some columns changed; a column set to `...` is left out."""
    row = {"id": "x", "problem": "What is 2+2?", "answer": "4"} | changes
    return json.dumps({key: value for key, value in row.items() if value is not ...}).encode()


BAD_LINES = {
    "truncated": (row_bytes()[:-9], "invalid JSON"),
    "single quotes": (b"{'problem': 'a', 'answer': '1'}", "invalid JSON"),
    "nested too deeply": (b"[" * 100_000, "nested more than 64 levels"),
    "huge integer": (b'{"problem": "a", "answer": ' + b"9" * 5000 + b"}", "invalid JSON"),
    "UTF-16": ('{"problem": "a", "answer": "1"}'.encode("utf-16"), "invalid JSON: 'utf-8'"),
    "list": (b'["What is 2+2?", "4"]', "not an object but a list"),
    "null": (b"null", "not an object but null"),
    "empty object": (b"{}", "no problem in problem, question, prompt; the row has nothing"),
    "misspelt column": (row_bytes(problem=..., probelm="a"), "the row has id, answer, probelm"),
    "blank problem": (row_bytes(problem=" \n\t "), "problem is empty"),
    "template only": (row_bytes(problem=DAPO_PREFIX + DAPO_SUFFIX), "problem is empty"),
    "problem a number": (row_bytes(problem=7), "problem must be text or a chat, not int 7"),
    "problem a list of texts": (row_bytes(problem=["a"]), "no chat of role and content"),
    "long problem": (row_bytes(problem="a" * 32_769), "32769 characters, at most 32768"),
    "chat of two turns": (
        row_bytes(problem=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]),
        "more than a system and one user message",
    ),
    "chat with a reply": (
        row_bytes(problem=[{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]),
        "more than a system and one user message",
    ),
    "NUL in problem": (row_bytes(problem="a\0b"), "problem contains a NUL"),
    "lone surrogate in problem": (row_bytes(problem="a\ud800"), "lone surrogate"),
    "no answer": (row_bytes(answer=...), "no answer in answer, expected_answer"),
    "empty answer": (row_bytes(answer=" "), "answer is empty"),
    "list answer": (row_bytes(answer=[["4"]]), "is not a list of texts or numbers"),
    "object answer": (row_bytes(answer={"value": 4}), "not an object"),
    "boolean answer": (row_bytes(answer=True), "not a boolean"),
    "NaN answer": (row_bytes(answer=float("nan")), "answer is nan"),
    "NaN as text": (row_bytes(answer="NaN"), "means a missing value"),
    "float beyond 2^53": (b'{"problem": "a", "answer": 2e22}', "a float beyond 2^53"),
    "long answer": (row_bytes(answer="1" * 257), "257 characters, at most 256"),
    "unbalanced gold": (row_bytes(answer=r"\frac{1}{2"), "unbalanced braces"),
    "duplicate id": (row_bytes(id="good"), "duplicate id 'good', first on line 1"),
    "boolean id": (row_bytes(id=True), "id must be text or an integer, not a boolean"),
    "long id": (row_bytes(id="x" * 257), "id has 257 characters"),
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_bad_line_is_quarantined_and_the_rest_is_kept(tmp_path, kind):
    line, reason = BAD_LINES[kind]
    source, quarantine = tmp_path / "set.jsonl", tmp_path / "quarantine.jsonl"
    last = {"id": "last", "problem": "What is 5+5?", "answer": "10"}
    source.write_bytes(b"\n".join([json.dumps(GOOD).encode(), line, json.dumps(last).encode()]))
    problems = load_problems(str(source), quarantine=quarantine)
    assert [problem.id for problem in problems] == ["good", "last"]
    entries = [json.loads(text) for text in quarantine.read_text().splitlines()]
    assert [entry["line"] for entry in entries] == [2]
    assert reason in entries[0]["reason"]
    assert entries[0]["file"] == str(source)
    assert len(entries[0]["start"]) <= 200
    assert line[:20].decode(errors="replace") == entries[0]["start"][:20]


GOOD_TEXTS = {
    "right to left": "احسب ٢+٢",
    "LaTeX": "Let $f(x)=\\frac{1}{2}\\left\\{x\\right\\}$ \\[ \\sum_{i=1}^n i \\]",
    "emoji and joiners": "👩‍👩‍👧 shares 3 🍎",
    "line separator": "one\u2028two",
    "markup": "<script>alert(1)</script> & 'quotes' \"double\"",
}


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
@pytest.mark.parametrize("kind", GOOD_TEXTS)
def test_text_stays_as_it_is_in_every_format(tmp_path, suffix, kind):
    rows = [{"id": "a", "problem": GOOD_TEXTS[kind], "answer": "2"}]
    source = write_as(tmp_path / f"set{suffix}", rows)
    assert load_problems(source) == [Problem("a", GOOD_TEXTS[kind], "2")]


def write_as(path: Path, rows: list[dict]) -> str:
    if path.suffix == ".jsonl":
        return write_jsonl(path, rows)
    if path.suffix == ".json":
        path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def test_byte_order_mark_crlf_blank_lines_and_last_line_without_newline(tmp_path):
    source = tmp_path / "set.jsonl"
    lines = [json.dumps(GOOD), "", "   ", '{"problem": "one\\r\\ntwo", "answer": 2}']
    source.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    loaded = read(str(source))
    assert loaded.problems == [Problem(**GOOD), Problem("set-4", "one\ntwo", "2")]
    assert loaded.bad_rows == []


def test_a_huge_array_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 2**16)
    monkeypatch.setattr(files, "MAX_ARRAY_BYTES", 2**20)
    bomb = tmp_path / "data.json"
    bomb.write_bytes(b'[{"problem": "q", "answer": "7"},' + b" " * 2**24)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"data\.json: larger than 1 MiB"):
        read(str(bomb))
    assert tracemalloc.get_traced_memory()[1] < 2**23
    tracemalloc.stop()


def test_json_array_and_json_lines_under_one_suffix(tmp_path):
    array = tmp_path / "array.json"
    array.write_text(json.dumps([GOOD, 7]), encoding="utf-8")
    loaded = read(str(array))
    assert loaded.problems == [Problem(**GOOD)]
    assert [row.line for row in loaded.bad_rows] == [2]
    lines = write_jsonl(tmp_path / "lines.json", [GOOD])
    assert load_problems(lines) == [Problem(**GOOD)]
    array.write_text(json.dumps([GOOD])[:-5], encoding="utf-8")
    with pytest.raises(ValueError, match="invalid JSON"):
        load_problems(str(array))


CSV_BAD = {
    "too many cells": (b"b,What is 2+2?,4,5", "not 3 cells"),
    "text after quote": (b'b,"What" is 2+2?,4', "invalid CSV"),
    "invalid UTF-8": (b"b,caf\xe9,4", "invalid UTF-8"),
    "NUL": (b"b,a\x00b,4", "NUL"),
}


@pytest.mark.parametrize("kind", CSV_BAD)
def test_bad_csv_row_is_quarantined_with_its_line(tmp_path, kind):
    line, reason = CSV_BAD[kind]
    source = tmp_path / "set.csv"
    # The record on lines 2 and 3 has a line break inside its quotes.
    head = b'\xef\xbb\xbfid,problem,answer\r\na,"What is\r\n1+2?",3\r\n'
    source.write_bytes(head + line + b"\r\n\r\nc,What is 5+5?,10\r\n")
    loaded = read(str(source))
    assert loaded.problems == [
        Problem("a", "What is\n1+2?", "3"),
        Problem("c", "What is 5+5?", "10"),
    ]
    assert [row.line for row in loaded.bad_rows] == [4]
    assert reason in loaded.bad_rows[0].reason


def test_csv_with_an_unclosed_quote_loses_one_row(tmp_path):
    source = tmp_path / "set.csv"
    source.write_text('id,problem,answer\na,What is 1+2?,3\nb,"What is 2+2?,4\n')
    loaded = read(str(source))
    assert [problem.id for problem in loaded.problems] == ["a"]
    assert [row.reason for row in loaded.bad_rows] == ["invalid CSV: unexpected end of data"]


def test_parquet_damaged_file_and_invalid_text(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "set.parquet"
    for text, error in ((b"caf\xe9", "cannot be read as Parquet: .utf-8."), (b"1+2?", "")):
        column = pyarrow.array([text], pyarrow.binary()).view(pyarrow.string())
        parquet.write_table(pyarrow.table({"problem": column, "answer": [3.0]}), path)
        if error:
            with pytest.raises(ValueError, match=error):
                read(str(path))
    assert read(str(path)).problems == [Problem("set-1", "1+2?", "3")]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        load_problems(str(path))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"question": "q", "expected_answer": 5}, Problem("set-1", "q", "5")),
        ({"prompt": "q", "ground_truth": "5", "uuid": "u"}, Problem("u", "q", "5")),
        ({"id": None, "unique_id": "u", "problem": "q", "answer": "5"}, Problem("u", "q", "5")),
        ({"problem": None, "question": "q", "answer": "5"}, Problem("set-1", "q", "5")),
        (
            {"question": "q", "answer": "add up\n#### 1,234"},
            Problem("set-1", "q", "1234", "add up\n#### 1,234"),
        ),
        (
            {"question": "q", "solution": "a #### b\n#### 5"},
            Problem("set-1", "q", "5", "a #### b\n#### 5"),
        ),
        (
            {"problem": "q", "answer": "5", "generated_solution": "2+3"},
            Problem("set-1", "q", "5", "2+3"),
        ),
        ({"problem": "q", "answer": "5", "solution": ["2+3"]}, Problem("set-1", "q", "5")),
        (
            {
                "prompt": [
                    {"role": "system", "content": "be brief"},
                    {"role": "user", "content": f"{DAPO_PREFIX}so, solve it{DAPO_SUFFIX}"},
                ],
                "reward_model": {"ground_truth": "34", "style": "rule"},
                "extra_info": {"index": "9a9b"},
            },
            Problem("9a9b", "so, solve it", "34"),
        ),
    ],
)
def test_columns_are_found_by_their_aliases(tmp_path, row, expected):
    assert load_problems(write_jsonl(tmp_path / "set.jsonl", [row])) == [expected]


@pytest.mark.parametrize(
    ("gold", "integer", "expected"),
    [
        (2**60, False, str(2**60)),
        (" x+1 ", False, "x+1"),
        ("070", False, "070"),
        (r"\{1, 2\}", False, r"\{1, 2\}"),
        ("070", True, "70"),
        ("-4.00", False, "-4"),
        (r"$336^{\circ}$", True, "336"),
        (r"$\boxed{1,234}$", True, "1234"),
        (2**53, True, str(2**53)),
    ],
)
def test_golds_are_normalised(gold, integer, expected):
    assert clean_answer(gold, integer=integer) == expected


@pytest.mark.parametrize(
    "gold", ["1/2", "four", r"\frac{1}{2}", "4.5", ["4", "4.5"], str(2**53 + 1), "-" + "9" * 30]
)
def test_golds_of_integer_sources_must_be_exact_integers(gold):
    with pytest.raises(rows.RowError):
        clean_answer(gold, integer=True)


def test_repeats_are_dropped_and_contradictions_quarantined(tmp_path, caplog):
    rows = [
        {"id": "a", "problem": "What is  1+2?", "answer": "3"},
        {"id": "b", "problem": "What is 1+2?", "answer": 3.0},
        {"id": "c", "problem": "half", "answer": "1"},
        {"id": "d", "problem": "half", "answer": "2"},
        {"id": "e", "problem": "half", "answer": "1"},
        {"id": "f", "problem": "half", "answer": "5"},
    ]
    with caplog.at_level(logging.WARNING):
        loaded = read(write_jsonl(tmp_path / "set.jsonl", rows))
    assert [problem.id for problem in loaded.problems] == ["a"]
    assert [(row.line, row.reason) for row in loaded.bad_rows] == [
        (3, "same problem with answers '1' and '2'"),
        (4, "same problem with answers '1' and '2'"),
        (6, "same problem with answers '1' and '5'"),
    ]
    assert "bad rows left out: 3; identical repeats left out: 2" in caplog.text
    rows = [{"problem": "1+2", "answer": gold, "tests": test} for gold, test in
            (("3", "x"), ("3", "y"), ("3", "x"), (3.0, "y"))]  # fmt: skip
    path = write_jsonl(tmp_path / "tests.jsonl", rows)
    assert len(read(path).problems) == 1  # no reward reads the other column
    kept = load_problems(str(path), selection=RowSelection(further=True))
    assert [problem.columns for problem in kept] == [{"tests": "x"}, {"tests": "y"}]


def test_too_many_bad_rows_names_count_limit_and_first_reasons(tmp_path):
    source = write_jsonl(tmp_path / "set.jsonl", [GOOD] + [{"problem": n} for n in range(9)])
    quarantine = tmp_path / "run" / "quarantine.jsonl"
    with pytest.raises(TooManyBadRows, match=r"than max_bad_rows allows \(3\): .*line 2: "):
        load_problems(source, max_bad_rows=3, quarantine=quarantine)
    assert len(quarantine.read_text().splitlines()) == 4
    assert len(load_problems(source, max_bad_rows=9)) == 1


def test_quarantine_grows_by_source_and_not_by_rerun(tmp_path):
    quarantine = tmp_path / "quarantine.jsonl"
    for name in ("a", "b", "a"):
        rows = [GOOD, {"problem": "\ud800"}]
        load_problems(write_jsonl(tmp_path / f"{name}.jsonl", rows), quarantine=quarantine)
    entries = [json.loads(line) for line in quarantine.read_text().splitlines()]
    assert [Path(entry["file"]).stem for entry in entries] == ["a", "b"]


def test_limit_cuts_the_good_rows_and_leaves_the_bad_ones(tmp_path):
    rows = [{"problem": f"{n}+1", "answer": n + 1} for n in range(5)] + [7]
    source = write_jsonl(tmp_path / "set.jsonl", rows)
    loaded = read(source, limit=2)
    assert [problem.id for problem in loaded.problems] == ["set-1", "set-2"]
    assert len(loaded.bad_rows) == 1


def test_source_without_a_good_row_is_an_error(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(ValueError, match="no usable problem: it has no rows"):
        load_problems(str(empty))
    with pytest.raises(ValueError, match="the first bad row is line 1: not an object"):
        load_problems(write_jsonl(tmp_path / "one.jsonl", [1]))


@pytest.mark.parametrize(
    ("part", "kept"),
    [
        ("[:3]", [0, 1, 2]),
        ("[7:]", [7, 8, 9]),
        ("[-2:]", [8, 9]),
        ("[80%:]", [8, 9]),
        ("train[:20%]", [0, 1]),
    ],
)
def test_a_part_of_a_file_is_a_source(tmp_path, part, kept):
    rows = [{"problem": f"What is {n}+{n}?", "answer": str(2 * n)} for n in range(10)]
    path = write_jsonl(tmp_path / "sums.jsonl", rows)
    assert [p.id for p in load_problems(f"{path}@{part}")] == [f"sums-{n + 1}" for n in kept]


def test_a_part_of_a_file_in_another_form_is_refused_with_the_right_one(tmp_path):
    path = write_jsonl(tmp_path / "sums.jsonl", [GOOD])
    for part in ("test", "[1]", "[:x]", "[0:1:2]"):
        with pytest.raises(ValueError, match=r"a part of it is sums.jsonl@\[:200\]"):
            load_problems(f"{path}@{part}")
    with pytest.raises(ValueError, match="no file"):
        load_problems(str(tmp_path / "sumz.jsonl@[:2]"))


def test_missing_source_names_the_nearest_one(tmp_path):
    write_jsonl(tmp_path / "problems.jsonl", [GOOD])
    with pytest.raises(ValueError, match=r"did you mean 'problems.jsonl'"):
        load_problems(str(tmp_path / "problem.jsonl"))
    with pytest.raises(ValueError, match="there is no folder"):
        load_problems(str(tmp_path / "nowhere" / "problem.jsonl"))
    with pytest.raises(ValueError, match="is a folder"):
        load_problems(str(tmp_path))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"cannot read '.txt' files"):
        load_problems(str(tmp_path / "notes.txt"))
    with pytest.raises(ValueError, match=r"unknown problem source 'amc32' \(did you mean 'amc23'"):
        load_problems("amc32")
    with pytest.raises(ValueError, match="is a file, which has no split 'test'"):
        load_problems(str(tmp_path / "problems.jsonl@test"))


def test_benchmark_may_have_no_bad_row(tmp_path):
    rows = [{"problem": "q", "answer": "1/2"}, {"problem": "r", "answer": "2"}]
    source = write_jsonl(tmp_path / "aime24.jsonl", rows)
    with pytest.raises(TooManyBadRows, match="is no integer"):
        load_tests(source)
    assert len(load_problems(source)) == 1


class FakeHub:
    """Stands for `datasets.load_dataset`: records its calls and gives local rows."""

    def __init__(self, rows: list[dict]):
        self.rows, self.calls = rows, []

    def __call__(self, path: str, name: str | None = None, split: str | None = None):
        import datasets

        self.calls.append((path, name, split))
        return datasets.Dataset.from_list(self.rows)


def fake_hub(monkeypatch: pytest.MonkeyPatch, rows: list[dict]) -> FakeHub:
    datasets = pytest.importorskip("datasets")
    fake = FakeHub(rows)
    monkeypatch.setattr(datasets, "load_dataset", fake)
    return fake


#: Known sets whose rows have a form of their own: call, rows, and what becomes of them.
HUB_CALLS = {
    "amc23": (
        ("AI-MO/aimo-validation-amc", None, "train"),
        [{"id": 3, "problem": "q", "answer": 142.0}, {"id": 3, "problem": "r", "answer": 4.0}],
        [Problem("amc23-1", "q", "142"), Problem("amc23-2", "r", "4")],
    ),
    "aime24": (
        ("HuggingFaceH4/aime_2024", None, "train"),
        [{"id": 60, "problem": "q", "solution": "so", "answer": "070", "year": "2024"}],
        [Problem("60", "q", "70", "so")],
    ),
    "gsm8k": (
        ("openai/gsm8k", "main", "test"),
        [{"question": "q", "answer": "2*9 = <<2*9=18>>18\n#### 18"}],
        [Problem("gsm8k-1", "q", "18", "2*9 = <<2*9=18>>18\n#### 18")],
    ),
    "dapo": (
        ("BytedTsinghua-SIA/DAPO-Math-17k", None, "train"),
        [
            {
                "prompt": [{"role": "user", "content": DAPO_PREFIX + text + DAPO_SUFFIX}],
                "reward_model": {"ground_truth": gold, "style": "rule"},
                "extra_info": {"index": index},
            }
            for index, text, gold in [("u", "q", "34"), ("v", "r", "105263157894736848")]
            for _ in range(100)
        ],
        [Problem("u", "q", "34")],
    ),
    "dapo_en": (
        ("open-r1/DAPO-Math-17k-Processed", "en", "train"),
        [{"prompt": "q", "solution": "34", "extra_info": {"index": "u"}}],
        [Problem("u", "q", "34")],
    ),
    "openmath": (
        ("unsloth/OpenMathReasoning-mini", None, "cot"),
        [
            {"expected_answer": gold, "problem": "q", "generated_solution": solution}
            for gold, solution in [("5", "<think>a</think>b"), ("5", "c"), ("5", "c"), ("x", "d")]
        ],
        [
            Problem("openmath-1", "q", "5", "<think>a</think>b"),
            Problem("openmath-2", "q", "5", "c"),
        ],
    ),
}


#: Sets whose only split is called "train" and holds problems to evaluate on.
EVALUATED = ("amc23", "aime24")


@pytest.mark.parametrize("name", HUB_CALLS)
def test_known_names_call_the_hub_with_the_right_arguments(monkeypatch, name):
    call, rows, problems = HUB_CALLS[name]
    fake = fake_hub(monkeypatch, rows)
    load = load_problems if call[2] in ("cot", "train") and name not in EVALUATED else load_tests
    assert load(name) == problems
    assert fake.calls == [call]


def test_hub_ids_configurations_and_splits(monkeypatch):
    fake = fake_hub(monkeypatch, [{"problem": "q", "answer": "5.0"}])
    assert load_problems("owner/set") == [Problem("set-1", "q", "5")]
    load_problems("owner/set:hard@validation")
    load_problems("openai/gsm8k")
    load_tests("openai/gsm8k")
    load_tests("owner/set")
    load_tests("gsm8k@train[:100]")
    assert fake.calls == [
        ("owner/set", None, "train"),
        ("owner/set", "hard", "validation"),
        ("openai/gsm8k", "main", "train"),
        ("openai/gsm8k", "main", "test"),
        ("owner/set", None, "test"),
        ("openai/gsm8k", "main", "train[:100]"),
    ]


def test_training_never_takes_the_test_split_unless_it_is_named(monkeypatch):
    fake = fake_hub(monkeypatch, [{"problem": "q", "answer": "5"}])
    for name, entry in HUB_SOURCES.items():
        if entry.train is None:
            with pytest.raises(ValueError, match=f"has no train split.*{entry.path}@{entry.test}"):
                load_problems(name)
        elif entry.test is None:
            with pytest.raises(ValueError, match=f"has no test split.*{entry.path}@{entry.train}"):
                load_tests(name)
        else:
            load_problems(name)
            load_tests(name)
            (_, _, trained), (_, _, tested) = fake.calls[-2:]
            assert (trained, tested) == ("train", "test")
    load_problems("math500@test")
    assert fake.calls[-1] == ("HuggingFaceH4/MATH-500", None, "test")


def test_a_name_given_twice_is_refused(tmp_path):
    table = tmp_path / "set.csv"
    table.write_text("problem,answer,answer\nq,1,2\n")
    with pytest.raises(ValueError, match="the column 'answer' occurs twice"):
        load_problems(str(table))


def test_hub_rows_are_quarantined_by_number(monkeypatch):
    fake_hub(monkeypatch, [{"problem": "q", "answer": "5"}, {"problem": "", "answer": "5"}])
    loaded = read("owner/set")
    assert [vars(row) for row in loaded.bad_rows] == [
        {
            "file": "owner/set",
            "line": 2,
            "reason": "problem is empty",
            "start": "{'problem': '', 'answer': '5'}",
        }
    ]


@pytest.mark.parametrize("error", [ValueError("no split"), OSError("off")])
def test_hub_failure_says_what_was_asked_for(monkeypatch, error):
    datasets = pytest.importorskip("datasets")

    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(ValueError, match=r"openai/gsm8k \(config main, split test\).*use a file"):
        load_tests("gsm8k")


def test_golds_that_are_lists_are_alternatives(tmp_path):
    rows = [
        {"problem": "minerva", "answer": "['9.6\\n']"},
        {"problem": "olympiad", "final_answer": ["2", "-2"]},
        {"problem": "bench", "final_answer": ["\\frac{1}{2}"]},
        {"problem": "interval", "answer": "[1, 2]"},
    ]
    golds = [p.answer for p in load_problems(write_jsonl(tmp_path / "set.jsonl", rows))]
    assert golds == ["9.6", '["2", "-2"]', "\\frac{1}{2}", "[1, 2]"]
    bad = read(write_jsonl(tmp_path / "bad.jsonl", [GOOD, {"problem": "q", "answer": []}]))
    assert ["not a list of texts or numbers" in row.reason for row in bad.bad_rows] == [True]


def test_golds_that_are_words_are_reported_and_invisible_ones_refused(tmp_path, caplog):
    rows = [GOOD, {"problem": "a", "answer": "silent"}, {"problem": "b", "answer": "\u202e34"}]
    loaded = read(write_jsonl(tmp_path / "set.jsonl", rows))
    assert [p.answer for p in loaded.problems] == ["3", "silent"]
    assert "invisible character" in loaded.bad_rows[0].reason
    assert "1 golds are not mathematical: compared as text" in caplog.text
