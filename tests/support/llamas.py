"""Tiny random models of the Llama family."""

from typing import Any

import torch

KINDS = ("Llama", "Mistral", "Qwen2", "Qwen3")


def small_llama(kind: str, adapter: bool = False, seed: int = 0, **changes: Any) -> Any:
    """A model of two layers with grouped queries; with ``adapter``, LoRA that changes it."""
    import transformers
    from peft import LoraConfig, get_peft_model

    sizes: dict[str, Any] = dict(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=8,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=kind != "Mistral",
        pad_token_id=0, bos_token_id=None, eos_token_id=1, sliding_window=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**sizes | changes)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms start as 0 and 1
            parameter.add_(torch.randn_like(parameter) * 0.15)
    if not adapter:
        return model
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return model
