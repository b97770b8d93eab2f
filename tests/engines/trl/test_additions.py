"""A model that computes more than its weights say trains as in plain TRL."""

from typing import Any

import pytest
import torch
from transformers.models.qwen3 import modeling_qwen3
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl_runs import build, fresh_model, needs

from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer, fast_paths
from trustclip.engines.trl.sampling.plain import unlike_generate

OURS = (ConstrainedGRPOConfig, ConstrainedGRPOTrainer)
PLAIN = (GRPOConfig, GRPOTrainer)
CERTAIN = 77


def states_of_one_token(model: Any) -> torch.Tensor:
    """A last hidden state whose only likely token is `CERTAIN`."""
    row = model.lm_head.weight[CERTAIN].detach()
    return 300 * row / row.norm() ** 2


def by_hook(model: Any) -> None:
    state = states_of_one_token(model)
    model.model.norm.register_forward_hook(lambda module, args, out: state.expand_as(out))


def by_pre_hook(model: Any) -> None:
    state = states_of_one_token(model)
    model.lm_head.register_forward_pre_hook(lambda module, args: (state.expand_as(args[0]),))


def by_hook_with_keywords(model: Any) -> None:
    state = states_of_one_token(model)
    model.model.norm.register_forward_hook(
        lambda module, args, keywords, out: state.expand_as(out), with_kwargs=True
    )


def by_forward(model: Any) -> None:
    state = states_of_one_token(model)
    model.model.norm.forward = lambda x: state.expand_as(x)


def by_subclass(model: Any) -> None:
    state = states_of_one_token(model)

    class Steered(type(model.model.norm)):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return state.expand_as(x)

    model.model.norm.__class__ = Steered


def by_parametrization(model: Any) -> None:
    from torch.nn.utils import parametrize

    class Doubled(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 2 * weight

    parametrize.register_parametrization(model.model.layers[0].mlp.down_proj, "weight", Doubled())


WAYS = {
    by_hook: "model.norm has a forward hook",
    by_pre_hook: "lm_head has a forward hook",
    by_hook_with_keywords: "model.norm has a forward hook",
    by_forward: "model.norm has a forward pass of its own",
    by_subclass: "model.norm is a Steered",
    by_parametrization: "model.layers.0.mlp.down_proj is a ParametrizedLinear",
}


def trained(tmp_path: Any, classes: Any, change: Any, **settings: Any) -> Any:
    """A trainer of a changed model after its training, and all tokens that it sampled."""
    trainer = build(tmp_path, *classes, **{"max_steps": 2, "num_iterations": 2, **settings})
    change(trainer.model)
    sampled, generate = [], trainer._generate_and_score_completions

    def keep(inputs: Any) -> Any:
        output = generate(inputs)
        sampled.append(output["completion_ids"][output["completion_mask"].bool()])
        return output

    trainer._generate_and_score_completions = keep
    trainer.train()
    return trainer, torch.cat(sampled)


@pytest.mark.parametrize("way", [by_hook, by_hook_with_keywords, by_forward, by_subclass])
def test_a_steered_model_is_sampled_as_it_computes(tmp_path, way):
    trainer, sampled = trained(tmp_path, OURS, way)
    assert (sampled == CERTAIN).all()
    assert WAYS[way] in (fast_paths.obstacle("decoder", trainer) or "")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_evaluation_does_not_take_it_for_a_plain_model(way):
    model, _ = fresh_model()
    plain = {"do_sample": True, "top_k": 0}
    assert next(unlike_generate(model, plain), None) is None
    way(model)
    assert WAYS[way] in (next(unlike_generate(model, plain), None) or "")


@needs("trl>=1.15")
@pytest.mark.parametrize("settings", [{}, {"share_prompts": True}], ids=str)
def test_hooks_are_called_as_often_as_in_trl(tmp_path, settings):
    def calls(classes: Any, **own: Any) -> list[Any]:
        seen: list[Any] = []

        def count(module: Any, args: Any, out: Any) -> None:
            seen.append(tuple(out.shape))

        def watch(model: Any) -> None:
            model.model.norm.register_forward_hook(count)

        trained(tmp_path, classes, watch, **own)
        return seen

    want = calls(PLAIN)
    assert len(want) > 10
    assert calls(OURS, **settings) == want


@pytest.mark.parametrize("settings", [{}, {"bf16": True}], ids=str)
def test_what_no_look_at_the_modules_finds_is_compared_once(tmp_path, monkeypatch, settings):
    """A rotary embedding that a user has replaced for all models of a family."""
    monkeypatch.setattr(modeling_qwen3, "apply_rotary_pos_emb", lambda q, k, *_, **__: (4 * q, k))
    with pytest.warns(UserWarning, match="the model computes more than its weights say"):
        trainer, _ = trained(tmp_path, OURS, strong_attention, metrics="full", **settings)
    assert "nats a token" in (fast_paths.obstacle("decoder", trainer) or "")
    row = next(row for row in trainer.state.log_history if "trustclip/sampler/k1" in row)
    assert abs(row["trustclip/sampler/k1"]) < 0.02


def strong_attention(model: Any) -> None:
    """Weights with which attention matters."""
    with torch.no_grad():
        for layer in model.model.layers:
            for projection in (layer.self_attn.v_proj, layer.self_attn.o_proj):
                projection.weight.mul_(8)
