"""Sequence-level methods on one batch in our trainer and in TRL's own, setting by setting.

Equal to TRL, or different as docs/fast-paths.md says ("Where sequence-level methods differ from
TRL's"): the engine hands TRL a gradient per token, where TRL has one ratio per sequence.
"""

from typing import Any

# pyright: reportPrivateImportUsage=false
import pytest
import torch
from torch import Tensor
from trl_runs import build

ROWS, LENGTH = 6, 10
LOSS_TYPES = ["grpo", "bnpo", "dr_grpo", "dapo", "luspo"]
BOUNDS = {"low": 0.02, "high": 0.03}

#: Settings with the same meaning on both sides, and inputs that they need.
SAME: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "plain": ({}, ()),
    "kl": ({"beta": 0.1, "use_bias_correction_kl": False}, ()),
    "entropy_bonus": ({"entropy_coef": 0.01}, ()),
    "vllm_sequence": ({}, ("sequence",)),
    "tool_mask": ({}, ("tools",)),
}
#: Settings that move the gradient between the tokens of a sequence, but not from one to another.
SAME_SUM: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "top_entropy_quantile": ({"top_entropy_quantile": 0.5}, ()),
    "vllm_token": ({}, ("token",)),
}


def numbers() -> dict[str, Tensor]:
    """Random sequences that have moved by up to some 5 % on average, half outside the bounds."""
    generator = torch.Generator().manual_seed(4)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    old = -0.5 - noise(ROWS, LENGTH).abs()
    lengths = torch.tensor([10, 3, 7, 1, 10, 5])
    return {
        "old": old,
        "logp": old + 0.05 * noise(ROWS, 1) + 0.3 * noise(ROWS, LENGTH) / LENGTH,
        "ref": old + 0.2 * noise(ROWS, LENGTH),
        "entropy": noise(ROWS, LENGTH).abs(),
        "advantages": torch.tensor([1.0, -0.5, 0.7, -1.2, -0.3, 0.4]),
        "mask": (torch.arange(LENGTH) < lengths[:, None]).long(),
        "tool": (noise(ROWS, LENGTH) > -1).long(),
        "token": torch.exp(0.3 * noise(ROWS, LENGTH)),
        "sequence": torch.exp(0.3 * noise(ROWS, 1)),
    }


def trainer_of(where: str, folder: Any, **settings: Any) -> Any:
    """``where`` is the method for our trainer, or a trainer of TRL's."""
    from trl import GRPOConfig, GRPOTrainer
    from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

    theirs: dict[str, Any] = {"TRL": (GRPOConfig, GRPOTrainer), "GMPO": (GMPOConfig, GMPOTrainer)}
    beta = settings.pop("beta", 0.0)
    settings = {"loss_type": "grpo", "max_completion_length": LENGTH, **settings}
    made = build(folder, *theirs.get(where, ()), **settings)
    made.beta = beta  # set now, it needs no reference model: the inputs hold its numbers
    return made


