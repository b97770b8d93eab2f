"""The sampler's log-probabilities: the decoder's, recorded from `generate`, and odd ones."""

import copy
import dataclasses
from typing import Any

# pyright: reportArgumentType=false, reportPrivateImportUsage=false
import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
from trl_runs import COMMON, PROMPTS, build, constrained, fresh_model, plain

import trustclip as tc
from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer
from trustclip.engines.trl.sampling.sampled import oddity


def logps_of(model: Any, prompt: list[int], tokens: list[int], change=lambda z: z) -> list[float]:
    """Of a completion, by one plain forward pass."""
    ids = torch.tensor([prompt + tokens])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1]
    logps = change(logits).log_softmax(-1)
    return logps.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


# In training -----------------------------------------------------------------------------------


def watched(tmp_path, monkeypatch, **settings) -> list[tuple[dict[str, Any], Any, Any]]:
    """(inputs, batch, weights) of every micro-batch of a training."""
    seen = []
    kept = ConstrainedGRPOTrainer._constrain

    def spy(self, inputs, *scored):
        batch, *rest = kept(self, inputs, *scored)
        seen.append((dict(inputs), batch, copy.deepcopy(self.model.state_dict())))
        return batch, *rest

    monkeypatch.setattr(ConstrainedGRPOTrainer, "_constrain", spy)
    constrained(tmp_path, "icepop", **{"decoder": "auto", "max_steps": 6, **settings})
    return seen


def test_the_exact_sampler_is_the_old_policy(tmp_path, monkeypatch):
    for inputs, batch, _ in watched(tmp_path, monkeypatch, num_iterations=2):
        apart = (batch.logp_rollout - batch.logp_old)[batch.mask]
        assert apart.abs().max() < 2e-5  # on the policy, the old one is that of this pass
        age = inputs["trustclip_lag"]
        assert age.shape == (len(batch.mask),) and set(age.tolist()) <= {0, 1}


# Recorded from `generate` ----------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_p": 0.8, "top_k": 30}], ids=str)
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_recording_changes_no_sample_and_is_what_was_sampled_with(
    tmp_path, monkeypatch, settings, lora
):
    """Bit for bit the training of plain TRL, with the log-probabilities beside it."""
    t, k, p = (settings.get(n, off) for n, off in (("temperature", 1), ("top_k", 0), ("top_p", 1)))

    def change(z):
        z = TopKLogitsWarper(k)(None, z / t) if k else z / t
        return TopPLogitsWarper(p)(None, z) if p < 1 else z

    compared = []
    make = ConstrainedGRPOTrainer._generate_and_score_completions

    def spy(self, inputs):
        output = make(self, inputs)
        model = self.accelerator.unwrap_model(self.model)
        assert "generate" not in vars(model)
        for row in range(4):
            own = output["completion_mask"][row].bool()
            prompt = output["prompt_ids"][row][output["prompt_mask"][row].bool()].tolist()
            tokens = output["completion_ids"][row][own].tolist()
            got = output["sampling_per_token_logps"][row][own].tolist()
            compared.append((got, logps_of(model, prompt, tokens, change)))
        return output

    monkeypatch.setattr(ConstrainedGRPOTrainer, "_generate_and_score_completions", spy)
    settings = {"lora": lora, "max_steps": 3, "num_iterations": 1, **settings}
    run = constrained(tmp_path / "a", "clip", head="trl", allow_inert=True, **settings)
    assert len(compared) == 12
    for got, want in compared:
        assert got == pytest.approx(want, abs=3e-5)
    stock = plain(tmp_path / "b", epsilon=0.2, **settings)
    assert run.grad_norms == pytest.approx(stock.grad_norms, rel=1e-5)


def test_a_cut_off_of_the_models_own_is_in_what_is_recorded(tmp_path):
    model, _ = fresh_model()
    model.generation_config.min_p = 0.5
    model.generation_config.top_k = 2  # the trainer's is 0: none
    trainer = build(tmp_path, model=model, method="icepop", decoder="transformers")
    output = trainer._generate_and_score_completions([{"prompt": text} for text in PROMPTS])
    names = ("prompt_ids", "completion_ids", "prompt_mask", "completion_mask")
    for row, got in enumerate(output["sampling_per_token_logps"]):
        prompt, tokens, *masks = (output[name][row] for name in names)
        asked, said = (x[m.bool()].tolist() for x, m in zip((prompt, tokens), masks, strict=True))
        want = logps_of(model, asked, said, lambda z: MinPLogitsWarper(0.5)(None, z))
        assert got[: len(said)].tolist() == pytest.approx(want, abs=3e-5)


