"""Every row of the Rosetta table has its engine's gradient on one fixed set of tokens."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import engine_cases
import engine_formulas
import pytest
import rosetta_cases
import test_twins
import torch
from extensions.rosetta import page as written
from trl_runs import needs

import trustclip as tc
from trustclip.cli.main import main
from trustclip.constraints import rosetta
from trustclip.constraints.gradients import gradient_with_candidates
from trustclip.constraints.notation import spelled
from trustclip.engines.limits import ENGINES, refusal
from trustclip.support.names import nearest

#: What TRL is given beyond its defaults.
TRL: dict[str, dict[str, Any]] = {
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "delta": {"delta": 4.0},
    "opsm": {"off_policy_mask_threshold": 0.5},
}


def gradient_of_formula(engine: str, row: rosetta.Row, batch: tc.TokenBatch) -> torch.Tensor:
    """Of minus the summed loss, so that it is the coefficient; of candidates, too, if it has any.

    Shape [batch, time], or [batch, time, 1 + candidates].
    """
    assert batch.candidates is not None
    leaves = [x.clone().requires_grad_() for x in (batch.logp, batch.candidates.logp)]
    loss = engine_formulas.FORMULAS[engine, row.name](engine_formulas.of(batch, *leaves))
    total = -torch.where(batch.mask, loss, 0.0).sum()
    own, further = torch.autograd.grad(total, leaves, allow_unused=True)
    return own if further is None else torch.cat([own[..., None], further], dim=2)


def coefficients(method: tc.Method, batch: tc.TokenBatch) -> torch.Tensor:
    """The same of a method."""
    if "candidates" not in method.requires:
        return tc.coefficient(method, batch)
    own, further, _ = gradient_with_candidates(method, batch)
    return torch.cat([own[..., None], further], dim=2)


def tokens_of(engine: str, row: rosetta.Row) -> tc.TokenBatch:
    """Two engines have the whole set that the sampler kept, others its likeliest tokens.

    To prime-rl, whose weights compare with the sampler alone, some tokens are rare.
    """
    batch = rosetta_cases.tokens()
    if engine == "prime-rl":
        batch = with_rare_tokens(batch)
    assert batch.candidates is not None
    if engine != "prime-rl" and row.name != "dppo+sc":
        return batch
    among = batch.candidates
    kept = among.logp_rollout.log_softmax(dim=2)
    whole = dataclasses.replace(among, logp_rollout=kept, partial=False)
    return dataclasses.replace(batch, candidates=whole)


def with_rare_tokens(batch: tc.TokenBatch) -> tc.TokenBatch:
    """Each seventh token, and candidate there, is next to impossible for the sampler alone."""
    rare = torch.arange(batch.logp.numel()).view_as(batch.logp) % 7 == 0
    among, sampled = batch.candidates, batch.given("logp_rollout")
    assert among is not None
    one = rare[..., None] & (torch.arange(among.logp.shape[2]) == 5)
    return dataclasses.replace(
        batch,
        logp=torch.where(rare, math.log(0.05), batch.logp),
        logp_rollout=torch.where(rare, -18.0 + 0.1 * sampled, sampled),
        candidates=dataclasses.replace(
            among, logp_rollout=torch.where(one, -18.0, among.logp_rollout)
        ),
    )


@pytest.mark.parametrize("case", rosetta_cases.rows("formula"), ids=rosetta_cases.label)
def test_the_formula_has_the_same_gradient(case: rosetta_cases.Case) -> None:
    batch, method = tokens_of(*case), rosetta_cases.method_of(*case)
    want = gradient_of_formula(*case, batch)
    torch.testing.assert_close(coefficients(method, batch), want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", rosetta_cases.rows("formula"), ids=rosetta_cases.label)
def test_the_comparison_sees_every_number(case: rosetta_cases.Case) -> None:
    """Three quarters of any number of the method, or its inner one, is another gradient."""
    engine, row = case
    batch = tokens_of(engine, row)
    want = gradient_of_formula(engine, row, batch)
    assert want.any()
    for altered in changed(rosetta_cases.method_of(engine, row).to_dict()):
        if row.name == "seq-mask-tis" and altered["inner"]["epsilon"] == 0.2:
            continue  # no sequence's geometric mean is near its bounds
        got = coefficients(tc.as_method(altered), batch)
        assert not torch.allclose(got, want, rtol=1e-4, atol=0), altered


def changed(values: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for key, value in values.items():
        if isinstance(value, dict):
            found += [{**values, key: inner} for inner in changed(value)]
        elif isinstance(value, float) and value < 1e6 and (key, value) not in UNSEEN:
            share = 0.9 if (key, value) == ("ceiling", 1.2) else 0.75  # of a ratio, so above 1
            found.append({**values, key: value * share})
    return found


#: Numbers between which and three quarters of them no token is: all candidates are dropped, and
#: no sequence has moved by as little as the mask allows; and one that may not be as low.
UNSEEN = {("share", 1.0), ("delta", 1e-4), ("ceiling", 1.4)}


@pytest.mark.parametrize("case", rosetta_cases.rows("package", "trl"), ids=rosetta_cases.label)
def test_trl_has_the_same_gradient(
    case: rosetta_cases.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stock TRL with its defaults, but for what the row says is set."""
    row = case[1]
    if row.name == "vllm":
        pytest.skip("TRL computes these weights while it samples: see the next test")
    settings = TRL.get(row.name, {"loss_type": row.name})
    batch, method = rosetta_cases.tokens(), rosetta_cases.method_of(*case)
    longest = {"max_completion_length": engine_cases.MAX_LENGTH}
    stock = test_twins.trainer_of("TRL", settings | longest, tmp_path)
    own = str(stock.loss_type)
    loss_type = test_twins.AGGREGATED.get(own, own)
    assert AGGREGATIONS[loss_type] == row.aggregation
    want = test_twins.twin_cases.wanted(method, batch, TEST_NAMES.get(loss_type, loss_type))
    got = test_twins.gradient_of(stock, batch, monkeypatch)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-12)


