"""The lab: many seeds at once are each seed alone; tasks are verified; results continue exactly."""

from typing import Any

import numpy as np
import pytest
import torch

import trustclip as tc
from trustclip.cli.main import main
from trustclip.constraints.aggregation import aggregate
from trustclip.constraints.candidates import Candidates
from trustclip.engines.limits import refusal
from trustclip_lab.stack import LabSettings, cells, load, train
from trustclip_lab.stack.methods import SUPPLY, StackedMethod, batches_of
from trustclip_lab.stack.policies import POLICIES, sample
from trustclip_lab.stack.results import Curve, read
from trustclip_lab.stack.sampler import Sampler, round_trip
from trustclip_lab.stack.streams import Stream
from trustclip_lab.stack.tasks import TASKS, task
from trustclip_lab.stack.training import Copies, Step, _aggregation, logps_of

BRIEF = {"generations": 2, "sft_steps": 20, "eval_prompts": 8, "prompts": 4, "depth": 4}


def _brief(**more):
    return LabSettings(**{**BRIEF, **more})


TRAINED = [name for name in tc.methods() if refusal(tc.method(name), SUPPLY) is None]


ADAPTIVE = {"name": "atr", "delta": {"controller": "target_gate", "share": 0.02}}
#: A method for each way that one seed could reach another: none, its sequence, its group, random
#: numbers, statistics of an update or a generation, a threshold that adapts, candidates.
KINDS = ["atr", "gspo", "vespo", "kl_cov", "trpo", "m2po", "clip_cov", ADAPTIVE, "centered"]


