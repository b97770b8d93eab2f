"""The harness of ``make peers``: tests in the form of TRL's run on our classes, offline."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

#: As TRL's tests are written: names of the Hub, a data set of the Hub, `trl`'s own classes.
TESTS = """
import pytest
import torch
from datasets import load_dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


@pytest.mark.parametrize("kind", ["standard_prompt_only", "conversational_prompt_only"])
@pytest.mark.parametrize("model", ["Qwen2ForCausalLM-2.5", "Qwen3MoeForCausalLM"])
@pytest.mark.parametrize("extra", [{}, {"importance_sampling_level": "sequence"}, {"delta": 1.5}])
def test_train(tmp_path, kind, model, extra):
    args = GRPOConfig(
        output_dir=str(tmp_path), learning_rate=0.1, per_device_train_batch_size=3,
        num_generations=3, max_completion_length=4, max_steps=2, report_to="none", use_cpu=True,
        save_strategy="no", **extra,
    )
    trainer = GRPOTrainer(
        model=f"trl-internal-testing/tiny-{model}",
        reward_funcs=lambda completions, **_: [float(len(str(c))) for c in completions],
        args=args,
        train_dataset=load_dataset("trl-internal-testing/zen", kind, split="train"),
    )
    before = {n: p.clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    assert trainer.state.log_history[-1]["train_loss"] is not None
    assert any(not torch.equal(p, before[n]) for n, p in trainer.model.named_parameters())
    assert type(trainer).__module__.startswith(OWN), type(trainer).__mro__


def test_of_a_model_that_is_not_made():
    GRPOTrainer(model="trl-internal-testing/tiny-Gemma4ForConditionalGeneration", reward_funcs=[])


def test_of_another_vocabulary():
    tokenizer = AutoTokenizer.from_pretrained("trl-internal-testing/tiny-Qwen3ForCausalLM")
    ids = torch.tensor([[151657, 198, 17453, 0, 151645]])
    assert tokenizer.decode(ids[0]) == "<tool_call>\\nDone!<|im_end|>"
    assert torch.tensor([[198, 17453]]).tolist() == [[198, 17453]]
"""


@pytest.mark.parametrize(("classes", "module"), [("ours", "peers"), ("plain", "trl")])
def test_tests_of_trl_run_on_either_classes(tmp_path: Path, classes: str, module: str) -> None:
    from peers import models

    models.make(tmp_path / "home")
    (tmp_path / "test_theirs.py").write_text(f"OWN = {module!r}\n{TESTS}")
    here = str(Path(__file__).parents[1] / "campaigns")
    environment = os.environ | {
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "1",
        "PEERS": classes,
        "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "peers.plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path / "test_theirs.py")],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "13 passed, 1 deselected" in done.stdout
    assert "is_not_made: needs tiny-Gemma4ForConditionalGeneration" in done.stdout
