"""The sampler's log-probabilities: recorded from `generate`, and from copies of the policy."""

import copy
import dataclasses
from typing import Any, cast

# pyright: reportArgumentType=false, reportPrivateImportUsage=false
import pytest
import torch
import trl_runs
from llamas import small_llama
from peft import LoraConfig, get_peft_model
from transformers import TopKLogitsWarper, TopPLogitsWarper
from trl_runs import COMMON, constrained, fresh_model, plain

import trustclip as tc
from trustclip.engines.sampler import Sampler
from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer
from trustclip.engines.trl.sampling.decoding import Decoder
from trustclip.engines.trl.sampling.sampled import oddity
from trustclip.engines.trl.sampling.sampler import Copies, Twin, round_trip

PROMPTS = [[5, 9, 17], [40, 3, 8, 77, 12], [5, 9, 17], [9]]


def rounded(model: Any, dtype: str) -> Any:
    """A model of its own with rounded weights, made without the code under test."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            if dtype == "int8" and p.dim() == 2:
                for row in (r for r in p if r.any()):
                    step = row.abs().max() / 127
                    row.copy_(torch.round(row / step).clamp(-127, 127) * step)
            elif dtype in ("bfloat16", "float16"):
                p.copy_(p.to(getattr(torch, dtype)).float())
    return other


def logps_of(model: Any, prompt: list[int], tokens: list[int], change=lambda z: z) -> list[float]:
    """Of a completion, by one plain forward pass."""
    ids = torch.tensor([prompt + tokens])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1]
    logps = change(logits).log_softmax(-1)
    return logps.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


# Copies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
def test_a_copy_samples_from_its_own_weights(dtype):
    model, _ = fresh_model()
    model.eval()
    torch.manual_seed(0)
    decoder, version = Copies(Sampler(dtype=dtype)).next(model, 7)
    other = rounded(model, dtype)
    for prompt, done in zip(PROMPTS, decoder.decode(PROMPTS, 12, [], 0.8), strict=True):
        want = logps_of(other, prompt, done.tokens, lambda z: z / 0.8)
        assert done.logps == pytest.approx(want, abs=2e-5)
        ours = logps_of(model, prompt, done.tokens, lambda z: z / 0.8)
        moved = max(abs(a - b) for a, b in zip(done.logps, ours, strict=True))
        assert (moved > 1e-4) == (dtype != "float32")
    assert version == 7


def test_a_copy_of_an_adapted_model_is_rounded_after_the_adapter_is_merged():
    model = small_llama("Llama", adapter=True)
    decoder, _ = Copies(Sampler(dtype="int8")).next(model, 0)
    other = rounded(copy.deepcopy(model).merge_and_unload(), "int8")
    for prompt, done in zip([[5, 9], [7]], decoder.decode([[5, 9], [7]], 6, [], 1.0), strict=True):
        got = pytest.approx(done.logps, abs=2e-5)
        assert logps_of(other, prompt, done.tokens) == got
        assert logps_of(model, prompt, done.tokens) != got


def test_int8_has_255_levels_and_leaves_vectors():
    torch.manual_seed(0)
    weight = torch.randn(3, 4000)
    quantised = round_trip(weight, "int8")
    for row, got in zip(weight, quantised, strict=True):
        step = row.abs().max() / 127
        assert len(got.unique()) <= 255
        assert (got - row).abs().max() <= step / 2 * 1.0001
    assert torch.equal(round_trip(weight[0], "int8"), weight[0])
    assert not round_trip(torch.zeros(2, 2), "int8").any()


@pytest.mark.parametrize(("top_p", "top_k"), [(0.7, 0), (1.0, 5), (0.5, 20), (1e-9, 0), (1.0, 1)])
def test_cut_off_as_transformers_does(top_p, top_k):
    model, _ = fresh_model()
    model.eval()
    torch.manual_seed(1)

    def change(z):
        z = z / 1.3
        z = TopKLogitsWarper(top_k)(None, z) if top_k else z
        return TopPLogitsWarper(top_p)(None, z) if top_p < 1 else z

    decoded = Decoder(model).decode(PROMPTS, 10, [], 1.3, top_p, top_k)
    for prompt, done in zip(PROMPTS, decoded, strict=True):
        want = logps_of(model, prompt, done.tokens, change)
        assert done.logps == pytest.approx(want, abs=2e-5)


def test_a_copy_is_as_old_as_its_lag():
    model, _ = fresh_model()
    copies = Copies(Sampler(lag=2))
    versions = []
    for step in (0, 3, 6, 9, 12):
        with torch.no_grad():
            model.model.norm.weight.fill_(float(step + 1))
        decoder, version = copies.next(model, step)
        versions.append(version)
        assert isinstance(decoder, Decoder)
        assert torch.equal(decoder._last_norm, torch.full_like(decoder._last_norm, version + 1.0))
    assert versions == [0, 0, 0, 3, 6]


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


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_rounded_sampler_differs_by_what_was_rounded(tmp_path, monkeypatch, dtype):
    sampler = {"dtype": dtype}
    seen = watched(tmp_path, monkeypatch, num_iterations=2, sampler=sampler, temperature=0.9)
    model, _ = fresh_model()
    model.eval()
    for inputs, batch, state in seen[::2]:  # on the policy that the copy was made of
        assert (inputs["trustclip_lag"] == 0).all()
        model.load_state_dict(state)
        for policy, got in ((model, batch.logp_old), (rounded(model, dtype), batch.logp_rollout)):
            assert_scored(policy, inputs, got, batch.mask, 0.9)
        assert (batch.logp_rollout - batch.logp_old)[batch.mask].abs().max() > 1e-4


def assert_scored(policy: Any, inputs: dict[str, Any], got: Any, mask: Any, t: float) -> None:
    for row in range(4):
        prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()].tolist()
        tokens = inputs["completion_ids"][row][mask[row]].tolist()
        want = logps_of(policy, prompt, tokens, lambda z: z / t)
        assert got[row][mask[row]].tolist() == pytest.approx(want, abs=3e-5)


def test_a_lagging_sampler_is_an_earlier_policy(tmp_path, monkeypatch):
    seen = watched(tmp_path, monkeypatch, num_iterations=2, sampler={"lag": 1})
    model, _ = fresh_model()
    model.eval()
    ages = [int(inputs["trustclip_lag"][0]) for inputs, *_ in seen]
    assert ages == [0, 1, 2, 3, 2, 3]
    before = {0: 0, 2: 0, 4: 2}  # micro-batch: that whose policy sampled it
    for one, other in before.items():
        model.load_state_dict(seen[other][2])
        inputs, batch, _ = seen[one]
        assert_scored(model, inputs, batch.logp_rollout, batch.mask, 1.0)


@pytest.mark.parametrize(
    ("sampler", "more"),
    [
        ({"lag": 2, "dtype": "bfloat16"}, {}),
        ({"top_p": 0.8, "top_k": 40}, {}),
        ({"dtype": "int8"}, {"lora": True}),
        ({"lag": 1}, {"bf16": True}),
    ],
    ids=str,
)
def test_a_sampler_that_differs_trains(tmp_path, sampler, more):
    run = constrained(tmp_path, "tis", decoder="auto", sampler=sampler, max_steps=4, **more)
    assert len(run.grad_norms) == 4 and all(g > 0 for g in run.grad_norms)


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


# Refused ---------------------------------------------------------------------------------------


def test_a_correction_is_made_once(tmp_path):
    """With vLLM, TRL corrects by default; a method that corrects and TRL's exclude each other."""
    vllm: dict[str, Any] = {**COMMON, "use_vllm": True}
    for method in ("tis", "icepop", {"name": "dppo", "anchor": "rollout"}):
        with pytest.raises(ValueError, match="vllm_importance_sampling_correction=False"):
            ConstrainedGRPOConfig(str(tmp_path), method=method, **vllm)
        off: dict[str, Any] = {"vllm_importance_sampling_correction": False}
        assert ConstrainedGRPOConfig(str(tmp_path), method=method, **vllm, **off).use_vllm


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"decoder": "transformers"}, "decoder='transformers'"),
        ({"use_transformers_continuous_batching": True}, "another engine samples"),
        ({"fp16": True}, "fp16 autocast"),
        ({"top_p": 0.9}, "does not apply top_p=0.9"),
    ],
    ids=str,
)
def test_a_copy_that_cannot_be_decoded_is_refused(tmp_path, settings, words):
    given: dict[str, Any] = {**COMMON, "sampler": {"lag": 1}, **settings}
    with pytest.raises(ValueError, match=f"`sampler` copies the policy, and no copy.*{words}"):
        ConstrainedGRPOConfig(str(tmp_path), **given)


