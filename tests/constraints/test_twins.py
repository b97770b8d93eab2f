"""A twin has its method's gradient: TRL's own loss under its settings, and the library's."""

from typing import Any

# pyright: reportPrivateImportUsage=false
import method_cases
import pytest
import torch
import twin_cases
from torch import Tensor
from trl_runs import build

import trustclip as tc
from trustclip.cli.commands.constraints import bounds

#: How TRL aggregates under the loss types that bring a gate of their own.
AGGREGATED = {"sapo": "grpo", "cispo": "dapo", "vespo": "dapo"}
#: What proves a twin; verl's are proved in its own environment, by ``engines/verl/test_twins.py``.
PROVED = {"trustclip", "TRL", "trl.experimental.gmpo", "verl"}

of_trl = pytest.mark.parametrize(
    ("method", "trainer"),
    [
        case
        for case in twin_cases.of_trainers("TRL", "trl.experimental.gmpo")
        if case not in twin_cases.SAMPLED  # proved in ``test_published_methods_trl.py``
    ],
    ids=twin_cases.label,
)


def test_every_twin_is_of_a_trainer_that_a_test_runs() -> None:
    assert {trainer for _, trainer in twin_cases.TWINS} == PROVED


@pytest.mark.parametrize(
    ("method", "trainer"), twin_cases.of_trainers("trustclip"), ids=twin_cases.label
)
def test_the_other_method_has_the_same_gradient(method: tc.Method, trainer: str) -> None:
    batch = twin_cases.batch_for(method)
    twin = tc.as_method(method.twins[trainer])
    assert twin.name != method.name
    want = tc.coefficient(method, batch)
    torch.testing.assert_close(tc.coefficient(twin, batch), want, rtol=1e-12, atol=0)


# TRL -------------------------------------------------------------------------------------------


def trainer_of(where: str, settings: dict[str, Any], folder: Any) -> Any:
    """Stock TRL under the settings of a twin, and its defaults otherwise."""
    from trl import GRPOConfig, GRPOTrainer
    from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

    theirs: Any = (GRPOConfig, GRPOTrainer) if where == "TRL" else (GMPOConfig, GMPOTrainer)
    usual = {"loss_type": theirs[0].__dataclass_fields__["loss_type"].default}
    # Sampling with vLLM needs a GPU; that the tokens were sampled with it is all the loss sees.
    sampled = settings.get("use_vllm", False)
    made = build(folder, *theirs, **{**usual, **settings, "use_vllm": False})
    made.use_vllm = sampled
    return made


def gradient_of(trainer: Any, batch: tc.TokenBatch, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Gradient of the trainer's own loss in the log-probabilities."""
    logp = batch.logp.clone().requires_grad_()
    given = batch.logp_old, batch.advantages, batch.mask, batch.logp_rollout
    (gradient,) = torch.autograd.grad(loss_of(trainer, monkeypatch, logp, *given), logp)
    return gradient


def loss_of(
    trainer: Any,
    monkeypatch: pytest.MonkeyPatch,
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    logp_rollout: Tensor | None,
    total_tokens: Tensor | None = None,
) -> Tensor:
    """The trainer's own loss of tokens, all of completions with one advantage each."""
    tokens = torch.ones_like(mask, dtype=torch.int64)
    scored = (logp, torch.zeros_like(logp), None)
    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", lambda *_, **__: scored)
    monkeypatch.setattr(trainer, "current_gradient_accumulation_steps", 1, raising=False)
    inputs: dict[str, Any] = {
        "prompt_ids": tokens[:, :1],
        "prompt_mask": tokens[:, :1],
        "completion_ids": tokens,
        "completion_mask": mask.long(),
        "advantages": advantages[:, 0],
        "old_per_token_logps": logp_old,
        "num_items_in_batch": mask.sum() if total_tokens is None else total_tokens,
    }
    if trainer.use_vllm:
        inputs["sampling_per_token_logps"] = logp_rollout
    return trainer._compute_loss(trainer.model, inputs)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


@of_trl
def test_trl_has_the_same_gradient(
    method: tc.Method, trainer: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, batch = method.twins[trainer], twin_cases.batch_for(method)
    stock = trainer_of(trainer, settings, tmp_path)
    # GMPO's mean over sequences is that of ``grpo``.
    loss_type = stock.loss_type if trainer == "TRL" else "grpo"
    want = twin_cases.wanted(method, batch, AGGREGATED.get(loss_type, loss_type))
    got = gradient_of(stock, batch, monkeypatch)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-12)


# The command -----------------------------------------------------------------------------------


def printed_by_bounds(method: tc.Method, capsys: pytest.CaptureFixture[str]) -> str:
    own = method.to_dict()
    flags = [f"--{key}={value}" for key, value in own.items() if tc.method(own["name"]) != method]
    given = [flag for flag in flags if not flag.startswith("--name") and "{" not in flag]
    bounds([own["name"], *given])
    return capsys.readouterr().out


def settings_in(line: str) -> dict[str, str]:
    """Settings as `bounds` prints them: words with ``=``, or a method's name and its flags."""
    _, *words = line.split()
    if "=" in words[0]:
        return dict(word.split("=", 1) for word in words)
    name, *flags = words
    named = zip(flags[::2], flags[1::2], strict=True)
    return {"name": name} | {flag.removeprefix("--"): value for flag, value in named}


@method_cases.every_name
def test_bounds_prints_the_twins_of_every_method_and_guesses_none(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = [m for m in method_cases.ALL if m.name == name and not getattr(m, "parts", ())]
    for method in flat or [tc.method(name)]:
        lines = printed_by_bounds(method, capsys).splitlines()
        heading = [i for i, line in enumerate(lines) if line.startswith("the same gradient")]
        assert len(heading) == bool(method.twins)
        after = heading[0] + 1 if heading else len(lines)
        found = {line.split()[0]: settings_in(line) for line in lines[after:]}
        as_text = {
            trainer: {key: str(value) for key, value in settings.items()}
            for trainer, settings in method.twins.items()
        }
        assert found == as_text
        assert method.twins or "no setting of stock TRL or verl" in lines[-1]
        shared = "where a sequence's tokens share their advantage" in "".join(lines)
        assert shared == (bool(method.twins) and getattr(method, "level", "") == "sequence")
