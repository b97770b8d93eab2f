"""The anchor of PPO-EWMA in TRL: an average of weights, against one computed from the weights."""

from copy import deepcopy
from typing import Any

import pytest
import torch
import trl_runs
from trl_runs import COMMON, constrained

import trustclip as tc
from trustclip.engines.limits import ENGINES, refusal
from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer
from trustclip.engines.trl.scoring.average import decay_of

DECAY = 0.6
METHOD = {"inner": {"name": "clip", "epsilon": 0.02}, "anchor": "average", "decay": DECAY}


def watched(tmp_path: Any, monkeypatch: Any, **settings: Any) -> Any:
    """Every micro-batch: inputs, tokens, coefficients, and the weights that scored it."""
    seen: list[Any] = []
    make = ConstrainedGRPOTrainer._compute_loss

    def spy(self: Any, model: Any, inputs: Any) -> Any:
        weights = deepcopy(self.accelerator.unwrap_model(self.model).state_dict())
        phases: list[Any] = []
        measure = type(self)._measure
        monkeypatch.setattr(
            ConstrainedGRPOTrainer,
            "_measure",
            lambda s, phase, rows: (phases.append(phase), measure(s, phase, rows))[1],
        )
        loss = make(self, model, inputs)
        monkeypatch.setattr(ConstrainedGRPOTrainer, "_measure", measure)
        (phase,) = phases
        seen.append((self.state.global_step, inputs, phase.gate[0], phase.coefficient, weights))
        return loss

    monkeypatch.setattr(ConstrainedGRPOTrainer, "_compute_loss", spy)
    run = constrained(tmp_path, "anchored", METHOD, **settings)
    return seen, run


def average_of(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Weights of the formula, from all that there were."""
    shares = [DECAY ** (len(states) - 1 - k) for k in range(len(states))]
    return {
        name: sum(share * state[name].double() for share, state in zip(shares, states, strict=True))
        / sum(shares)
        for name in states[0]
    }


def scored(state: dict[str, Any], inputs: Any, mask: Any) -> torch.Tensor:
    model, _ = trl_runs.fresh_model()
    model.load_state_dict({name: value.to(torch.float32) for name, value in state.items()})
    model.eval()
    found = torch.zeros(mask.shape)
    for row in range(len(mask)):
        prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()]
        tokens = inputs["completion_ids"][row][inputs["completion_mask"][row].bool()]
        with torch.no_grad():
            logits = model(torch.cat([prompt, tokens])[None]).logits[0, len(prompt) - 1 : -1]
        found[row, : len(tokens)] = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"num_iterations": 2, "skip_zero_advantage": False},
        {"num_iterations": 1, "decoder": "auto"},
        {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "num_iterations": 1,
         "per_device_train_batch_size": 4},
    ],
    ids=["two iterations", "one update per generation", "accumulated"],
)  # fmt: skip
def test_it_is_the_average_of_the_weights_after_each_update(tmp_path, monkeypatch, settings):
    seen, run = watched(tmp_path, monkeypatch, max_steps=4, **settings)
    states: dict[int, Any] = {}
    gated = 0
    for step, inputs, batch, coefficient, weights in seen:
        states.setdefault(step, weights)
        want = scored(average_of([states[n] for n in range(step + 1)]), inputs, batch.mask)
        mask = batch.mask & (batch.advantages != 0)
        got = batch.given("logp_average")
        assert (got - want)[mask].abs().max() < 3e-5
        ratio = (batch.logp - want).exp()
        kept = ((ratio - 1).abs() <= 0.02) | ((ratio - 1) * batch.advantages <= 0)
        sure = mask & (((ratio - 1).abs() - 0.02).abs() > 1e-4)
        expected = ratio * batch.advantages * kept
        torch.testing.assert_close(coefficient[sure], expected[sure], rtol=1e-3, atol=1e-4)
        gated += int((~kept & mask).sum())
        if step == 0:
            assert (batch.logp - got)[mask].abs().max() < 1e-5
    assert gated and len(states) == 4
    # The policy's own weights are back in their place.
    trained = {n: p for n, p in run.trainer.model.named_parameters() if p.requires_grad}
    assert all(p.grad_fn is None and torch.isfinite(p).all() for p in trained.values())
    assert any(not torch.equal(trained[n].detach(), states[3][n]) for n in trained)


def test_adapters_are_averaged(tmp_path):
    run = constrained(tmp_path, "anchored", METHOD, lora=True, learning_rate=1e-2, max_steps=4)
    assert max(run.column("trustclip/gated")) > 0
    kept = run.trainer._average.state()[2]
    assert len(kept) == sum(p.requires_grad for p in run.trainer.model.parameters())


def test_where_it_cannot_be_had(tmp_path):
    method = tc.method("anchored", anchor="average")
    assert refusal(method, ENGINES["TRL"]) is None
    for engine in ("verl", "prime-rl", "SkyRL", "Stable-Baselines3"):
        text = refusal(method, ENGINES[engine])
        assert text is not None and "average of the policy's weights" in text
    with pytest.raises(ValueError, match=r"'anchored' cannot be centered.*sampled token alone"):
        tc.method("centered", inner=method.to_dict())
    with pytest.raises(ValueError, match="anchor 'average' is not known"):
        tc.method("anchored", inner="clip_cov", anchor="average")
    with pytest.raises(ValueError, match="'anchored' is over all tokens, `replay`"):
        ConstrainedGRPOConfig(str(tmp_path), method=method, replay=True, top_p=0.9, **COMMON)
    both = tc.method("both", first=method, second={**method.to_dict(), "decay": 0.5})
    with pytest.raises(ValueError, match="one average is kept"):
        decay_of(both)
    assert decay_of(tc.method("tis", inner=method)) == 0.889 and decay_of(tc.method("clip")) is None


def test_weights_that_are_shared_out_are_refused(monkeypatch):
    from trustclip.engines.trl import fast_paths

    class Trainer:
        method = tc.method("anchored", anchor="average")
        args = ConstrainedGRPOConfig("out", method=method, **COMMON)
        tools = rollout_func = None
        is_deepspeed_enabled, is_fsdp_enabled = False, True

    monkeypatch.setattr(fast_paths, "_check_candidates", lambda trainer: None)
    with pytest.raises(ValueError, match="FSDP and DeepSpeed shard them: use DDP"):
        fast_paths.check_sampler(Trainer())