def gpt2(vocabulary: int, lora: Any = None) -> Any:
    """A model that the decoder does not know; its linear layers are transposed."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=vocabulary, n_embd=32, n_layer=1, n_head=2, **NO_DROPOUT)
    model = GPT2LMHeadModel(config)
    if lora is not None:
        model = cast(
            "Any", get_peft_model(model, LoraConfig(r=2, target_modules=["c_attn"], **lora))
        )
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight.normal_()
    return model.eval()


NO_DROPOUT: dict[str, Any] = {f"{place}_pdrop": 0.0 for place in ("attn", "embd", "resid")}


@pytest.mark.parametrize("lora", [None, {}], ids=["full", "lora"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_copy_of_any_model_samples_from_its_own_weights(dtype, lora):
    model = gpt2(80, lora)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    twin, version = Copies(Sampler(dtype=dtype, top_k=1), likeliest=2).next(model, 7)
    assert isinstance(twin, Twin) and version == 7 and torch.equal(random, torch.get_rng_state())
    whole = copy.deepcopy(model)
    other = rounded(whole.merge_and_unload() if lora is not None else whole, dtype)
    for prompt, done in zip(PROMPTS, twin.decode(PROMPTS, 12, [3, 4], 0.8), strict=True):
        want = logps_of(other, prompt, done.tokens, lambda z: z / 0.8)
        assert done.logps == pytest.approx(want, abs=2e-5)
        ours = logps_of(model, prompt, done.tokens, lambda z: z / 0.8)
        moved = max(abs(a - b) for a, b in zip(done.logps, ours, strict=True))
        assert (moved > 1e-5) == (dtype != "float32")
        assert done.likeliest is not None and len(done.likeliest.logps) == len(done.tokens)
        assert len(done.tokens) == 12 or done.tokens[-1] in (3, 4)
        assert not {3, 4} & {*done.tokens[:-1]}
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def trained(tmp_path, sampler, lora=None, **settings):
    from datasets import Dataset

    _, tokenizer = fresh_model()
    args = ConstrainedGRPOConfig(
        str(tmp_path), method="icepop", sampler=sampler, **{**COMMON, "max_steps": 4, **settings}
    )
    return ConstrainedGRPOTrainer(
        model=gpt2(len(tokenizer), lora),
        reward_funcs=trl_runs.share_of_even_digits,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": trl_runs.PROMPTS}),
        processing_class=tokenizer,
    )


@pytest.mark.parametrize("lora", [None, {}], ids=["full", "lora"])
def test_a_copy_of_any_model_trains(tmp_path, lora):
    trainer = trained(tmp_path, {"dtype": "int8", "lag": 1}, lora, num_iterations=2)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "trustclip/sampler/abs" in row]
    assert rows and all(row["trustclip/sampler/abs"] > 1e-5 for row in rows)
    assert len(trainer._copies.state()) == 1


def test_a_copy_that_would_have_other_weights_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no copy can sample here: .* \(lm_head"):
        trained(tmp_path, {"lag": 1}, {"modules_to_save": ["lm_head"]})


def test_a_config_keeps_its_sampler():
    args = ConstrainedGRPOConfig("out", sampler='{"dtype": "int8", "lag": 2}', **COMMON)
    again = ConstrainedGRPOConfig(
        **{**COMMON, "output_dir": "out", "sampler": args.to_dict()["sampler"]}
    )
    assert again.sampling() == args.sampling() == Sampler(dtype="int8", lag=2)


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
    from datasets import Dataset

    model, tokenizer = fresh_model()
    return ConstrainedGRPOTrainer(
        model=model,
        reward_funcs=trl_runs.share_of_even_digits,
        args=ConstrainedGRPOConfig(str(tmp_path), method="tis", **{**COMMON, "max_steps": 1}),
        train_dataset=Dataset.from_dict({"prompt": trl_runs.PROMPTS}),
        processing_class=tokenizer,
        rollout_func=rollout,
    )


def test_log_probabilities_of_another_length_are_refused(tmp_path):
    with pytest.raises(ValueError, match="5 log-probabilities for the 4 tokens of completion 0"):
        with_rollout(tmp_path, rolled_out(1, 0.0)).train()


def test_a_notice_comes_once_in_training(tmp_path):
    with pytest.warns(UserWarning, match="nats a token above the trainer's") as found:
        with_rollout(tmp_path, rolled_out(0, 2.0)).train()
    assert len([w for w in found if "nats a token" in str(w.message)]) == 1
