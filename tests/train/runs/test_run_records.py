"""Records of a run: no secrets in them, mended after a kill, and read whatever they hold."""

import json
import sys
import time
from types import SimpleNamespace

import pytest
import yaml
from rich.console import Console
from synthetic_runs import Spec, make_run

from trustclip.logs.identity import essential
from trustclip.logs.reader import read_run, read_runs
from trustclip.logs.samples import Samples, shards
from trustclip.logs.writing.environment import environment
from trustclip.report.build import build
from trustclip.report.console import explain
from trustclip.report.tables import latex_text
from trustclip.support.jsonl import append_jsonl, read_jsonl, read_mapping
from trustclip.support.lock import only_process
from trustclip.support.secrets import redact, redacted_argv
from trustclip.support.text import duration, markdown_text
from trustclip.train.card import about
from trustclip.train.durable.ranks import Interrupted
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.runs.opening import open_run
from trustclip.train.settings.stages import RLSettings
from trustclip.train.suite.plan import digest

SECRET = "s3cr3t-value"


def settings(folder, **changes):
    return RLSettings(model="m", dataset="d.jsonl", output_dir=folder, **changes)


def test_a_run_is_resumed_whatever_its_neutral_settings(tmp_path):
    RunDirectory(tmp_path, "rl", settings(tmp_path)).summarize({})
    changed = {"save_steps": 3, "save_total_limit": 7, "report_to": "wandb", "logging_steps": 5}
    assert RunDirectory.resumed(tmp_path, "rl", settings(tmp_path, **changed)).path == tmp_path
    with pytest.raises(ValueError, match="max_steps"):
        RunDirectory.resumed(tmp_path, "rl", settings(tmp_path, max_steps=3))


def test_the_time_of_a_stopped_run_is_that_of_all_its_parts(tmp_path, monkeypatch):
    console, config = Console(quiet=True), settings(tmp_path / "run")
    wall = iter([100.0, 130.0, 500.0, 507.0])
    clock = SimpleNamespace(monotonic=lambda: next(wall), process_time=lambda: 0.0)
    monkeypatch.setattr("trustclip.logs.writing.run.time", clock)
    with open_run("rl", config, console):
        raise Interrupted
    with open_run("rl", config, console) as (run, finished):
        assert not finished
        run.summarize({"finished": True})
    assert run.summary["seconds"] == 37.0


@pytest.mark.parametrize("job", [("1", None), ("", "2"), ("2", "2"), ("one", "2")])
def test_half_a_rank_is_refused_before_anything_is_written(tmp_path, monkeypatch, job):
    for name, value in zip(("RANK", "WORLD_SIZE"), job, strict=True):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"RANK=.* and WORLD_SIZE=.*unset both"):
        RunDirectory(tmp_path / "run", "rl", settings(tmp_path))
    with pytest.raises(ValueError, match="unset both"), only_process(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("RANK", "")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert RunDirectory(tmp_path / "run", "rl", settings(tmp_path)).leads


def test_a_clock_that_jumps_is_no_time_spent(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path, "rl", settings(tmp_path))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3e8)
    run.summarize({})
    assert 0 <= run.summary["seconds"] < 1e6


def test_the_file_of_a_suite_is_parsed_once_for_all_its_runs(tmp_path, monkeypatch):
    names = [f"clip-seed{seed}" for seed in range(4)]
    for seed, name in enumerate(names):
        make_run(tmp_path / name, Spec({"name": "clip"}, seed=seed))
    entries = {name: {"label": "clip"} for name in names}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump({"name": "s", "runs": entries}))
    parsed = []
    monkeypatch.setattr(
        "trustclip.logs.reader.read_mapping", lambda path: parsed.append(path) or read_mapping(path)
    )
    runs = read_runs([tmp_path])
    assert [run.entry["suite"] for run in runs] == ["s"] * 4
    assert [path.name for path in parsed].count("suite.yaml") == 1