def gradient_of(trainer: Any, asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Gradient of the trainer's loss in the log-probabilities, and in the entropies below it."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    given = numbers()
    logp, entropy = (given[name].clone().requires_grad_() for name in ("logp", "entropy"))
    monkeypatch.setattr(
        GRPOTrainer,
        "_get_per_token_logps_and_entropies",
        lambda self, model, input_ids, *_, **__: (
            logp[input_ids[:, 0]], entropy[input_ids[:, 0]], None
        ),
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    tokens = torch.ones(ROWS, LENGTH, dtype=torch.int64)
    inputs: dict[str, Any] = {
        "prompt_ids": torch.arange(ROWS)[:, None],  # the number of the row
        "prompt_mask": tokens[:, :1],
        "completion_ids": tokens,
        "completion_mask": given["mask"],
        "advantages": given["advantages"],
        "old_per_token_logps": given["old"],
        "ref_per_token_logps": given["ref"],
        "num_items_in_batch": given["mask"].sum(),
        "sample_index": torch.arange(ROWS),
        "generated": torch.full((ROWS,), -1),  # by an earlier policy
    }
    if "tools" in asked:
        inputs["tool_mask"] = given["tool"]
    for level in {"token", "sequence"} & {*asked}:
        trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
        inputs["importance_sampling_ratio"] = given[level]
        inputs["sampling_per_token_logps"] = given["old"]
    trainer._compute_loss(trainer.model, inputs).backward()
    assert logp.grad is not None and logp.grad.any()
    below = torch.zeros_like(entropy) if entropy.grad is None else entropy.grad
    return torch.cat([logp.grad, below])


def both(
    case: tuple[dict[str, Any], tuple[str, ...]], loss_type: str, tmp_path: Any, monkeypatch: Any
) -> tuple[Tensor, Tensor]:
    settings, asked = case
    settings = {**settings, "loss_type": loss_type}
    name = "luspo" if loss_type == "luspo" else "gspo"
    method = {"name": name, **BOUNDS}
    ours = trainer_of("ours", tmp_path / "a", method=method, allow_inert=True, **settings)
    bounds = {"epsilon": BOUNDS["low"], "epsilon_high": BOUNDS["high"]}
    level = {"importance_sampling_level": "sequence"}
    theirs = trainer_of("TRL", tmp_path / "b", **level, **bounds, **settings)
    return tuple(gradient_of(t, asked, monkeypatch) for t in (ours, theirs))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("case", "loss_type"),
    [
        *(("plain", loss_type) for loss_type in LOSS_TYPES),
        *zip(["kl", "entropy_bonus", "vllm_sequence", "tool_mask"], LOSS_TYPES, strict=False),
    ],
)
def test_equal_to_trl(case: str, loss_type: str, tmp_path: Any, monkeypatch: Any) -> None:
    ours, theirs = both(SAME[case], loss_type, tmp_path, monkeypatch)
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-8)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
@pytest.mark.parametrize("case", SAME_SUM.values(), ids=SAME_SUM)
def test_of_another_distribution_within_each_sequence(
    case: Any, loss_type: str, tmp_path: Any, monkeypatch: Any
) -> None:
    ours, theirs = both(case, loss_type, tmp_path, monkeypatch)
    torch.testing.assert_close(ours.sum(1), theirs.sum(1), rtol=1e-4, atol=1e-7)
    mask = numbers()["mask"]
    gradient, moved = theirs[:ROWS], ours[:ROWS]
    spread = (gradient - gradient[:, :1])[mask.bool()]
    assert spread.abs().max() < 1e-6 and not torch.allclose(moved, gradient, rtol=1e-2)
    if case[0]:  # a token of low entropy: no gradient here, that of its sequence in TRL
        dropped = (moved == 0) & mask.bool() & (gradient != 0)
        assert dropped.any()


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_corrected_kl_takes_the_tokens_ratio(
    loss_type: str, tmp_path: Any, monkeypatch: Any
) -> None:
    settings = {"beta": 0.5, "use_bias_correction_kl": True}
    ours, theirs = both((settings, ()), loss_type, tmp_path, monkeypatch)
    assert not torch.allclose(ours, theirs, rtol=1e-2)
    without = both(SAME["plain"], loss_type, tmp_path, monkeypatch)[0]
    given = numbers()
    logp = given["logp"].clone().requires_grad_()
    ahead = given["ref"] - logp
    kl = (torch.exp(ahead) - ahead - 1) * torch.exp(logp - given["old"]) * given["mask"]
    weights = {
        "grpo": 1 / (ROWS * given["mask"].sum(1, keepdim=True)),
        "luspo": torch.full((ROWS, 1), 1 / ROWS),
        "dr_grpo": torch.full((ROWS, 1), 1 / (ROWS * LENGTH)),
    }.get(loss_type, 1 / given["mask"].sum().expand(ROWS, 1))
    (want,) = torch.autograd.grad((0.5 * kl * weights).sum(), logp)
    torch.testing.assert_close((ours - without)[:ROWS], want, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "equal"),
    [
        ({}, True),
        ({"beta": 0.1, "use_bias_correction_kl": False}, True),
        ({"beta": 0.1, "use_bias_correction_kl": True}, False),  # TRL's GMPO corrects nothing
        ({"top_entropy_quantile": 0.5}, False),  # and leaves low entropies out of its mean
    ],
    ids=str,
)
def test_gmpo_in_trls_experimental_trainer(
    settings: dict[str, Any], equal: bool, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    method = {"name": "gmpo", "log_low": 0.05, "log_high": 0.1}
    mine = {"method": method, "loss_type": "grpo", "allow_inert": True, **settings}
    bounds = {"epsilon": 0.05, "epsilon_high": 0.1}
    ours = gradient_of(trainer_of("ours", tmp_path / "a", **mine), (), monkeypatch)
    theirs = trainer_of("GMPO", tmp_path / "b", **bounds, **settings)
    same = torch.allclose(ours, gradient_of(theirs, (), monkeypatch), rtol=2e-5, atol=1e-7)
    assert same is equal
