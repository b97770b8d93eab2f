"""Why a sampler differs: causes simulated on a transformer's own logits, told by their patterns."""

import json
import math
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from trustclip.cli.main import main
from trustclip.constraints.sampler import Pairs
from trustclip.engines.trl.recording.mismatch import Mismatch
from trustclip.findings.facts import FEWEST_TOKENS as FEWEST
from trustclip.findings.live.first import FirstCompletions
from trustclip.findings.mismatch.agreement import compare
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.stages import DemoSettings

ROWS, TIME, PROMPT = 40, 48, 6


@cache
def model() -> Any:
    from trl_runs import fresh_model

    made, _ = fresh_model()
    with torch.no_grad():  # sharper than at initialisation: mean entropy 1.2 nats, from 0 to 4
        made.lm_head.weight.mul_(7)
        made.model.embed_tokens.weight = torch.nn.Parameter(made.lm_head.weight / 7)
    return made.eval()


@cache
def contexts(first: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 250, (ROWS, TIME), generator=generator)
    ids[:, :PROMPT] = (ids[:, :PROMPT] + first) % 250
    return ids


@cache
@torch.no_grad()
def logits(of: Any = None, prompt: int = 0) -> Tensor:
    """[tokens, vocabulary], after the prompt."""
    z = (of or model())(contexts(prompt)).logits.float()
    return z[:, PROMPT:].flatten(0, 1)