def test_a_setting_that_a_run_has_otherwise_is_told_with_both_values(tmp_path):
    RunDirectory(tmp_path, "rl", settings(tmp_path)).summarize({})
    with pytest.raises(
        ValueError, match=r"replay=False, not True; .* max_steps upwards, and changed_inputs"
    ):
        RunDirectory.resumed(tmp_path, "rl", settings(tmp_path, replay=True))
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    del config["replay"]  # as in a release before it
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ValueError, match="had no setting replay, and did what False does now"):
        RunDirectory.resumed(tmp_path, "rl", settings(tmp_path, replay=True))


def test_what_a_run_says_of_its_settings_decides_what_is_essential(tmp_path):
    run = RunDirectory(tmp_path / "run", "rl", settings(tmp_path)).path
    (run / "marks.json").write_text(
        '{"neutral": {"seed": "a test"}, "since": {"beta": 0.0}, "extends": ""}'
    )
    whole = read_run(run)
    assert whole.config.keys() - whole.essential.keys() == {"seed", "beta"}
    (run / "marks.json").write_text('{"neutral": []}')
    with pytest.raises(ValueError, match=r"marks\.json: neutral: "):
        read_run(run)


def test_neutral_settings_change_no_digest_and_the_name_of_a_method_is_not_neutral():
    recipe = {"name": "a", "seed": 0, "rl": {"logging_steps": 1, "method": {"name": "atr"}}}
    same = {"seed": 0, "rl": {"logging_steps": 8, "report_to": "wandb", "method": {"name": "atr"}}}
    assert digest(recipe) == digest(same)
    other = {"seed": 0, "rl": {"method": {"name": "clip"}}}
    assert digest(recipe) != digest(other) and essential(recipe) != essential(other)


def test_a_torn_last_line_is_mended_by_the_next_append(tmp_path):
    path = tmp_path / "events.jsonl"
    append_jsonl(path, [{"a": 1}])
    with path.open("ab") as file:
        file.write('{"a": "torn ü'.encode()[:-1])
    append_jsonl(path, [{"a": 2}])
    assert path.read_text() == '{"a": 1}\n{"a": 2}\n'
    path.write_text('{"a": 3}')  # whole but for its newline: kept
    append_jsonl(path, [{"a": 4}])
    assert read_jsonl(path) == [{"a": 3}, {"a": 4}]
    path.write_text("{")
    append_jsonl(path, [{"a": 5}])
    assert read_jsonl(path) == [{"a": 5}]


def test_a_users_copy_of_the_samples_is_neither_read_nor_deleted(tmp_path):
    run = RunDirectory(tmp_path, "rl", settings(tmp_path))
    row = {"stage": "eval", "step": 0, "task": "t", "id": "1", "k": 0, "correct": 1}
    run.sample([row])
    cursor = run.cursor()
    copy = tmp_path / "samples_backup.jsonl"
    copy.write_bytes((tmp_path / "samples.jsonl").read_bytes())
    append_jsonl(tmp_path / "samples-rank1.jsonl", [{**row, "k": 1}])
    names = ["samples.jsonl", "samples-rank1.jsonl"]
    assert [path.name for path in shards(tmp_path)] == names
    assert len(Samples.read(tmp_path).places) == 2
    run.rewind(cursor)
    assert copy.exists() and [path.name for path in shards(tmp_path)] == ["samples.jsonl"]


def test_no_record_holds_a_secret(tmp_path, monkeypatch):
    url = f"https://me:{SECRET}@host/v1?api_key={SECRET}"
    argv = ["rl", "--trl.hub_token", SECRET, f"--api-key={SECRET}", "--dataset", url, "--seed", "0"]
    monkeypatch.setattr(sys, "argv", ["trustclip", *argv])
    assert environment()["argv"][-2:] == ["--seed", "0"]
    given = settings(tmp_path, trl={"hub_token": SECRET})
    run = RunDirectory(tmp_path, "rl", given)
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert SECRET not in written and "hub_token" in written
    assert RunDirectory.resumed(tmp_path, "rl", given).path == run.path


