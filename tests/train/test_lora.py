# pyright: reportArgumentType=false
"""LoRA as a part: its settings reach PEFT, and what is saved opens in PEFT and in Transformers."""

import pytest
import torch
from peft import PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from trustclip.train.checks import complaints
from trustclip.train.configs import lora_config
from trustclip.train.models import load_model, save_model
from trustclip.train.settings.stages import RLStage, SFTStage
from trustclip.train.tiny import tiny_model


def test_every_setting_reaches_peft():
    stage = SFTStage(
        dataset="word-sums", lora_r=4, lora_alpha=12,
        lora={
            "dropout": 0.1, "target_modules": "q_proj, v_proj", "bias": "all",
            "modules_to_save": ["lm_head"], "use_rslora": True, "use_dora": True,
        },
    )  # fmt: skip
    config = lora_config(stage.lora_r, stage.lora_alpha, stage.lora)
    assert (config.r, config.lora_alpha, config.lora_dropout, config.bias) == (4, 12, 0.1, "all")
    assert config.target_modules == {"q_proj", "v_proj"} and config.modules_to_save == ["lm_head"]
    assert config.use_rslora and config.use_dora
    assert lora_config(4).target_modules == "all-linear"


def test_what_cannot_be_is_said_at_configuration():
    def said(stage):
        return [text for _, text in complaints(stage)]

    assert "there is no adapter" in said(SFTStage(dataset="word-sums", save="adapter"))[0]
    dropped = RLStage(dataset="word-sums", lora={"dropout": 0.1})
    assert any("leave it at 0" in text for text in said(dropped))
    assert not said(SFTStage(dataset="word-sums", lora_r=8, lora={"dropout": 0.1}))


@pytest.mark.parametrize("what", ["merged", "adapter", "both"])
def test_what_is_saved_is_the_same_model(tmp_path, what):
    base, tokenizer = tiny_model(0)
    base.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    model = get_peft_model(base, lora_config(4, 8))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.01)
    ids = torch.arange(2, 12)[None]
    expected = model.eval()(ids).logits
    final = tmp_path / "final"
    save_model(model, tokenizer, final, {"style": "plain"}, what)
    assert (final / "prompt.json").is_file()
    assert (final / "model.safetensors").is_file() == (what != "adapter")
    loaded, _ = load_model(str(final), "plain")
    torch.testing.assert_close(loaded.eval()(ids).logits, expected, atol=1e-5, rtol=1e-5)
    if what != "merged":
        folder = final if what == "adapter" else final / "adapter"
        fresh = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
        opened = PeftModel.from_pretrained(fresh, str(folder)).eval()
        torch.testing.assert_close(opened(ids).logits, expected, atol=1e-5, rtol=1e-5)
        assert load_model(str(folder), "plain")[1].eos_token
