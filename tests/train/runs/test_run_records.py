"""Records of a run: no secrets in them, mended after a kill, and read whatever they hold."""

import json
import sys
import time
from types import SimpleNamespace

import pytest
import yaml
from rich.console import Console
from synthetic_runs import Spec, make_run, undrawn

from trustclip.logs.reader import read_run
from trustclip.logs.samples import sample_rows
from trustclip.report.page import build
from trustclip.report.tables import latex_text
from trustclip.support.jsonl import append_jsonl, read_jsonl, read_mapping
from trustclip.support.lock import only_process
from trustclip.support.secrets import redact
from trustclip.support.text import markdown_text
from trustclip.train.card import about
from trustclip.train.durable.ranks import Interrupted
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.runs.opening import open_run
from trustclip.train.settings.stages import RLSettings

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
    for world in ("", "1"):
        monkeypatch.setenv("WORLD_SIZE", world)
        assert RunDirectory(tmp_path / f"run{world}", "rl", settings(tmp_path)).leads


def test_a_clock_that_jumps_is_no_time_spent(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path, "rl", settings(tmp_path))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3e8)
    run.summarize({})
    assert 0 <= run.summary["seconds"] < 1e6


def test_a_setting_that_a_run_has_otherwise_is_told_with_both_values(tmp_path):
    RunDirectory(tmp_path, "rl", settings(tmp_path)).summarize({})
    with pytest.raises(
        ValueError, match=r"replay=False, not True\. .* max_steps upwards, and changed_inputs"
    ):
        RunDirectory.resumed(tmp_path, "rl", settings(tmp_path, replay=True))
    with pytest.raises(ValueError, match="command='rl', not 'eval'"):
        RunDirectory.resumed(tmp_path, "eval", settings(tmp_path))


def test_what_a_run_says_of_its_settings_decides_what_is_essential(tmp_path):
    run = RunDirectory(tmp_path / "run", "rl", settings(tmp_path)).path
    (run / "marks.json").write_text('{"neutral": {"seed": "a test"}, "extends": ""}')
    whole = read_run(run)
    assert whole.config.keys() - whole.essential.keys() == {"seed"}
    (run / "marks.json").unlink()
    assert whole.config.keys() - read_run(run).essential.keys() == {"output_dir"}
    (run / "marks.json").write_text('{"neutral": []}')
    with pytest.raises(ValueError, match=r"marks\.json: neutral: "):
        read_run(run)


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


def test_files_of_the_user_are_left_alone_and_are_no_samples(tmp_path):
    run = RunDirectory(tmp_path / "run", "rl", settings(tmp_path))
    run.sample([{"step": 1}])
    own = ["samples_backup.jsonl", "samples-old.jsonl", "samples.jsonl.bak", "metrics-mine.jsonl"]
    for name in own:
        (run.path / name).write_text('{"step": 0}\n')
    made = ["samples-rank1.jsonl", "samples-rank2.jsonl"]
    for name in made:
        (run.path / name).write_text('{"step": 2}\n')
    assert [row["step"] for row in sample_rows(run.path)] == [1, 2, 2]
    (run.path / "tokens").mkdir()
    own.append("tokens/update-mine.parquet")
    (run.path / own[-1]).write_text('{"step": 3}\n')
    run.rewind({})
    assert all((run.path / name).exists() for name in own)
    assert not any((run.path / name).exists() for name in ["samples.jsonl", *made])


def test_no_record_holds_a_secret(tmp_path, monkeypatch):
    url = f"https://me:{SECRET}@host/v1?api_key={SECRET}"
    argv = ["rl", "--trl.hub_token", SECRET, f"--api-key={SECRET}", "--dataset", url, "--seed", "0"]
    monkeypatch.setattr(sys, "argv", ["trustclip", *argv])
    given = settings(tmp_path, trl={"hub_token": SECRET, "dataset": url})
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


def test_pages_and_cards_hide_the_secrets_of_older_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("trustclip.report.draw.figures.draw", undrawn)
    run = make_run(tmp_path / "run", Spec({"name": "atr"}))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["hub_token"], config["wandb"] = SECRET, {"api_key": SECRET}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    argv = ["run", f"--password={SECRET}", "--base-url", f"http://me:{SECRET}@host"]
    (run / "environment.json").write_text(json.dumps({"argv": argv}))
    out = tmp_path / "report"
    build([run], out)
    written = "".join([*(path.read_text() for path in out.glob("*.*")), about(run)])
    assert SECRET not in written and written.count("[redacted]") >= 2


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("summary.json", "[1, 2]", "holds a list, not a mapping"),
        ("summary.json", '{"a": ', "damaged: line 1"),
        ("summary.json", '{"overlap": {"x": {"tests": {"y": 3}}}}', r"overlap\.x\.tests\.y: "),
        ("summary.json", '{"initial": {"tasks": {}, "average": {"mean@2": 5}}}', "initial.average"),
        ("summary.json", '{"a":' * 100_000, "cannot be read: nested more than 64"),
        ("config.yaml", "- 1\n- 2", "holds a list, not a mapping"),
        ("config.yaml", "a: [1\nb: 2", "damaged: line 2"),
        ("config.yaml", "rl: {method: atr}", r"rl\.method: input should be a valid dictionary"),
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
