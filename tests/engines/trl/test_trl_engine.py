"""The TRL engine against plain TRL: same gradients where TRL has the method, refusals elsewhere."""

import math
from typing import Any

import pytest
import torch
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl_runs import COMMON, assert_same_weights, build, constrained, needs, plain

import trustclip as tc
from trustclip.constraints import divergences
from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer, fast_paths
from trustclip.engines.trl import trainer as trainer_module

LOW, HIGH = tc.interval("atr", delta=0.07)
TWINS = [
    ("clip", {"epsilon": 0.1}, {"epsilon": 0.1}),
    ("clip_higher", {"low": 0.1, "high": 0.15}, {"epsilon": 0.1, "epsilon_high": 0.15}),
    (
        "dual_clip",
        {"low": 0.1, "high": 0.1, "ceiling": 1.15},
        {"epsilon": 0.1, "delta": 1.15},
    ),
    ("atr", {"delta": 0.07}, {"epsilon": 1 - LOW, "epsilon_high": HIGH - 1}),
]


@pytest.mark.parametrize(
    "lora", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["full", "lora"]
)
@pytest.mark.parametrize(("method", "args", "theirs"), TWINS, ids=[t[0] for t in TWINS])
def test_same_training_as_plain_trl(tmp_path, method, args, theirs, lora):
    lr = {"learning_rate": 1e-2 if lora else 3e-3}
    a = plain(tmp_path / "a", lora=lora, **theirs, **lr)
    b = constrained(tmp_path / "b", method, args, lora=lora, **lr)
    assert len(a.grad_norms) == 6
    assert b.grad_norms == pytest.approx(a.grad_norms, rel=1e-5)
    assert_same_weights(b.parameters, a.parameters)
    gated = b.column("clip_ratio/region_mean")
    assert max(gated) > 0.05, "the gate must act, or the test compares nothing"
    if method != "dual_clip":  # TRL does not count tokens that its `delta` stops
        for name in ("low_mean", "high_mean", "region_mean", "low_min", "high_max"):
            assert b.column(f"clip_ratio/{name}") == pytest.approx(
                a.column(f"clip_ratio/{name}"), abs=1e-6
            )


# -- one loss, with everything TRL can put around it -----------------------------------------------


def one_batch(trainer, seed=0):
    """Inputs of `_compute_loss` with ratios on both sides of every bound, tools, padding."""
    g = torch.Generator().manual_seed(seed)
    rows, columns = 6, 9
    inputs = {
        "prompt_ids": torch.randint(0, 200, (rows, 4), generator=g),
        "prompt_mask": torch.ones(rows, 4, dtype=torch.long),
        "completion_ids": torch.randint(0, 200, (rows, columns), generator=g),
        "completion_mask": (
            torch.arange(columns) < torch.tensor([[9], [7], [9], [1], [5], [9]])
        ).long(),
        "tool_mask": (torch.rand(rows, columns, generator=g) > 0.2).long(),
        "advantages": torch.tensor([1.0, -0.5, 0.25, -1.0, 0.0, 0.7]),
        "num_items_in_batch": torch.tensor(30.0),
        "importance_sampling_ratio": 0.5 + torch.rand(rows, columns, generator=g),
        "sample_index": torch.arange(rows),
    }
    inputs["tool_mask"][:, 0] = 1
    with torch.no_grad():
        logps, _, _ = GRPOTrainer._get_per_token_logps_and_entropies(
            trainer,
            trainer.model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            columns,
        )
    noise = torch.randn(rows, columns, generator=g)
    inputs["old_per_token_logps"] = logps - 0.3 * noise
    inputs["ref_per_token_logps"] = logps - 0.2 * noise.flip(0)
    inputs["sampling_per_token_logps"] = logps - 0.4 * noise.flip(1)
    return inputs


def gradient_of(trainer, inputs):
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer._compute_loss(trainer.model, dict(inputs))
    loss.backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters()])