#: Ends of secrets, which no form of them may leave standing.
TAIL = "q7Zr0Xw9Lk3Vb8Nt5Yp2"


@pytest.mark.parametrize(
    "text",
    [
        "ASIA" + TAIL.upper(), "AIza" + TAIL * 2, "ya29." + TAIL, "nvapi-" + TAIL, "r8_" + TAIL,
        "sk_live_" + TAIL, "rk_test_" + TAIL, "gsk_" + TAIL, "pypi-" + TAIL,
        "dapi" + "0123456789abcdef" * 2, "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ0cnVlIn0." + TAIL,
        f"-----BEGIN RSA PRIVATE KEY-----\n{TAIL}\n{TAIL}\n-----END RSA PRIVATE KEY-----",
        f"https://a.blob.core.windows.net/c?sv=2024&sig={TAIL}%3D",
        f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={TAIL}==;EndpointSuffix=b",
        f"Endpoint=sb://a/;SharedAccessKey={TAIL}", f"https://host/callback#token={TAIL}",
        f"https://host/?db_pwd={TAIL}", "npm_" + TAIL, "dop_v1_" + TAIL, "SG." + TAIL,
        "xai-" + TAIL, "pplx-" + TAIL, "tgp_v1_" + TAIL, f"https://hooks.slack.com/services/{TAIL}",
        f"https://discord.com/api/webhooks/1/{TAIL}", f"MY_API_KEY={TAIL}", f"password={TAIL}",
    ],
)  # fmt: skip
def test_a_secret_is_known_by_its_form(text):
    shown = redact({"note": f"see {text} there"})["note"]
    assert TAIL.lower() not in shown.lower() and "0123456789abcdef" not in shown
    assert shown.startswith("see ") and "[redacted]" in shown


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, TAIL) for name in (
            "db_pwd", "smtp_pass", "wandb_key", "cookie", "api_keys", "secrets", "hf_key",
            "session-cookies", "access_tokens", "passwords", "ssh_key", "PGPASSWORD_PWD",
            "accessToken", "clientSecret", "jwt", "creds", "dsn", "connection_string", "webhook",
        )),
        ("credentials", {"user": "me", "value": TAIL}), ("api_keys", [TAIL, TAIL]),
        ("password", 31415926), ("secret", {"pin": 31415926}),
    ],
)  # fmt: skip
def test_a_secret_is_known_by_its_name(name, value):
    shown = str(redact({name: value}))
    assert TAIL not in shown and "31415926" not in shown and name in shown


def test_ordinary_settings_are_no_secrets():
    plain = {
        "max_tokens": 512, "tokens": ["a", "b"], "tokens_every": 2, "eos_token": "</s>",
        "level": "token", "steps_per_pass": 4, "pass@8": 0.5, "passes": 3, "bypass": "yes",
        "answer_key": "gold", "sort_key": "id", "keys": ["a"], "key": "answer", "model": "tiny",
        "sortKey": "id", "maxTokens": 5,
        "columns": {"problem": "question", "answer": "solution"}, "push_to_hub": False,
        "hub_token": None, "dataset": "org/sk-learn", "url": "https://host/data?split=train&n=3",
        "commit": "3f786850e387550fdab836ed7e6dc881de23001b", "template": "token: {problem}",
        "note": "AIza is a prefix, ASIA a continent; a key=value pair; design=big&sig",
        "number": 31415926, "text": "eyJ is how base64 of JSON begins",
    }  # fmt: skip
    assert redact(plain) == plain
    argv = ["rl", "--columns", "{problem: question}", "--prompt.template", "{problem} = ?"]
    assert redacted_argv(argv) == argv