@pytest.mark.parametrize("method", KINDS, ids=str)
def test_a_seed_does_not_depend_on_its_neighbours(method):
    sampler = {"dtype": "int4", "lag": 1}
    settings = _brief(method=method, learning_rate=1e-2, sampler=sampler, drift=True)
    three, alone = train(settings, [3, 8, 5]), train(settings, [8])
    assert torch.equal(three.scores[:, 1:2], alone.scores)
    for rows, own in zip(three.rows, alone.rows, strict=True):
        assert rows[1] == pytest.approx(own[0], rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize(
    "method", [{"name": "truly_ppo", "variant": "truly"}, {"name": "ppo_penalty"}], ids=str
)
def test_what_needs_the_gradient_of_the_full_kl_is_refused_before_training(method):
    method = method if "variant" in method else method | {"divergence": "kl_old_new"}
    with pytest.raises(ValueError, match="gradient of the full KL"):
        load(None, {"method": method})


@pytest.mark.parametrize("name", TRAINED)
def test_the_gradient_of_a_stack_is_the_librarys_of_each_seed(name):
    g = torch.Generator().manual_seed(0)
    shape = (3, 8, 5)
    old, rollout = (-torch.rand(shape, generator=g) - 0.1 for _ in range(2))
    fields: dict[str, Any] = {
        "logp": old + 0.3 * torch.randn(shape, generator=g), "logp_old": old,
        "logp_rollout": rollout, "mask": torch.ones(shape, dtype=torch.bool),
        "advantages": torch.randn(3, 8, 1, generator=g).expand(shape),
        "keys": torch.arange(40).view(8, 5).expand(shape),
        "groups": (torch.arange(8) // 4 + 2 * torch.arange(3)[:, None])[..., None].expand(shape),
        "lag": torch.zeros(shape, dtype=torch.int64),
    }  # fmt: skip
    positive = {"entropy", "entropy_old", "kl_old_new", "kl_new_old", "top_k_kl", "top_k_tv"}
    fields |= {n: 0.1 * torch.rand(shape, generator=g) for n in sorted(positive)}
    three = (torch.randn(24, 5, 6, generator=g).log_softmax(-1) for _ in range(3))
    fields["candidates"] = Candidates(*three)
    stacked, _ = StackedMethod(tc.method(name), 3).coefficient(fields)
    for s, own in enumerate(batches_of(fields)):
        assert torch.equal(stacked[s], tc.coefficient(name, own))


def test_centering_takes_a_drift_away_and_nothing_where_there_is_none():
    brief = {"task": "needle", "sft_steps": 60, "prompts": 16, "depth": 1, "learning_rate": 1e-2}
    centered = {"name": "centered", "inner": {"name": "reinforce"}}
    for sampler, same in (({}, True), ({"dtype": "int4"}, False)):
        plain, without = (
            train(_brief(**brief, method=m, sampler=sampler), [0, 1]).rows[0]
            for m in ("reinforce", centered)
        )
        k3 = [[row["k3"] for row in rows] for rows in (plain, without)]
        assert min(k3[0]) > 1e-4
        assert np.allclose(*k3, rtol=1e-3) == same


@pytest.mark.parametrize("name", TASKS)
def test_worked_answers_are_right_and_others_are_not(name):
    made = task(name, Stream([0, 1], "problem"))
    stream = Stream([0, 1], "training")
    prompts = made.prompts(64, stream)
    right = made.solve(prompts, stream)
    assert right.shape == (2, 64, made.length) and right.max() < made.vocabulary
    assert made.rewards(prompts, right).eq(1).all()
    guessed = stream.integers(made.vocabulary, 64, made.length)
    assert made.rewards(prompts, guessed).mean() < 0.35
    assert made.encode(prompts).shape == (2, 64, made.length, made.features)


def test_chain_arithmetic_is_arithmetic():
    made = task("chain", Stream([0], "problem"))
    plus, minus, times = 0, 1, 2
    prompt = torch.tensor([[[3, 4, 1, 2, 0, 0, 1, plus, minus, times, plus, minus, plus]]])
    assert made.solve(prompt, Stream([0], "training")).tolist() == [[[2, 1, 2, 2, 2, 3]]]


def test_only_decisive_tokens_matter_in_needle():
    made = task("needle", Stream([0], "problem"))
    stream = Stream([0], "training")
    prompts = made.prompts(32, stream)
    marks = made.encode(prompts)[..., -1].bool()
    assert marks.sum(-1).eq(2).all()
    right = made.solve(prompts, stream)
    noise = stream.integers(8, 32, 16)
    assert made.rewards(prompts, torch.where(marks, right, noise)).eq(1).all()
    assert made.rewards(prompts, torch.where(marks, (right + 1) % 8, right)).eq(0).all()


@pytest.mark.parametrize("kind", POLICIES)
def test_sampling_and_scoring_agree_and_nothing_looks_ahead(kind):
    made = task("chain", Stream([0, 1], "problem"))
    policy = POLICIES[kind](made, 32)
    weights = policy.initial(Stream([0, 1], "weights"))
    stream = Stream([0, 1], "training")
    features = made.encode(made.prompts(50, stream))
    tokens, logp = sample(policy, weights, features, stream.uniform(50, made.length))
    again, every = logps_of(policy, weights, policy.inputs(features, tokens), tokens)
    assert torch.allclose(logp, again, atol=1e-5)
    assert torch.allclose(every.exp().sum(-1), torch.ones(()), atol=1e-5)
    other = tokens.clone()
    other[..., 3:] = (other[..., 3:] + 1) % made.vocabulary
    _, changed = logps_of(policy, weights, policy.inputs(features, other), other)
    assert torch.allclose(changed[:, :, :4], every[:, :, :4], atol=1e-6)
    assert not torch.allclose(changed[:, :, 4:], every[:, :, 4:], atol=1e-3)


def test_sampled_tokens_follow_the_policy():
    made = task("teacher", Stream([0], "problem"))
    policy = POLICIES["window"](made, 16)
    torch.manual_seed(0)
    weights = [w + 0.5 * torch.randn_like(w) for w in policy.initial(Stream([0], "weights"))]
    features = made.encode(made.prompts(1, Stream([0], "training"))).expand(-1, 20_000, -1, -1)
    uniform = Stream([1], "training").uniform(20_000, made.length)
    tokens, _ = sample(policy, weights, features, uniform)
    start = torch.full((1, 1), made.vocabulary)
    p = policy.logits(weights, policy.input_at(features[:, :1], start, 0)).softmax(-1).flatten()
    share = torch.bincount(tokens[0, :, 0], minlength=8) / 20_000
    assert (share - p).abs().max() < 5 * 0.5 / 20_000**0.5


def test_a_seed_that_diverges_stays_where_it_is_and_the_others_go_on():
    weights = [torch.ones(2, 3, 4), torch.zeros(2, 3)]
    step = Step(weights, 0.1, 1.0)
    used = step.weights[0].sum((1, 2)) + step.weights[1].sum(1)
    step.down(torch.tensor([1.0, float("nan")]) * used)
    assert not torch.equal(step.detached[0][0], weights[0][0])
    assert torch.equal(step.detached[0][1], weights[0][1])
    assert step.skipped.tolist() == [0, 1]


def test_the_sampler_is_the_copy_that_is_asked_for():
    copies = Copies(Sampler(dtype="int4", lag=2))
    torch.manual_seed(0)
    history = [[torch.randn(2, 3, 4), torch.randn(2, 3)] for _ in range(5)]
    for number, weights in enumerate(history):
        sampler, version = copies.next(weights, 10 * number)
        assert version == 10 * max(number - 2, 0)
        old = history[max(number - 2, 0)]
        assert torch.equal(sampler[0][1], round_trip(old[0][1], "int4"))
        assert torch.equal(sampler[1], old[1])  # vectors are not quantised
        assert len(torch.unique(sampler[0][1][0])) <= 15


def test_an_exact_sampler_is_at_no_distance_and_others_are():
    samplers = {"exact": {}, "bf16": {"dtype": "bfloat16"}, "lag": {"lag": 1}}
    brief = {"task": "needle", "sft_steps": 60, "prompts": 16}
    rows = {
        name: train(_brief(**brief, sampler=sampler), [0]).rows[1][0]
        for name, sampler in samplers.items()
    }
    assert rows["exact"]["sampler/k3"] < 1e-10 < rows["bf16"]["sampler/k3"]
    assert rows["lag"]["sampler/k3"] > rows["bf16"]["sampler/k3"]
    for row in rows.values():
        assert row["sampler/current/k3"] > 0 and 0 < row["sampler/sequence_ess"] <= 1 + 1e-6


def _command(out, *more):
    words = [
        "lab",
        "--output-dir",
        str(out),
        "--seeds",
        "3",
        "--sweep.sampler",
        "{exact: {}, old: {lag: 1}}",
        "--methods",
        "{none: {name: importance_sampling}, atr: {name: atr, sweep: {delta: [0.02, 0.07]}}}",
    ]
    return [*words, *(f"--{k.replace('_', '-')}={v}" for k, v in BRIEF.items()), *more]  # fmt: skip


def test_interrupted_and_continued_gives_the_same_bytes(tmp_path, capsys):
    assert main(_command(tmp_path / "whole")) == 0
    assert "minus none" in " ".join(capsys.readouterr().out.split())
    assert main(_command(tmp_path / "cut")) == 0
    (tmp_path / "cut" / "results.csv").unlink()
    left = sorted((tmp_path / "cut" / "cells").iterdir())
    assert len(left) == 6
    before = [path.stat().st_mtime_ns for path in left[:2]]
    for path in left[2:]:
        path.unlink()
    (tmp_path / "cut" / "cells" / (left[2].name + ".part")).write_text("seed,gen")
    assert main(_command(tmp_path / "cut")) == 0
    assert [path.stat().st_mtime_ns for path in left[:2]] == before
    read_bytes = [(tmp_path / run / "results.csv").read_bytes() for run in ("whole", "cut")]
    assert read_bytes[0] == read_bytes[1]
    rows = read(tmp_path / "whole" / "results.csv")
    assert len(rows) == 18
    assert [row["method"] for row in rows[::3]] == 2 * ["none", "atr-delta0.02", "atr-delta0.07"]
    assert {row["sampler"] for row in rows} == {"exact", "old"}


def test_wrong_settings_are_named(capsys, tmp_path):
    wrong = {
        "--depht=4": "depth",
        "--task=teachr": "teacher",
        "--method=art": "did you mean",
        "--sampler.dtype=int9": "int8",
        "--depth=7": "must divide",
        "--sweep.seeds=[1, 2]": "its own key",
        "--sweep.depth=[4, 5]": "must divide",
        "--sweep.sampler={old: {leg: 1}}": "lag",
        "--policy=transformer": "multiple of 32",
        "--reference=clip": "atr",
    }
    for option, hint in wrong.items():
        assert main(["lab", "--output-dir", str(tmp_path / "never"), option]) == 2, option
        assert hint.lower() in capsys.readouterr().err.lower(), option
    assert not (tmp_path / "never").exists()


def test_the_file_and_the_flags_are_one_setting(tmp_path):
    file = tmp_path / "lab.yaml"
    file.write_text("task: many\nsweep: {learning_rate: [1e-3, 1e-2]}\n")
    settings = load(file, {"depth": 4, "method.delta": 0.1})
    assert (settings.task, settings.depth, settings.method.to_dict()["delta"]) == ("many", 4, 0.1)
    assert [cell.settings.learning_rate for cell in cells(settings)] == [1e-3, 1e-2]
    with pytest.raises(ValueError, match="not both"):
        load(None, {"method": "clip", "methods": {"a": {"name": "atr"}}})


def test_collapse_is_a_fall_that_stays():
    assert Curve(0, [0.1, 0.4, 0.4, 0.4, 0.2, 0.2, 0.2], []).fell(3, 0.1) == 5
    assert Curve(0, [0.1, 0.4, 0.2, 0.4, 0.4, 0.4, 0.4], []).fell(3, 0.1) is None
    assert Curve(0, [0.4, 0.3, 0.2], []).fell(1, 0.1) == 1


@pytest.mark.parametrize("rule", ["token_mean", "sequence_mean", "dr_grpo", "dapo"])
def test_the_loss_of_each_seed_is_the_librarys_aggregation(rule):
    settings = _brief(aggregation=rule)
    torch.manual_seed(0)
    values = torch.randn(3, 8, 4)
    mask = torch.ones(8, 4, dtype=torch.bool)
    own = [aggregate(rule, x, mask, 4 if rule == "dr_grpo" else None) for x in values]
    assert torch.allclose(_aggregation(settings, 8, 4)(values), torch.stack(own), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_seed_may_be_there_several_times_each_with_a_rate(task):
    steps = 400 if task == "many" else 100  # until some answer is right
    more = {"task": task, "distances": False, "pass_k": 2, "sft_steps": steps, "prompts": 8}
    settings = _brief(**more)
    several = train(settings, [3, 8, 3], [1e-3, 1e-2, 1e-2])
    alone = train(_brief(**more, learning_rate=1e-2), [3])
    assert torch.equal(several.scores[:, 2:], alone.scores)
    assert several.passk is not None and alone.passk is not None
    assert torch.equal(several.passk[2:], alone.passk)
    assert [rows[2] for rows in several.rows] == [rows[0] for rows in alone.rows]
    assert [rows[0]["k3"] for rows in several.rows] != [rows[2]["k3"] for rows in several.rows]


def test_the_labs_adam_is_torchs_to_the_last_bit():
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(3, 5, 4, generator=generator), torch.randn(3, 5, generator=generator)]
    rates = [1e-3, 6e-3, 2.4e-2]
    step = Step(weights, rates, 1e9)
    theirs = [[w[s].clone().requires_grad_() for w in weights] for s in range(3)]
    optimizers = [torch.optim.Adam(own, lr=rates[s]) for s, own in enumerate(theirs)]
    for _ in range(40):
        x = torch.randn(3, 5, 4, generator=generator)

        def loss(own, x):  # products and sums only, the same bits in a stack and alone
            return (own[0] * x).square().sum((-2, -1)) + (own[1] - x[..., 0]).square().sum(-1)

        step.down(loss(step.weights, x))
        for s, optimizer in enumerate(optimizers):
            optimizer.zero_grad()
            loss(theirs[s], x[s]).backward()
            optimizer.step()
    for ours, *each in zip(step.weights, *theirs, strict=True):
        assert torch.equal(ours, torch.stack(each))


def test_pass_k_is_the_share_of_prompts_with_a_right_answer():
    settings = _brief(task="many", sft_steps=200, pass_k=8, eval_prompts=64)
    trained = train(settings, [0, 1])
    assert trained.passk is not None
    assert (trained.passk > trained.scores[-1]).all() and (trained.passk < 1).any()
    assert train(_brief(), [0]).passk is None