@pytest.mark.parametrize(
    "around",
    [
        *({"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")),
        {"beta": 0.3},
        {"beta": 0.3, "use_bias_correction_kl": False, "loss_type": "grpo"},
        {"entropy_coef": 0.02, "loss_type": "dapo"},
        {"top_entropy_quantile": 0.5, "loss_type": "luspo"},
        {"off_policy_mask_threshold": 0.05, "loss_type": "bnpo"},
        {"vllm": True, "loss_type": "dapo"},
    ],
    ids=str,
)
def test_keeps_what_trl_does_around_the_gate(tmp_path, around):
    around = dict(around)
    # A reference model and vLLM would have to be loaded; only what they feed the loss matters.
    beta, vllm = around.pop("beta", 0.0), around.pop("vllm", False)
    a = build(tmp_path, GRPOConfig, GRPOTrainer, epsilon=0.2, **around)
    b = build(tmp_path, method="clip", **around)
    for trainer in (a, b):
        trainer.beta, trainer.use_vllm = beta, vllm
    inputs = one_batch(a)
    want, got = gradient_of(a, inputs), gradient_of(b, inputs)
    assert want.norm() > 1e-4
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6 * want.norm().item())


def test_a_masked_runaway_token_cannot_spoil_the_gradient(tmp_path):
    trainer = build(tmp_path, method="atr")
    inputs = one_batch(trainer)
    clean = gradient_of(trainer, inputs)
    inputs["old_per_token_logps"][1, 8] = -math.inf  # beyond the end of its completion
    inputs["old_per_token_logps"][3, 5] = math.nan
    assert torch.equal(gradient_of(trainer, inputs), clean)
    inputs["old_per_token_logps"][0, 0] = -500.0
    assert gradient_of(trainer, inputs).isfinite().all()


# -- every method ----------------------------------------------------------------------------------


#: Thresholds narrow enough for two updates on an almost uniform policy to cross them.
NARROW = {
    "clip_cov": {"share": 0.1, "cov_low": 0.0},
    "full_kl": {"delta": 1e-3},
    "trgppo": {"delta": 1e-5, "epsilon": 0.05},
    "truly_ppo": {"variant": "trppo_rb", "delta": 1e-3},
    "bandpo": {"delta": 1e-5},
    "dppo": {"delta": 1e-5},
    "either": {"first": {"name": "bandpo", "delta": 1e-5}, "second": "kl1"},
    "ipo": {"delta": 1e-3},
    "troll": {"delta": 1e-4},
    "cppo": {"delta": 1e-3, "budget": 1e-4},
    "kpop": {"delta": 1e-5, "policy": "new"},
}


#: One method for each thing that a trainer supplies, or that a batch is measured by; the rest,
#: whose gradient in TRL `test_engine_parity` has, is slow.
KINDS = ("atr", "bapo", "centered", "clip_cov", "cppo", "dppo", "erc", "full_kl", "gspo", "icepop",
         "m2po", "opsm", "penalty", "sampler", "troll", "trpo")  # fmt: skip
#: Methods by name, and those that compare with the sampler only in a variant.
CASES = [
    pytest.param(name, arguments, marks=[pytest.mark.slow] * (name not in KINDS))
    for name, arguments in (
        *((name, NARROW.get(name)) for name in tc.methods()),
        *((name, {"anchor": "rollout"}) for name in ("dppo", "opsm", "trm", "vespo")),
    )
]


@pytest.mark.parametrize(("name", "arguments"), CASES, ids=str)
def test_every_method_trains_and_an_untested_release_recognises_it(
    tmp_path, monkeypatch, name, arguments
):
    if "candidates" in tc.method(name).requires and not fast_paths.FUSED_HEAD:
        pytest.skip("needs TRL 1.15")
    monkeypatch.setattr(trainer_module, "RELEASE", "9.1.0")
    run = constrained(tmp_path, name, arguments, max_steps=2, num_iterations=2)
    assert run.trainer._verified
    assert len(run.grad_norms) == 2
    assert all(math.isfinite(g) for g in run.grad_norms)
    assert run.history[1]["trustclip/off_policy"] > 0.5
    method = tc.method(name, **(arguments or {}))
    if tc.Trait.CUTS in method.traits and (arguments or {}).get("anchor") != "rollout":
        assert max(run.column("trustclip/gated")) > 0


@pytest.mark.parametrize("name", ["tis", "icepop"])
def test_a_sampler_without_log_probabilities_is_refused_with_the_settings(tmp_path, name):
    settings = {"method": name, "use_transformers_continuous_batching": True}
    with pytest.raises(ValueError, match=f"'{name}' cannot be trained in TRL") as error:
        ConstrainedGRPOConfig(str(tmp_path), **{**COMMON, **settings})
    assert "set use_transformers_continuous_batching=False" in str(error.value)
    greedy = {"method": name, "generation_kwargs": {"num_beams": 2}}
    with pytest.raises(ValueError, match=f"'{name}' needs `logp_rollout`") as error:
        build(tmp_path, **greedy)
    for words in ("use_vllm=True", "rollout_func", "num_beams=2"):
        assert words in str(error.value)


