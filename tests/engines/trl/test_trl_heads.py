"""Models with soft-caps, factors, tied embeddings and rows without a token, in the TRL engine.

Each is made from its configuration; TRL's own head of the same model is the reference.
"""

import types
from typing import Any

import pytest
import torch
import trl_runs
from test_trl_engine import gradient_of, one_batch

from trustclip.engines.trl import ConstrainedGRPOConfig, fast_paths
from trustclip.engines.trl.scoring import hidden
from trustclip.head import exact_kl

_SMALL: dict[str, Any] = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, max_position_embeddings=128, attention_dropout=0.0,
)  # fmt: skip


def model_of(kind: str) -> Any:
    """A tiny random model whose logits are large enough for a cap to bend them."""
    import transformers

    _, tokenizer = trl_runs.fresh_model()
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    made = {
        "gemma2": ("Gemma2", {"final_logit_softcapping": 3.0, "query_pre_attn_scalar": 16}),
        "tied": ("Qwen3", {"tie_word_embeddings": True}),
        "untied": ("Qwen3", {"tie_word_embeddings": False}),
        "padded": ("Qwen3", {"vocab_size": len(tokenizer) + 41}),
        "cohere": ("Cohere", {"logit_scale": 0.4}),
        "granite": ("Granite", {"logits_scaling": 0.3}),
    }
    name, settings = made[kind]
    values = {"vocab_size": len(tokenizer), **_SMALL, **ends, "bos_token_id": None, **settings}
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**values)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    torch.nn.init.normal_(model.get_output_embeddings().weight, std=0.7)
    return model


KINDS = ("gemma2", "tied", "untied", "padded", "cohere", "granite")


def build(tmp_path, kind: str, **settings: Any) -> Any:
    given = {"decoder": "transformers", "max_steps": 3, **settings}
    return trl_runs.build(tmp_path, model=model_of(kind), **given)


@trl_runs.needs("trl>=1.15")
@pytest.mark.parametrize("kind", KINDS)
def test_our_head_has_the_gradient_of_trls(tmp_path, kind):
    ours, theirs = (build(tmp_path, kind, head=head) for head in ("trustclip", "trl"))
    assert fast_paths.obstacle("head", ours) is None
    inputs = one_batch(theirs)
    got, want = gradient_of(ours, inputs), gradient_of(theirs, inputs)
    assert want.norm() > 1e-3
    torch.testing.assert_close(got, want, rtol=1e-3, atol=2e-5 * want.norm().item())
    changed = hidden.logit_changes(ours.model)
    expected = {"gemma2": (1.0, 3.0), "cohere": (0.4, None), "granite": (1 / 0.3, None)}
    assert changed == expected.get(kind, (1.0, None))


@trl_runs.needs("trl>=1.15")
@pytest.mark.parametrize("kind", ["gemma2", "granite", "padded"])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_exact_kl_is_that_of_the_models_own_logits(tmp_path, kind, frozen):
    """Also through `bregman_kl`, which a frozen head without a cap takes."""
    trainer = build(tmp_path, kind, method={"name": "full_kl", "delta": 0.05})
    model = trainer.model
    if frozen:
        model.get_output_embeddings().weight.requires_grad_(False)
    ids = torch.randint(0, 200, (2, 7), generator=torch.Generator().manual_seed(0))
    labels, states, logits = ids.clone(), [], []
    watch = type(trainer._watch)(model, trainer.method, 1.0, trainer._request)
    assert (watch._request is not None) == (frozen and kind != "gemma2")
    for _ in range(2):
        with watch.watching(model, "old" if not states else "new") as seen, torch.no_grad():
            model(input_ids=ids, labels=labels, fused_lm_head=True)
        states.append(seen.of_completions(6))
        logits.append(model(input_ids=ids).logits[:, :-1].log_softmax(-1).detach())
        with torch.no_grad():
            model.model.norm.weight.add_(0.2 * torch.sin(torch.arange(32.0)))
    old, new = logits
    want = (old.exp() * (old - new)).sum(-1).flatten()
    flat = [type(s)(*(None if x is None else x.flatten(0, 1) for x in s)) for s in states]
    got = watch._exact(model, flat[1], flat[0], "old_new")
    assert want.max() > 1e-3
    torch.testing.assert_close(got, want, rtol=2e-3, atol=1e-5)
    direct = exact_kl(flat[1].hidden, flat[0].hidden, hidden.head_of(model, 1.0))
    torch.testing.assert_close(direct, want, rtol=1e-3, atol=1e-6)


@trl_runs.needs("trl>=1.15")
def test_a_model_that_changes_its_logits_otherwise_is_left_to_trl(tmp_path):
    trainer = build(tmp_path, "untied")
    model = trainer.model
    model.lm_head.register_forward_hook(lambda module, args, out: 2 * out)
    assert fast_paths.obstacle("head", trainer) == "lm_head has a forward hook"
    words = "exact KL is not available for this model: the logits of Qwen3ForCausalLM are not its"
    with pytest.raises(ValueError, match=words):
        hidden.check_head(model)


def test_the_exact_kl_is_refused_where_the_head_cannot_be_reached(tmp_path, monkeypatch):
    trainer = build(tmp_path, "tied", method="full_kl")
    monkeypatch.setattr(type(trainer.accelerator), "distributed_type", "FSDP")
    with pytest.raises(ValueError, match="FSDP 1 has it flattened"):
        fast_paths.check_sampler(trainer)


@pytest.mark.parametrize("by", ["cp_size", "sp_size"])
def test_completions_that_ranks_share_are_refused_at_configuration(tmp_path, by):
    from accelerate.parallelism_config import ParallelismConfig

    split = ParallelismConfig()
    if not hasattr(split, by):
        pytest.skip(f"this release of accelerate knows no {by}")
    setattr(split, by, 2)
    with pytest.raises(ValueError, match="does not support sequence-dim parallelism"):
        ConstrainedGRPOConfig(str(tmp_path), **{**trl_runs.COMMON, "parallelism_config": split})


@pytest.mark.parametrize("by", ["cp", "sp"])
def test_and_where_a_file_of_accelerate_says_so(tmp_path, monkeypatch, by):
    """Which TRL's config does not see: `accelerate launch` hands it on by the environment."""
    trainer = build(tmp_path, "tied")
    sizes = {"cp_size": 1, "sp_size": 1, "cp_enabled": False, "sp_enabled": False}
    there = types.SimpleNamespace(**sizes | {f"{by}_size": 2, f"{by}_enabled": True})
    monkeypatch.setattr(trainer.accelerator.state, "parallelism_config", there, raising=False)
    assert trainer.accelerator.parallelism_config is there
    with pytest.raises(ValueError, match=f"{by}_size = 2.*does not split what it has sampled"):
        fast_paths.check_sampler(trainer)