@pytest.mark.parametrize(
    "argv",
    [
        ["--columns", "{api_key: XYZ123}"],
        ["--columns={problem: q, api_key: XYZ123}"],
        ["--trl.model_init_kwargs", "{token: XYZ123}"],
        ["--trl.model_init_kwargs", '{"headers": {"authorization": "XYZ123"}}'],
        ["--credentials", "{user: me, value: XYZ123}"],
        ["--env", "HF_TOKEN=XYZ123"],
        ["--header", "X-Api-Key: XYZ123"],
    ],
)
def test_a_mapping_on_the_command_line_hides_its_secrets(argv):
    shown = " ".join(redacted_argv(argv))
    assert "XYZ123" not in shown and "[redacted]" in shown and argv[0].split("=")[0] in shown


def test_pages_and_cards_hide_the_secrets_of_older_runs(tmp_path):
    run = make_run(tmp_path / "run", Spec({"name": "atr"}))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["hub_token"], config["wandb"] = SECRET, {"api_key": SECRET}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    argv = ["run", f"--password={SECRET}", "--base-url", f"http://me:{SECRET}@host"]
    (run / "environment.json").write_text(json.dumps({"argv": argv}))
    out = tmp_path / "report"
    build([run], out)
    written = "".join([*(path.read_text() for path in out.glob("*.*")), about(run)])
    assert SECRET not in written and written.count("[redacted]") >= 4


def test_no_text_of_a_run_controls_the_terminal(tmp_path):
    run = make_run(tmp_path / "run", Spec({"name": "atr"}))
    text = "\x1b]0;owned\x07 \x9b2J \u202ereversed"
    append_jsonl(
        run / "metrics.jsonl", [{"stage": "notice", "step": 3, "notice": "n", "text": text}]
    )
    paragraphs = explain(run)
    assert any("owned" in paragraph for paragraph in paragraphs)
    assert all(character.isprintable() for paragraph in paragraphs for character in paragraph)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("summary.json", "[1, 2]", "holds a list, not a mapping"),
        ("summary.json", '{"a": ', "damaged: line 1"),
        ("summary.json", '{"overlap": {"x": {"tests": {"y": 3}}}}', r"overlap\.x\.tests\.y: "),
        ("summary.json", '{"initial": {"tasks": {}, "average": {"mean@2": 5}}}', "initial: "),
        ("summary.json", '{"a":' * 100_000, "cannot be read: nested more than 64"),
        ("config.yaml", "- 1\n- 2", "holds a list, not a mapping"),
        ("config.yaml", "a: [1\nb: 2", "damaged: line 2"),
        ("config.yaml", "a: \x1b]0;owned\x07", "damaged"),
        ("environment.json", '"text"', "holds a str, not a mapping"),
    ],
)
def test_a_damaged_file_is_named_in_one_sentence(tmp_path, name, content, reason):
    run = make_run(tmp_path / "run", Spec({"name": "atr"}))
    (run / name).write_text(content)
    for read in (read_run, about):
        with pytest.raises(ValueError, match=reason) as caught:
            read(run)
        assert str(run / name) in str(caught.value)
        assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value)


def test_a_file_that_is_not_there_or_empty_holds_nothing(tmp_path):
    assert read_mapping(tmp_path / "none.json") == {}
    (tmp_path / "empty.yaml").write_text("")
    assert read_mapping(tmp_path / "empty.yaml") == {}


def test_texts_are_escaped_where_they_are_written():
    assert "\x1b" not in latex_text("a\x1b[31m") and "<" not in markdown_text("<script>")
    assert markdown_text("[x](javascript:1)") == "[x]\\(javascript:1)"


def test_times_are_written_in_one_way():
    assert duration(3661) == "1 h 1 min" and duration(float("nan")) == "-"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-8B", "Qwen3-8B"),
        ("models/smollm2/hf", "smollm2/hf"),
        ("runs/a/final", "a/final"),
        ("/home/me/models--Qwen--Qwen3-8B/snapshots/0a1b", "Qwen3-8B"),
    ],
)
def test_a_model_has_a_name_that_says_which(tmp_path, model, name):
    run = make_run(tmp_path / "run", Spec({"name": "atr"}, steps=4, every=4, model=model))
    assert read_run(run).model == name