def logp(z: Tensor, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> Tensor:
    """The distribution of a sampler, renormalised."""
    z = z / temperature
    if top_k:
        z = z.masked_fill(z < z.topk(top_k).values[:, -1:], -math.inf)
    if top_p < 1:
        ordered, index = z.softmax(-1).sort(descending=True)
        keep = torch.zeros_like(z, dtype=torch.bool)
        z = z.masked_fill(~keep.scatter(1, index, ordered.cumsum(-1) - ordered < top_p), -math.inf)
    return z.log_softmax(-1)


def pairs(drawn_from: Tensor, said: Tensor, trainer: Tensor) -> Pairs:
    """Tokens drawn from one distribution, as the sampler reports and the trainer scores them."""
    token = drawn_from.exp().multinomial(1, generator=torch.Generator().manual_seed(2))
    a, b = trainer.gather(1, token)[:, 0], said.gather(1, token)[:, 0]
    known = b.isfinite()
    return Pairs(
        trainer=a[known],
        sampler=b[known],
        entropy=-(trainer.exp() * trainer.clamp(min=-1e4)).sum(-1)[known],
        position=torch.arange(TIME - PROMPT).repeat(ROWS)[known],
        token=token[known, 0],
    )


@pytest.mark.parametrize("temperature", [0.3, 0.8, 0.95, 1.5])
@pytest.mark.parametrize("undone", [True, False], ids=["sampler scales", "trainer scales"])
def test_a_temperature_is_recognised_and_estimated(temperature, undone) -> None:
    plain, scaled = logp(logits()), logp(logits(), temperature=temperature)
    said, trainer = (scaled, plain) if undone else (plain, scaled)
    found = compare(pairs(scaled, said, trainer))
    relative = temperature if undone else 1 / temperature
    assert found.name == "temperature" and found.troubles, found.sentence
    told = found.sentence.partition("about ")[2].partition(" times")[0]
    if told:
        assert float(told) == pytest.approx(relative, rel=0.15)
    else:  # too far for an estimate
        assert ("well below" if relative < 1 else "well above") in found.sentence
    assert bool(told) == (temperature > 0.7)


@pytest.mark.parametrize("options", [{"top_p": 0.9}, {"top_p": 0.7}, {"top_k": 5}], ids=str)
@pytest.mark.parametrize("noise", [0.0, 0.003])
def test_a_truncated_sampler_finds_every_token_likelier(options, noise) -> None:
    plain, said = logp(logits()), logp(logits(), **options)
    errors = torch.randn(said.shape, generator=torch.Generator().manual_seed(3))
    found = compare(pairs(said, said + noise * errors, plain))
    assert found.name == "truncation" and found.troubles, found.sentence
    if "top_p" in options and not noise:
        told = float(found.sentence.partition("top_p of about ")[2].partition(",")[0])
        assert told == pytest.approx(options["top_p"], abs=0.02)


def test_a_few_huge_outliers_are_tokens_and_not_the_model() -> None:
    z = logp(logits())
    seen = pairs(z, z, z)
    broken = seen.sampler.clone()
    broken[[5, 80, 900]] -= torch.tensor([9.0, 12.0, 15.0])
    token = seen.token
    assert token is not None
    token[[5, 80, 900]] = 77
    found = compare(Pairs(seen.trainer, broken, seen.entropy, seen.position, token))
    assert found.name == "outliers" and "3 tokens" in found.sentence, found.sentence
    assert "token 77 (3 times)" in found.sentence


def test_too_few_tokens_are_refused() -> None:
    few = -torch.ones(FEWEST - 1)
    with pytest.raises(ValueError, match=f"at least {FEWEST} tokens, got {FEWEST - 1}"):
        compare(Pairs(few, few))


# What users see


def test_before_the_first_update_a_run_records_the_verdict_once(tmp_path, capsys) -> None:
    z = logp(logits())
    for said, notices in ((z, 0), (logp(logits(), temperature=0.7), 1)):
        run = RunDirectory(tmp_path / str(notices), "demo", DemoSettings())
        first = begun(run)
        assert first is not None
        first(Pairs(z[:3, 0], z[:3, 0]))  # too few to judge
        assert not run.logged() and begun(run, step=4) is None  # nor is a later update judged
        first(pairs(said, said, z))
        assert [row["stage"] for row in run.logged()] == ["sampler", *["notice"] * notices]
        again = begun(run)  # resumed before the first checkpoint: the rows are cut off
        assert again is not None and not run.logged()
        again(pairs(said, said, z))
        assert len(run.logged()) == 1 + notices
    assert "temperature" in capsys.readouterr().out


def begun(run: RunDirectory, step: int = 0) -> Any:
    """What listens to the first completions of a training that begins at an update."""
    from rich.console import Console

    trainer = SimpleNamespace(mismatch=Mismatch())
    first = FirstCompletions(run, Console(), trainer)
    run.rewind({})
    first.on_train_begin(None, SimpleNamespace(global_step=step), None)
    return trainer.mismatch.listener


def test_doctor_on_recorded_completions(tmp_path, capsys) -> None:
    z = logp(logits())
    seen = pairs(logp(logits(), temperature=0.7), logp(logits(), temperature=0.7), z)
    assert seen.entropy is not None
    file = tmp_path / "seen.jsonl"
    half = len(seen.trainer) // 2
    rows = [
        {
            "logp_old": seen.trainer[part].tolist(),
            "logp_rollout": seen.sampler[part].tolist(),
            "entropy": seen.entropy[part].tolist(),
        }
        for part in (slice(half), slice(half, None))
    ]
    rows[0]["logp_rollout"][0] = None
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["doctor", "--sampler", str(file)]) == 1
    out = capsys.readouterr().out
    assert "another temperature" in out and f"On {len(seen.trainer) - 1:,} tokens" in out
    for row in rows:
        row["logp_rollout"] = row["logp_old"]
        del row["entropy"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["doctor", "--sampler", str(file)]) == 0
    assert "agree to the bit" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"logprobs": [1.0]}, "no 'logp_old', got logprobs"),
        ({"logp_old": [-1.0, -2.0], "logp_rollout": [-1.0]}, "lists of different lengths"),
        ({"logp_old": [-1.0], "logp_rollout": [-1.0]}, "at least 50 tokens, got 1"),
    ],
    ids=["keys", "lengths", "few"],
)
def test_doctor_refuses_other_files(tmp_path, capsys, line, words) -> None:
    file = tmp_path / "seen.jsonl"
    file.write_text(json.dumps(line) + "\n")
    assert main(["doctor", "--sampler", str(file)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_doctor_samples_the_first_completions_of_a_recipe(tmp_path, capsys) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "name: t\nmodel: tiny\noutput_dir: " + str(tmp_path / "out") + "\n"
        "rl: {dataset: arithmetic, limit: 64, prompt_style: plain, method: {name: clip},"
        " max_completion_length: 16, num_generations: 8, per_device_train_batch_size: 16,"
        " gradient_accumulation_steps: 1, steps_per_generation: 4, num_iterations: 1,"
        " max_steps: 4, lora_r: 0}\n"
    )
    assert main(["doctor", "--sampler", str(recipe)]) == 0
    assert "agree" in capsys.readouterr().out and not (tmp_path / "out").exists()