@needs("trl>=1.15")
@pytest.mark.parametrize("order", ["kl", "tv"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("head", ["trustclip", "trl"])
def test_top_k_divergences_are_those_of_dense_softmaxes(tmp_path, monkeypatch, order, lora, head):
    """Over the old policy's likeliest tokens, the sampled one and the rest of two softmaxes."""
    seen, logits = [], []
    kept = ConstrainedGRPOTrainer._constrain

    def spy(self, inputs, *scored):
        batch, *rest = kept(self, inputs, *scored)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            z = self.model(input_ids=ids, attention_mask=mask).logits / 0.7
        length = batch.mask.shape[1]
        logits.append(z[:, -length - 1 : -1].double().log_softmax(-1))
        seen.append((inputs["completion_ids"], inputs["sample_index"], batch))
        return batch, *rest

    monkeypatch.setattr(ConstrainedGRPOTrainer, "_constrain", spy)
    run = constrained(
        tmp_path,
        "dppo",
        {"divergence": f"top_k_{order}", "k": 5, "delta": 1e-4},
        lora=lora,
        head=head,
        max_steps=2,
        num_iterations=2,
        temperature=0.7,
        learning_rate=1e-2,
    )
    assert run.history[1]["trustclip/gated"] > 0
    ids, index, batch = seen[1]
    assert torch.equal(index, seen[0][1])
    old, new = logits
    tokens = old.topk(6).indices  # the last is the sampled one, unless that is among the others
    among = (tokens[..., :5] == ids[..., None]).any(dim=-1)
    tokens[..., 5] = torch.where(among, tokens[..., 5], ids)
    measure = divergences.categorical_kl if order == "kl" else divergences.categorical_tv
    dense = measure(divergences.with_rest(old, tokens), divergences.with_rest(new, tokens))
    got = batch.given(f"top_k_{order}")
    assert got[batch.mask].max() > 1e-3
    torch.testing.assert_close(got[batch.mask].double(), dense[batch.mask], rtol=1e-3, atol=2e-6)


#: A batch of sixteen in four micro-batches.
SPLIT = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "steps_per_generation": 4,
}


def test_clip_cov_choice_does_not_depend_on_micro_batches(tmp_path):
    args = {"share": 0.2, "cov_low": 0.0, "cov_high": 50.0}
    whole = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1}
    a = constrained(tmp_path / "a", "clip_cov", args, max_steps=4, num_iterations=2, **whole)
    b = constrained(tmp_path / "b", "clip_cov", args, max_steps=4, num_iterations=2, **SPLIT)
    assert b.grad_norms == pytest.approx(a.grad_norms, rel=1e-4)
    assert b.column("trustclip/gated") == pytest.approx(a.column("trustclip/gated"), abs=1e-9)
    # On-policy updates, where the clip closes on nothing: what is gated is what was drawn.
    drawn = [row["trustclip/gated"] for row in a.history if row["trustclip/off_policy"] == 0]
    assert len(drawn) == 2 and sum(drawn) / 2 == pytest.approx(0.2, abs=0.06)


def test_metrics_add_up_over_micro_batches(tmp_path):
    narrow, long = {"epsilon": 0.02}, {"max_steps": 4, "num_iterations": 2}
    a = constrained(tmp_path / "a", "clip", narrow, **long)
    b = constrained(tmp_path / "b", "clip", narrow, **long, **SPLIT)
    names = [n for n in a.history[1] if n.startswith("trustclip/")]
    assert "trustclip/k3" in names and "trustclip/gated/positive_above" in names
    for name in names:
        if "identical_share" not in name:  # of equal bits, which a batch of another shape has not
            assert b.column(name) == pytest.approx(a.column(name), rel=1e-4, abs=1e-6), name


# -- inert schedules -------------------------------------------------------------------------------


def config(tmp_path, **settings):
    return ConstrainedGRPOConfig(output_dir=str(tmp_path), **{**COMMON, **settings})


