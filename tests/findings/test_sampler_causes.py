"""Planted causes and their verdicts; the noise floor, the damage, and gates inside the noise."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from programs import program

import trustclip as tc
from trustclip.cli.main import main
from trustclip.constraints.noise import capped_weight, cut_by_noise, effective_share
from trustclip.constraints.sampler import Pairs
from trustclip.engines.trl.scoring.floor import WAYS, floor_of, with_floor
from trustclip.findings.mismatch.agreement import TITLES, compare, damage, too_tight
from trustclip.train.settings.stages import DemoSettings

ROOT = Path(__file__).parents[2]


CAUSES = program(ROOT / "benchmarks" / "sampler_causes.py")


@pytest.mark.parametrize("cause", CAUSES.CAUSES)
def test_a_planted_cause_is_named_as_the_committed_table_says(cause) -> None:
    names = CAUSES.CAUSES[cause][1]
    assert CAUSES.verdicts(cause, 1000)[0] in names
    rows = {row["planted"]: row for row in csv.DictReader(CAUSES.TABLE.open())}
    assert rows.keys() == CAUSES.CAUSES.keys() | CAUSES.EDGES.keys()
    seen = dict(part.rsplit(" ", 1) for part in rows[cause]["with floor"].split("; "))
    assert sum(int(seen.get(name, 0)) for name in names) >= 0.95 * sum(map(int, seen.values()))


def healthy(seed: int = 0, half: bool = False, floor: bool = True) -> Pairs:
    drawn = CAUSES.Distributions(seed)
    said = drawn.noisy(CAUSES.HALF)
    pairs = drawn.pairs(said, said, drawn.z, half=half)
    return pairs if floor else replace(pairs, floor=None)


def test_the_simulated_half_precision_is_that_of_published_engines() -> None:
    pairs = healthy()
    d = pairs.trainer - pairs.sampler
    assert 0.04 < d.std() < 0.06 and 0.09 < d.abs().quantile(0.95) < 0.13
    found = compare(pairs)
    assert not found.troubles and "differs from itself by" in found.sentence, found.sentence


def test_size_is_judged_against_the_floor() -> None:
    """The same differences, of a model that half precision moves ten times less."""
    pairs = healthy()
    assert pairs.floor is not None
    finer = replace(pairs, floor={way: d / 10 for way, d in pairs.floor.items()})
    assert not compare(pairs).troubles
    found = compare(finer)
    assert found.name == "weights" and found.troubles and "times here" in found.sentence


def test_noise_between_kernels_and_half_precision_is_neither() -> None:
    drawn = CAUSES.Distributions(3)
    said = drawn.noisy(CAUSES.HALF / 3)
    found = compare(drawn.pairs(said, said, drawn.z, half=False))
    assert not found.troubles and "an update or two old" in found.sentence
    assert TITLES[found.name].startswith("noise below that of bfloat16")


def test_the_floor_of_a_model_is_what_its_own_passes_differ_by() -> None:
    from trl_runs import fresh_model

    model, _ = fresh_model()
    model.train()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 200, (9, 20), generator=generator).tolist()
    sequences = [(row[:7], row[7 : 12 + n]) for n, row in enumerate(ids[:8])] + [(ids[8], [6, 9])]
    lengths = torch.tensor([len(completion) for _, completion in sequences])
    tokens = int(lengths.sum())
    zero = torch.zeros(tokens)
    pairs = Pairs(
        zero,
        zero,
        position=torch.cat([torch.arange(n) for n in lengths.tolist()]),
        completion=torch.arange(len(sequences)).repeat_interleave(lengths),
        sequences=sequences,
    )
    before = {name: p.clone() for name, p in model.named_parameters()}
    found = floor_of(model, pairs, temperature=2.0)
    assert found.keys() == WAYS.keys()
    assert all(len(d) == tokens and d.isfinite().all() for d in found.values())
    assert found["batch"].abs().max() < 1e-4 and found["head"].abs().max() < 1e-4
    assert found["precision"].abs().mean() > 10 * found["batch"].abs().mean()
    assert model.training
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]) and p.dtype == before[name].dtype
    row = torch.tensor([[*sequences[2][0], *sequences[2][1]]])
    with torch.no_grad():
        half = model.eval().to(torch.bfloat16)(row).logits[0, 6:-1].float().div(2).log_softmax(-1)
        model.float().load_state_dict(before, strict=False)
        full = model(row).logits[0, 6:-1].div(2).log_softmax(-1)
    chosen = torch.tensor(sequences[2][1])[:, None]
    d = (half.gather(1, chosen) - full.gather(1, chosen))[:, 0]
    assert torch.allclose(found["precision"][pairs.completion == 2].float(), d, atol=5e-3)


def test_a_floor_that_cannot_be_measured_leaves_the_comparison(monkeypatch) -> None:
    from trl_runs import fresh_model

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    model, _ = fresh_model()
    monkeypatch.setattr(model, "forward", fails)
    pairs = Pairs(
        torch.zeros(2),
        torch.zeros(2),
        position=torch.arange(2),
        completion=torch.zeros(2, dtype=torch.long),
        sequences=[([5, 6], [7, 8])],
    )
    with pytest.raises(RuntimeError, match="out of memory"):
        floor_of(model, pairs)
    assert with_floor(pairs, model) is pairs


# Damage


@pytest.mark.parametrize(("sd", "length"), [(0.05, 64), (0.05, 512), (0.02, 2048)])
def test_the_closed_forms_of_the_damage_are_those_of_drawn_weights(sd, length) -> None:
    v = sd**2
    s = torch.randn(400_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w = (s * math.sqrt(v * length) - v * length / 2).exp()
    assert capped_weight(v, length, 2.0) == pytest.approx(w.clamp(max=2).mean().item(), abs=0.01)
    ess = (w.sum() ** 2 / w.square().sum() / len(w)).item()
    assert effective_share(v, length) == pytest.approx(ess, rel=0.15)


def test_the_damage_grows_with_the_length() -> None:
    pairs = healthy()
    texts = [damage(pairs, n) for n in (64, 4096)]
    shares = [float(t.partition("count like ")[2].partition(" %")[0]) for t in texts
              if "under" not in t]  # fmt: skip
    assert shares and shares[0] > 60 and (len(shares) == 1 or shares[1] < 1)


def test_gspo_gates_three_percent_on_equal_weights() -> None:
    gspo = tc.method("gspo", low=3e-4, high=4e-4)
    x = 0.003 * torch.randn(20_000, 200, generator=torch.Generator().manual_seed(5)).mean(dim=1)
    plain = ((x > math.log1p(4e-4)).float().mean() + (x < math.log1p(-3e-4)).float().mean()) / 2
    draw = torch.Generator().manual_seed(1)
    noise = 0.003 * torch.randn(1 << 16, generator=draw, dtype=torch.float64)
    assert cut_by_noise(gspo, noise, 200) == pytest.approx(plain.item(), abs=0.02)
    assert 0.03 < cut_by_noise(gspo, noise, 200) < 0.06
    assert cut_by_noise(tc.method("gspo", low=0.2, high=0.2), noise, 200) == 0


def test_a_bound_inside_the_noise_is_said_and_a_wide_one_is_not() -> None:
    pairs = healthy(half=True)
    tight = too_tight(tc.method("gspo"), pairs, 200)
    assert tight is not None and "inside the noise" in tight.sentence
    assert too_tight(tc.method("clip", epsilon=0.5), pairs, 200) is None
    assert too_tight(tc.method("gspo"), healthy(floor=False), 200) is None


def test_doctor_tells_what_the_difference_costs(tmp_path, capsys) -> None:
    pairs = healthy()
    assert pairs.floor is not None and pairs.completion is not None
    file = tmp_path / "pairs.jsonl"
    with file.open("w") as out:
        for i in range(CAUSES.COMPLETIONS):
            among = pairs.completion == i
            columns = {"logp_old": pairs.trainer, "logp_rollout": pairs.sampler}
            columns |= {f"floor_{way}": d for way, d in pairs.floor.items()}
            row = {name: values[among].tolist() for name, values in columns.items()}
            row["floor_batch"][0] = None
            out.write(json.dumps(row) + "\n")
    assert main(["doctor", "--sampler", str(file), "--length", "512"]) == 0
    text = capsys.readouterr().out
    assert "At 512 tokens" in text and "differs from itself by" in text
    for length in ("0", "many", ""):
        assert main(["doctor", "--sampler", str(file), f"--length={length}"]) == 2
        assert "--length is a number of tokens" in capsys.readouterr().err


def test_a_run_says_that_a_bound_lies_inside_the_noise(tmp_path) -> None:
    from rich.console import Console

    from trustclip.findings.live.first import FirstCompletions
    from trustclip.train.runs.directory import RunDirectory

    for name, said in (("gspo", True), ("trpo", False)):
        run = RunDirectory(tmp_path / name, "demo", DemoSettings())
        run.rewind({})
        trainer = SimpleNamespace(method=tc.method(name), max_completion_length=64)
        FirstCompletions(run, Console(quiet=True), trainer)(healthy(half=True))
        notices = [row for row in run.logged() if row["stage"] == "notice"]
        assert [row["notice"] for row in notices] == ["bound_in_noise"] * said, notices
