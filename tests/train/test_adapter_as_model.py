"""The folder of a LoRA adapter as a model: evaluated, trained further, refused where it must be."""

import json
import shutil

import pytest
import torch
from commands import trustclip
from test_own_rewards import folder  # noqa: F401  (a fixture)

from trustclip.train.models import adapter_of, base_of, check_model, load_model

ARGS = ("--max-completion-length", "4", "--num-generations", "4", "--gradient-accumulation-steps",
        "1", "--prompt-style", "plain", "--dataset", "arithmetic", "--limit", "16", "--max-steps",
        "2", "--learning-rate", "1e-2", "--warmup-steps", "0", "--reward",
        "mine.py:odd")  # fmt: skip


@pytest.mark.slow
def test_an_adapter_is_evaluated_and_trained_further(folder, monkeypatch):  # noqa: F811
    monkeypatch.chdir(folder)
    first = ("rl", *ARGS, "--model", "model", "--lora-r", "4", "--save-steps", "2")
    done = trustclip(*first, "--output-dir", "lora")
    assert done.returncode == 0, done.stderr
    (adapter,) = (folder / "lora" / "checkpoints").glob("step-*")
    assert (adapter / "adapter_config.json").exists() and not (adapter / "config.json").exists()

    merged, _ = load_model(str(adapter), "plain")
    final, _ = load_model("lora/final", "plain")
    base, _ = load_model("model", "plain")
    weights, expected, before = (dict(m.named_parameters()) for m in (merged, final, base))
    assert weights.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(weights[name], expected[name], atol=1e-6, rtol=1e-5)
    assert any(not torch.equal(weights[name], before[name]) for name in before)

    evaluation = ("eval", "--tasks", "arithmetic", "--limit", "2", "--k", "2", "--max-tokens", "4",
                  "--prompt-style", "plain", "--temperature", "0")  # fmt: skip
    answers = []
    for model, out in ((str(adapter), "of-adapter"), ("lora/final", "of-final")):
        done = trustclip(*evaluation, "--model", model, "--output-dir", out)
        assert done.returncode == 0, done.stderr
        rows = (folder / out / "samples.jsonl").read_text().splitlines()
        answers.append([json.loads(row)["response"] for row in rows])
    assert answers[0] == answers[1]
    done = trustclip("rl", *ARGS, "--model", f"{adapter}+model", "--lora-r", "2",
                     "--output-dir", "further")  # fmt: skip
    assert done.returncode == 0, done.stderr
    further, _ = load_model("further/final", "plain")
    assert any(not torch.equal(p, weights[n]) for n, p in further.named_parameters())


@pytest.fixture
def adapter(tmp_path):
    path = tmp_path / "adapter"
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "owner/base"}))
    (path / "adapter_model.safetensors").write_bytes(b"")
    return path


def test_the_base_is_the_adapter_s_or_another(adapter, folder):  # noqa: F811
    assert adapter_of(str(adapter)) == (adapter, "owner/base")
    assert base_of(f"{adapter}+{folder / 'model'}") == str(folder / "model")
    assert adapter_of("owner/name") is None and base_of("owner/name") == "owner/name"
    check_model(str(adapter))
    check_model(f"{adapter}+{folder / 'model'}")


def test_what_is_missing_of_an_adapter_is_named(adapter, tmp_path):
    with pytest.raises(ValueError, match=r"the base model of .*no model 'a/b/c'.*\+BASE"):
        check_model(f"{adapter}+a/b/c")
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"does not name its base model"):
        check_model(str(adapter))
    (adapter / "adapter_config.json").write_text("[")
    with pytest.raises(ValueError, match=r"adapter_config.json is damaged"):
        check_model(str(adapter))
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no adapter_model.safetensors"):
        check_model(str(adapter))
    shutil.rmtree(adapter)
    with pytest.raises(ValueError, match=r"no model"):
        check_model(str(adapter))
