"""What would fail after hours of fine-tuning is refused before a model loads."""

import importlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from trustclip.cli.main import main
from trustclip.support.consent import consent
from trustclip.train.services import answers, unavailable
from trustclip.train.settings.stages import RLStage

#: Nothing answers on this port, which belongs to nobody.
NOWHERE = "http://127.0.0.1:9"
SHORT = ["--sft.max-steps", "1", "--rl.max-steps", "2", "--rl.limit", "64", "--eval.limit", "2"]


@pytest.fixture
def loads(monkeypatch):
    """Number of models that were made or loaded."""
    from transformers import Qwen3ForCausalLM

    count: list[str] = []

    def refuse(*_: Any, **__: Any) -> Any:
        count.append("loaded")
        raise AssertionError("a model loads")

    monkeypatch.setattr(Qwen3ForCausalLM, "__init__", refuse)
    return count


def package(name: str, monkeypatch: pytest.MonkeyPatch, **members: Any) -> None:
    """Put a package in the place of one that need not be installed.

    TRL looks at what is installed when it is imported: first, so that other tests find it whole.
    """
    importlib.import_module("trustclip.engines.trl.upstream")
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


def run(tmp_path: Path, *more: str) -> int:
    return main(["run", "tiny", *SHORT, "--output-dir", str(tmp_path / "run"), *more])


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A user who has wandb, is online and has never logged in."""
    package("wandb", monkeypatch)
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_tracker_without_login_is_refused(tmp_path, monkeypatch, capsys, loads, stranger):
    assert run(tmp_path, "--rl.report_to", "wandb") == 2
    assert "wandb has no API key: `wandb login`" in capsys.readouterr().err
    rl = ["rl", "--preset", "tiny", "--report-to", "wandb", "--output-dir", str(tmp_path / "run")]
    assert main(rl) == 2 and "no API key" in capsys.readouterr().err
    assert not (tmp_path / "run").exists() and not loads


@pytest.mark.parametrize("way", ["offline", "disabled", "key", "netrc"])
def test_a_tracker_that_is_offline_or_has_a_login_is_not(tmp_path, monkeypatch, stranger, way):
    if way == "netrc":
        (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password x")
    elif way == "key":
        monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    else:
        monkeypatch.setenv("WANDB_MODE", way)
    assert [*unavailable("wandb")] == []


@pytest.mark.parametrize(
    "tracker, variable", [("mlflow", "MLFLOW_TRACKING_URI"), ("trackio", "TRACKIO_SERVER_URL")]
)
def test_a_tracker_s_server_that_does_not_answer(monkeypatch, tracker, variable):
    monkeypatch.delenv("TRACKIO_SPACE_ID", raising=False)
    monkeypatch.setenv(variable, "http://me:secret@127.0.0.1:9")
    (text,) = unavailable(tracker)
    assert f"no server answers at http://[redacted]@127.0.0.1:9 ({variable})" in text
    monkeypatch.setenv(variable, "sqlite:///here.db")
    assert [*unavailable(tracker)] == []


def test_a_reward_whose_constructor_fails(tmp_path, monkeypatch, capsys, loads):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "class Listed:\n"
        "    def __init__(self, path='none.txt'):\n"
        "        self.words = open(path).read()\n"
        "    def __call__(self, texts, **_):\n"
        "        return [0.0 for _ in texts]\n"
    )
    for place in ("--rl.reward", "--eval.reward"):
        assert run(tmp_path, place, "own.py:Listed") == 2
        said = capsys.readouterr().err
        assert "cannot make the reward 'own.py:Listed'" in said and "none.txt" in said
        assert not (tmp_path / "run" / "sft").exists()
    rl = ["rl", "--preset", "tiny", "--output-dir", str(tmp_path / "rl"), "--reward"]
    assert main([*rl, "own.py:Listed"]) == 2 and not loads
    # Nothing has begun: the corrected command takes the same folder, and goes on to the model.
    Path("words.txt").write_text("a b")
    with pytest.raises(AssertionError, match="a model loads"):
        main([*rl, "{name: 'own.py:Listed', path: words.txt}"])
    assert loads


def test_a_reward_is_made_once_for_a_whole_run(tmp_path, monkeypatch):
    from trustclip.support.terminal import Terminal
    from trustclip.train import rl
    from trustclip.train.problems.problem import Problem
    from trustclip.train.runs.directory import RunDirectory
    from trustclip.train.settings.stages import RLSettings
    from trustclip.train.tiny import tiny_model

    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "from pathlib import Path\n"
        "class Noted:\n"
        "    def __init__(self):\n"
        "        Path('made').open('a').write('x')\n"
        "    def __call__(self, texts, **_):\n"
        "        return [0.0 for _ in texts]\n"
        "    def close(self):\n"
        "        Path('closed').open('a').write('x')\n"
    )
    with consent("own.py:Noted"):
        settings = RLSettings(
            model="tiny", dataset="arithmetic", output_dir=tmp_path / "r", reward="own.py:Noted"
        )
        run = RunDirectory(tmp_path / "r", "rl", settings)
        monkeypatch.setattr(rl, "starting_model", lambda *_: tiny_model())
        problems = [Problem("a", "1+1", "2")]
        with rl.ready(settings, problems, run, Terminal()) as prepared:
            assert [*map(len, prepared.problems.values())] == [len(prepared.table)] == [1]
    assert Path("made").read_text() == Path("closed").read_text() == "x"


class Waking(BaseHTTPRequestHandler):
    """A server that is up from the third question on."""

    asked: ClassVar[list[str]] = []
    transfer: ClassVar[Any] = {"backend": "nccl"}

    def do_GET(self):
        self.asked.append(self.path)
        self.send_response(200 if len(self.asked) > 2 else 503)
        self.end_headers()
        model = {"logprobs_mode": "processed_logprobs"}
        config = {"weight_transfer_config": self.transfer, "model_config": model}
        self.wfile.write(json.dumps({"vllm_config": config}).encode())

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def waking(monkeypatch):
    monkeypatch.setattr(Waking, "asked", [])
    server = HTTPServer(("127.0.0.1", 0), Waking)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_vllm_server_that_does_not_answer(tmp_path, monkeypatch, capsys, loads):
    package("vllm", monkeypatch)
    server = ["--rl.use-vllm", "true", "--trl.vllm_mode", "server"]
    server += ["--trl.vllm_server_base_url", NOWHERE, "--trl.vllm_server_timeout", "0.5"]
    assert run(tmp_path, *server) == 2
    out, err = capsys.readouterr()
    assert f"waiting for the vLLM server at {NOWHERE}, 0.5 s at most" in " ".join(out.split()), err
    assert f"no vLLM server answers at {NOWHERE}: start it" in err
    assert not loads and not (tmp_path / "run" / "sft").exists()


def test_a_vllm_server_that_wakes_up_is_awaited(tmp_path, monkeypatch, waking):
    from trustclip.support.terminal import Terminal
    from trustclip.train import services

    monkeypatch.setattr(services, "AGAIN", 0.01)
    trl = {"vllm_mode": "server", "vllm_server_base_url": waking}
    settings = RLStage(dataset="arithmetic", use_vllm=True, trl=trl)
    services.await_server(settings, Terminal())
    assert Waking.asked == ["/health"] * 3 + ["/server_info?config_format=json"]
    monkeypatch.setattr(Waking, "transfer", None)
    with pytest.raises(ValueError, match=r"cannot serve a training \(no weight transfer\): start"):
        services.await_server(settings, Terminal())
    assert answers(waking) and not answers(NOWHERE)


def test_a_run_of_a_release_without_a_setting_is_refused(tmp_path, monkeypatch, capsys, loads):
    """It did what no setting of today may say."""
    import yaml

    monkeypatch.chdir(tmp_path)
    rl = ["rl", "--preset", "tiny", "--output-dir", "old"]
    with pytest.raises(AssertionError, match="a model loads"):
        main(rl)
    config = Path("old/config.yaml")
    content = yaml.safe_load(config.read_text())
    del content["exclude"]
    config.write_text(yaml.safe_dump(content))
    capsys.readouterr()
    for command in (rl, ["resume", "old"]):
        assert main(command) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "old holds a run without exclude, which is 'tests' now. Continue it with the" in said
        assert "the release of trustclip that began it, or choose another --output-dir." in said
    assert not loads[1:]


def test_a_method_of_ones_own_that_is_wrong_is_refused(tmp_path, capsys, loads):
    """By the first sentence of `trustclip check`, whatever is wrong with it: see test_check.py."""
    assert run(tmp_path, "--method", "wrong_methods:Negated", "--dry-run") == 2
    said = capsys.readouterr().err
    words = "'wrong_methods:Negated' is wrong. The gradient goes against the advantage"
    assert words in said and "Traceback" not in said
    assert not (tmp_path / "run").exists() and not loads


def test_a_suite_with_a_wrong_part_of_a_method_is_refused(tmp_path, capsys, loads):
    recipe = Path(__file__).parents[2] / "recipes/tiny.yaml"
    (tmp_path / "suite.yaml").write_text(
        f"name: s\nrecipe: {recipe}\noutput_dir: out\nseeds: [0]\nmethods:\n"
        "  right: {name: 'wrong_methods:Right'}\n"
        "  wrong: {name: tis, inner: 'wrong_methods:SignInGate'}\n"
    )
    assert main(["suite", str(tmp_path / "suite.yaml"), "--dry-run", "--allow-code"]) == 2
    said = capsys.readouterr().err
    assert "'wrong_methods:SignInGate' is wrong. The gate is the wrong way round" in said
    assert "Right" not in said and not loads