def test_an_inert_schedule_is_refused_with_the_arithmetic_and_two_cures(tmp_path):
    with pytest.raises(ValueError, match="inert") as error:
        config(tmp_path, num_iterations=1, gradient_accumulation_steps=4)
    once = "1 optimizer update (steps_per_generation x num_iterations"
    for part in (once, "= 4 x 1 / 4)", "num_iterations to 2", "steps_per_generation to 8"):
        assert part in str(error.value)
    config(tmp_path, num_iterations=1, gradient_accumulation_steps=4, steps_per_generation=8)
    config(tmp_path, num_iterations=2, gradient_accumulation_steps=4)
    config(tmp_path, num_iterations=1, allow_inert=True)
    config(tmp_path, num_iterations=1, method="clip_cov")  # drops tokens at ratio 1 too


ADAPTIVE = {"controller": "target_gate", "share": 0.02}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_accumulation_steps": 2},
        {"generation_batch_size": 32},
        {"method": {"name": "atr", "delta": ADAPTIVE}, "shadows": ["clip"]},
    ],
    ids=str,
)
def test_a_config_is_built_again_from_its_plain_values(tmp_path, settings):
    args = config(tmp_path, **settings)
    assert ConstrainedGRPOConfig(**args.to_dict()) == args


def test_allowed_inert_training_is_plain_policy_gradient(tmp_path):
    settings: dict[str, Any] = {"num_iterations": 1, "max_steps": 3}
    a = plain(tmp_path / "a", **settings)
    b = constrained(tmp_path / "b", "atr", allow_inert=True, **settings)
    assert b.grad_norms == pytest.approx(a.grad_norms, rel=1e-6)
    assert b.column("trustclip/off_policy") == [0.0] * 3


def test_active_dropout_is_pointed_out(tmp_path):
    from peft import LoraConfig

    adapters = LoraConfig(r=2, lora_dropout=0.1, target_modules="all-linear")
    with pytest.warns(UserWarning, match="dropout"):
        build(tmp_path, given={"peft_config": adapters}, disable_dropout=False)


@tc.definition
class Grouped(tc.Method):
    """A method that looks at groups."""

    @property
    def requires(self):
        return ("groups",)

    def surrogate(self, batch):
        raise NotImplementedError


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "art"}, ["'art'", "did you mean 'atr'"]),
        ({"method": {"name": "atr", "delta": -1.0}}, ["delta", "greater than 0", "-1.0"]),
        ({"loss_type": "sapo"}, ["loss_type", "dr_grpo", "method='soft_gate'"]),
        ({"sapo_temperature_pos": 2.0}, ["no effect", "'temperature_positive'"]),
        ({"loss_type": "cispo"}, ["loss_type", "method='cispo'"]),
        ({"epsilon": 0.3}, ["epsilon=0.3", "no effect", "'clip'"]),
        ({"epsilon_high": 0.3}, ["epsilon_high=0.3", "'clip_higher'"]),
        ({"delta": 4.0}, ["delta=4.0", "'dual_clip'"]),
        ({"importance_sampling_level": "sequence"}, ["importance_sampling_level", "level"]),
        ({"method": {"name": "truly_ppo", "variant": "truly"}}, ["gradient of the full KL"]),
        (
            {
                "method": {"name": "truly_ppo", "variant": "ppo_rb"},
                "off_policy_mask_threshold": 0.1,
            },
            ["off_policy_mask_threshold", "sign"],
        ),
        ({"inert_patience": 0}, ["inert_patience"]),
        ({"num_iterations": 0}, ["num_iterations must be at least 1, got 0"]),
        ({"method": f"{__name__}:Grouped"}, ["needs `groups`", "TRL passes none"]),
    ],
)
def test_what_cannot_be_honoured_is_refused(tmp_path, settings, words):
    with pytest.raises(ValueError) as error:
        config(tmp_path, **settings)
    for word in words:
        assert word in str(error.value)


def test_a_config_and_a_trainer_that_do_not_belong_together_are_refused(tmp_path):
    with pytest.raises(ValueError, match="ConstrainedGRPOConfig"):
        build(tmp_path, GRPOConfig)
    theirs = build(tmp_path, trainer_class=GRPOTrainer)
    with pytest.raises(ValueError, match="which `ConstrainedGRPOTrainer` alone"):
        theirs.train()