#: TRL's loss types and what a row calls their aggregation.
AGGREGATIONS = {
    "dapo": "dapo",
    "grpo": "sequence_mean",
    "bnpo": "token_mean",
    "dr_grpo": "dr_grpo",
    "luspo": "mean of sequence sums",
}
#: On one micro-batch the mean over its tokens is that over the update's.
TEST_NAMES = {"bnpo": "dapo"}


def test_under_vllm_the_row_is_trls_default_and_a_proven_twin() -> None:
    """Whole runs prove the twin of this form in ``test_published_methods_trl.py``."""
    from trl.trainer.grpo_config import GRPOConfig

    twin = tc.preset("trl", "vllm").twins["TRL"]
    fields = GRPOConfig.__dataclass_fields__
    default = {k: fields[k].default for k in twin if k not in ("use_vllm", "epsilon_high")}
    assert fields["vllm_importance_sampling_correction"].default is True
    assert fields["vllm_importance_sampling_clip_min"].default is None
    assert fields["epsilon_high"].default is None
    assert twin == default | {"use_vllm": True, "epsilon_high": 0.2}


@needs("trl")
def test_the_versions_are_those_installed() -> None:
    import trl

    assert rosetta.ENGINES["trl"].read == trl.__version__


def test_every_row_is_compared_with_something() -> None:
    formulas = {(engine, row.name) for engine, row in rosetta_cases.rows("formula")}
    assert formulas == set(engine_formulas.FORMULAS)
    packages = {engine for engine, _ in rosetta_cases.rows("package")}
    assert packages == {"trl", "verl"}  # verl: tests/engines/verl/test_rosetta.py
    for engine in rosetta.ENGINES.values():
        names = [row.name for row in engine.rows]
        assert len(set(names)) == len(names)
        assert all(row.note for row in engine.rows if row.method is None)


def test_presets_by_name() -> None:
    assert tc.preset("prime-rl") == tc.method("ipo")
    assert tc.preset("verl", "sapo") == tc.method("soft_gate")
    for engine, losses in tc.presets().items():
        assert tc.preset(engine) == tc.preset(engine, losses[0])
        for loss in losses:
            method = tc.preset(engine, loss)
            assert tc.as_method(method.to_dict()) == method


@pytest.mark.parametrize(("engine", "hook"), [("prime-rl", "prime-rl"), ("tinker", "Tinker")])
def test_the_losses_of_an_engine_with_two_policies_train_in_it(engine: str, hook: str) -> None:
    for loss in tc.presets()[engine]:
        reason = refusal(tc.preset(engine, loss), ENGINES[hook])
        # Tinker's cookbook changes the advantages itself, before any loss.
        assert reason is None or (loss == "kl_penalty" and "`logp_ref`" in reason)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("prime_rl",), ["engine 'prime_rl'", "'prime-rl'"]),
        (("verl", "gsppo"), ["loss 'gsppo' of verl", "'gspo'"]),
        (("areal", "m2po"), ["no method", "budgets"]),
    ],
)
def test_an_unknown_preset_is_refused_with_the_right_name(given: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        tc.preset(*given)
    assert all(word in str(caught.value) for word in words)
    assert nearest(given[0], rosetta.ENGINES)


def test_the_page_holds_every_row() -> None:
    page = Path(__file__).parents[2] / "docs" / "rosetta.md"
    assert written() == page.read_text(), "python docs/extensions/rosetta.py > docs/rosetta.md"


def test_the_command_lists_every_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["methods", "--engines"]) == 0
    shown = capsys.readouterr().out
    for engine in rosetta.ENGINES.values():
        assert f"{engine.title}, {engine.read}" in shown
        for row in engine.rows:
            method = "-" if row.method is None else spelled(row.method)
            line = next(text for text in shown.splitlines() if text.startswith(row.name + " "))
            assert line and method in shown
