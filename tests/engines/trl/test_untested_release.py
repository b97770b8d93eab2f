"""A release of TRL that was not tested, whose loss is another, does not train in silence."""

from typing import Any

import pytest
from test_trl_engine import gradient_of, one_batch
from test_trl_upstream import doctored
from trl.trainer.grpo_trainer import GRPOTrainer
from trl_runs import build

from trustclip.engines.trl import config, trainer

#: Advantages that are read before the log-probabilities are asked for, and so before ours are set.
EARLY = (
    (
        "        # Compute the per-token log probabilities for the model\n        prompt_ids",
        '        advantages = inputs["advantages"]\n        prompt_ids',
    ),
    ('        advantages = inputs["advantages"]\n        # In the base', "        # In the base"),
)
#: A loss that squares the ratio.
SQUARED = (("coef_1 = torch.exp(log_importance", "coef_1 = torch.exp(2 * log_importance"),)
#: A loss in which a short completion counts as much as a long one.
SHARED = (
    (
        "loss = (per_token_loss * mask).sum() / (per_token_loss.size(0) *",
        "loss = (per_token_loss * mask / mask.sum(1)[:, None]).sum() / (per_token_loss.size(0) *",
    ),
)


@pytest.fixture
def untested(monkeypatch) -> None:
    monkeypatch.setattr(trainer, "RELEASE", "9.1.0")


def install(monkeypatch: Any, edits: Any) -> None:
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", vars(doctored(*edits))["_compute_loss"])


@pytest.mark.parametrize("method", ["soft_gate", "atr"])
@pytest.mark.parametrize("edits", [EARLY, SQUARED, SHARED], ids=["early", "squared", "shared"])
def test_another_gradient_is_an_error_in_the_first_update(
    tmp_path, monkeypatch, untested, edits, method
):
    made = build(tmp_path, method=method)
    inputs = one_batch(made)
    install(monkeypatch, edits)
    words = rf"trl .* does not train by .* (that|those) of '{method}'"
    with pytest.raises(RuntimeError, match=words):
        gradient_of(made, inputs)


def test_a_loss_that_asks_for_nothing_is_an_error_in_the_first_update(
    tmp_path, monkeypatch, untested
):
    made = build(tmp_path, method="atr")
    own = GRPOTrainer._compute_loss  # reached from another place than our override
    monkeypatch.setattr(GRPOTrainer, "compute_loss", lambda self, *given, **_: own(self, *given))
    with pytest.raises(RuntimeError, match="so no constraint acted"):
        made.train()


@pytest.mark.parametrize(
    "around",
    [
        *({"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")),
        *({"beta": 0.3}, {"entropy_coef": 0.02}, {"top_entropy_quantile": 0.5}),
        *({"off_policy_mask_threshold": 0.05}, {"vllm": True}),
    ],
    ids=str,
)
def test_the_right_gradient_is_recognised(tmp_path, untested, around):
    around = dict(around)
    beta, vllm = around.pop("beta", 0.0), around.pop("vllm", False)
    made = build(tmp_path, method="soft_gate", **around)
    made.beta, made.use_vllm = beta, vllm
    assert not made._verified
    gradient_of(made, one_batch(made))
    assert made._verified


def test_a_word_that_no_tested_release_has_is_refused(tmp_path, monkeypatch, untested):
    made = build(tmp_path, method="atr")
    inputs = one_batch(made)
    install(monkeypatch, (("compute_entropy=True,", "compute_entropy=True, kept=1,"),))
    with pytest.raises(TypeError, match="asks for log-probabilities with kept, which"):
        gradient_of(made, inputs)


def test_a_replay_and_a_correction_of_trls_own_exclude_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "is_tested", lambda release: False)
    given = {"method": "atr", "replay": True, "top_k": 12, "use_vllm": True}
    with pytest.raises(ValueError, match="the same mass would be divided out twice"):
        build(tmp_path, **given)
    with pytest.raises(ValueError) as error:
        build(tmp_path, **given, vllm_importance_sampling_correction=False, beta=0.1)
    assert "divided out twice" not in str(error.value)