# Refused ---------------------------------------------------------------------------------------


def test_a_correction_is_made_once(tmp_path):
    """With vLLM, TRL corrects by default; a method that corrects and TRL's exclude each other."""
    vllm: dict[str, Any] = {**COMMON, "use_vllm": True}
    for method in ("tis", "icepop", {"name": "dppo", "anchor": "rollout"}):
        with pytest.raises(ValueError, match="vllm_importance_sampling_correction=False"):
            ConstrainedGRPOConfig(str(tmp_path), method=method, **vllm)
        off: dict[str, Any] = {"vllm_importance_sampling_correction": False}
        assert ConstrainedGRPOConfig(str(tmp_path), method=method, **vllm, **off).use_vllm


# Bad input -------------------------------------------------------------------------------------


def drawn(t_sampler: float, t_reported: float, t_trainer: float) -> tc.TokenBatch:
    """Tokens drawn at one temperature, of which the engines report others."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(40, 100, 30, generator=generator)
    p = (logits / t_sampler).softmax(-1)
    tokens = p.flatten(0, 1).multinomial(1, generator=generator).view(40, 100, 1)

    def logp(t: float) -> torch.Tensor:
        return (logits / t).log_softmax(-1).gather(2, tokens)[..., 0]

    old, mask = logp(t_trainer), torch.ones(40, 100, dtype=torch.bool)
    return tc.TokenBatch(old, old, mask.float(), mask, logp_rollout=logp(t_reported))


@pytest.mark.parametrize("t", [0.7, 1.0, 1.3])
def test_nothing_is_odd_about_the_right_log_probabilities(t):
    batch = drawn(t, t, t)
    noise = 1e-3 * torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(1))
    assert oddity(batch) is None
    assert oddity(tc.TokenBatch(**{**fields(batch), "logp_old": batch.logp_old + noise})) is None


@pytest.mark.parametrize("t", [0.7, 1.3])
def test_a_temperature_that_is_not_undone_is_noticed(t):
    without = oddity(drawn(t, 1.0, t))
    assert without is not None and "reports them without its temperature" in without
    one_side = oddity(drawn(t, t, 1.0))
    assert one_side is not None and "temperature, top-p or top-k that the other" in one_side


def fields(batch: tc.TokenBatch) -> dict[str, Any]:
    return {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}


def test_log_probabilities_that_are_missing_or_none():
    batch = drawn(1.0, 1.0, 1.0)
    holes = batch.given("logp_rollout").clone()
    holes[3, :7] = torch.nan
    some = oddity(dataclasses.replace(batch, logp_rollout=holes))
    assert some is not None and "NaN for the log-probability of 7 of 4000 tokens" in some
    with pytest.raises(ValueError, match="every one of 4000 tokens"):
        oddity(dataclasses.replace(batch, logp_rollout=torch.full_like(holes, torch.nan)))
    with pytest.raises(ValueError, match="above 0; it must give natural logarithms"):
        oddity(dataclasses.replace(batch, logp_rollout=batch.given("logp_rollout").exp()))


def rolled_out(lengthen: int, shift: float):
    """A `rollout_func` that answers every prompt with the same tokens."""

    def rollout(prompts: Any, trainer: Any) -> dict[str, Any]:
        logps = [-5.5 + shift] * (4 + lengthen)
        return {
            "prompt_ids": [[5, 9]] * len(prompts),
            "completion_ids": [[65, 66, 67, 68]] * len(prompts),
            "logprobs": [logps] * len(prompts),
        }

    return rollout


def with_rollout(tmp_path, rollout) -> Any:
    return build(tmp_path, given={"rollout_func": rollout}, method="tis", max_steps=1)


def test_log_probabilities_of_another_length_are_refused(tmp_path):
    with pytest.raises(ValueError, match="5 log-probabilities for the 4 tokens of completion 0"):
        with_rollout(tmp_path, rolled_out(1, 0.0)).train()


def test_a_notice_comes_once_in_training(tmp_path):
    with pytest.warns(UserWarning, match="nats a token above the trainer's") as found:
        with_rollout(tmp_path, rolled_out(0, 2.0)).train()
    assert len([w for w in found if "nats a token" in str(w.message)]) == 1
