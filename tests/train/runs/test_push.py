"""A run's model on the hub: through the hub's own client, to a stand-in of its API."""

import json
import sys

import pytest
import yaml
from hub_server import TOKEN, Hub
from synthetic_runs import Spec, make_run

from trustclip.cli.main import main
from trustclip.train.models import load_model, save_model

constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture
def hub(monkeypatch):
    hub = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield hub
    hub.close()


@pytest.fixture
def run(tmp_path):
    """What a finished run has of what is pushed."""
    folder = tmp_path / "sums"
    model, tokenizer = load_model("tiny", "plain")
    save_model(model, tokenizer, folder / "final", {"system": "Be brief."})
    config = {"command": "rl", "model": "tiny", "dataset": "arithmetic", "method": {"name": "atr"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "summary.json").write_text(json.dumps({"command": "rl", "finished": True}))
    (folder / "environment.json").write_text("{}")
    return folder


def test_all_of_final_is_committed_with_its_card_to_a_private_repository(hub, run, capsys):
    (run / "final" / ".cache").touch()
    assert main(["push", str(run), "ada/sums", "--yes"]) == 0
    final = run / "final"
    want = {path.relative_to(final).as_posix(): path.read_bytes() for path in final.rglob("*")}
    del want[".cache"]
    assert hub.files == {"ada/sums": want} and hub.private == {"ada/sums": True}
    assert want["README.md"].startswith(b"---\nlibrary_name: transformers")
    out = capsys.readouterr().out
    assert f"{len(want)} files, " in out and f"{hub.url}/ada/sums/commit/aaa" in out
    assert main(["push", str(run), "ada/sums", "--yes", "--public"]) == 0, "once more, as it is"
    assert hub.private == {"ada/sums": True}


def test_the_page_of_a_run_goes_with_its_model(hub, run, capsys):
    pytest.importorskip("plotly")
    made = make_run(run.parent / "made", Spec({"name": "atr"}, steps=4, every=2))
    (run / "final").rename(made / "final")
    assert main(["push", str(made), "ada/made", "--yes", "--report"]) == 0
    files = hub.files["ada/made"]
    assert files["report.html"] == (made / "report.html").read_bytes() and "README.md" in files


def test_a_dry_run_lists_files_and_asks_nobody(hub, run, capsys, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    assert main(["push", str(run), "ada/sums", "--dry-run", "--public"]) == 0
    out = capsys.readouterr().out
    size = (run / "final" / "model.safetensors").stat().st_size
    assert f"{size:,} bytes  model.safetensors" in out and "bytes  README.md" in out
    assert "to ada/sums on the hub (public if it is new)" in out and not hub.calls


def test_a_terminal_is_asked(hub, run, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda: "")
    assert main(["push", str(run), "ada/sums"]) == 0 and not hub.calls
    monkeypatch.setattr("builtins.input", lambda: "y")
    assert main(["push", str(run), "ada/sums", "--public"]) == 0
    assert hub.private == {"ada/sums": False}


def refused(capsys, *argv):
    assert main(["push", *map(str, argv)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_what_cannot_be_pushed_is_one_sentence_before_the_hub_is_asked(
    hub, run, capsys, monkeypatch
):
    assert "without a terminal to ask in, give --yes" in refused(capsys, run, "ada/sums")
    assert "give its owner, too, as in owner/sums" in refused(capsys, run, "sums", "--yes")
    assert "ada/su ms" in refused(capsys, run, "ada/su ms", "--yes")
    assert "holds no model" in refused(capsys, run / "final", "ada/sums", "--yes")
    prompt = run / "final" / "prompt.json"
    prompt.write_text('{\n"system": "Use ' + TOKEN + '"}')
    error = refused(capsys, run, "ada/sums", "--dry-run")
    assert "line 2 of" in error and "prompt.json" in error and TOKEN not in error
    prompt.unlink()
    base = run / "final" / "adapter_config.json"
    base.write_text(json.dumps({"base_model_name_or_path": str(run)}))
    assert "by a folder of this machine" in refused(capsys, run, "ada/sums", "--yes")
    base.unlink()
    (run / "final" / "link").symlink_to("/etc/hostname")
    assert "is a link to /etc/hostname" in refused(capsys, run, "ada/sums", "--yes")
    (run / "final" / "link").unlink()
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert "no token of the hub" in refused(capsys, run, "ada/sums", "--yes")
    assert not hub.calls


def test_what_the_hub_refuses_is_one_sentence_and_nothing_is_there(hub, run, capsys, monkeypatch):
    assert "nothing was pushed to eve/sums: " in refused(capsys, run, "eve/sums", "--yes")
    hub.files["ada/open"], hub.private["ada/open"] = {}, False
    error = refused(capsys, run, "ada/open", "--yes")
    assert "ada/open is public already; give --public" in error and not hub.files["ada/open"]
    monkeypatch.setenv("HF_TOKEN", "hf_" + "y" * 20)
    error = refused(capsys, run, "ada/sums", "--yes")
    assert "nothing was pushed to ada/sums: " in error and "Invalid token" in error
    assert list(hub.files) == ["ada/open"]
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert "nothing was pushed" in refused(capsys, run, "ada/sums", "--yes")
