"""Code on the pages of engines that are not installed here, beside stand-ins for them."""

import re
import sys
import types
from pathlib import Path
from typing import Any

import engine_cases
import pytest
import torch
from torch import Tensor

import trustclip as tc

PAGES = Path(__file__).parents[2] / "docs/engines"


def code_of(page: str) -> str:
    """The first Python block of a page."""
    found = re.search(r"```python\n(.*?)```", (PAGES / page).read_text(encoding="utf-8"), re.S)
    assert found
    return found[1]


def open_instructs(loss_fn: str) -> Any:
    """Its two losses and a KL, written from its source."""

    def compute_grpo_loss(
        new: Tensor, ratio: Tensor, A: Tensor, ref: Tensor, config: Any, rho: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        if loss_fn == "dapo":
            loss = torch.maximum(-A * ratio, -A * ratio.clamp(0.8, 1.272))
        else:
            loss = -A * ratio.detach().clamp(max=1.272) * new
        return loss * rho, torch.zeros_like(loss), (new - ref) ** 2

    return compute_grpo_loss


@pytest.mark.parametrize(
    ("loss_fn", "method"),
    [("dapo", "clip_higher(0.2, 0.272)"), ("cispo", "cispo(1.0, 0.272)")],
)
def test_the_page_of_open_instruct_replaces_its_policy_term(
    loss_fn: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, utils = types.ModuleType("open_instruct"), types.ModuleType("grpo_utils")
    theirs = open_instructs(loss_fn)
    utils.compute_grpo_loss = theirs  # type: ignore[attr-defined]
    package.grpo_utils = utils  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "open_instruct", package)
    code = code_of("open-instruct.md")
    assert code.count('tc.method("atr", delta=0.07)') == 1
    exec(code.replace('tc.method("atr", delta=0.07)', f"tc.as_method({method!r})"), {})

    batch = engine_cases.batch_for(tc.method("clip"))
    rho = torch.linspace(0.0, 2.0, batch.logp.numel()).view_as(batch.logp)
    gradients, others = [], []
    for function in (theirs, utils.compute_grpo_loss):  # type: ignore[attr-defined]
        logp = batch.logp.detach().clone().requires_grad_()
        ratio = (logp - batch.logp_old).exp()
        loss, _, kl = function(logp, ratio, batch.advantages, batch.logp_old - 0.1, None, rho)
        (got,) = torch.autograd.grad((loss[batch.mask] + 0.05 * kl[batch.mask]).sum(), logp)
        gradients.append(got)
        others.append(kl)
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(*others)


def rolls(importance_sampling: str) -> Any:
    """Its worker with the loss of one setting, its KL and its default mean, from its source."""

    def agg_loss(
        loss_mat: Tensor,
        loss_mask: Tensor,
        loss_agg_mode: str,
        batch_num_tokens: int,
        global_valid_samples: int,
        weights: Tensor | None = None,
    ) -> Tensor:
        if loss_agg_mode == "token-mean":
            return (loss_mat * loss_mask).sum() / batch_num_tokens
        means = (loss_mat * loss_mask).sum(1) / loss_mask.sum(1)
        return (means * (1 if weights is None else weights)).sum() / global_valid_samples

    class ActorWorker:
        pipeline_config = types.SimpleNamespace(
            loss_agg_mode="seq-mean-token-mean", rl_loss_coef=0.5
        )

        def get_old_log_probs_with_cache(self, data: Any, log_probs: Tensor) -> Tensor:
            return data.batch["old_log_probs"]

        def compute_sample_weights(self, data: Any, response_mask: Tensor) -> Tensor:
            return torch.linspace(0.5, 2.0, len(response_mask))

        def loss_func(self, data: Any, output_tensor: Tensor) -> tuple[Tensor, dict[str, float]]:
            for counts in (data.meta_info["batch_num_tokens"], data.meta_info[SAMPLES]):
                counts.setdefault("final_response_mask", counts["response_mask"])
            mask = data.batch["response_mask"][:, 1:].long()
            x = output_tensor - self.get_old_log_probs_with_cache(data, output_tensor)
            if importance_sampling == "seq":
                x = ((x * mask).sum(1) / mask.sum(1))[:, None].expand_as(x)
            w, A = x.exp(), data.batch["advantages"]
            loss = -torch.min(w * A, w.clamp(0.8, 1.2) * A)
            tokens, samples = (
                data.meta_info[name]["response_mask"] for name in ("batch_num_tokens", SAMPLES)
            )
            mode = self.pipeline_config.loss_agg_mode
            policy = agg_loss(
                loss, mask, mode, tokens, samples, self.compute_sample_weights(data, mask)
            )
            kl = agg_loss((output_tensor + 2) ** 2, mask, mode, tokens, samples)
            return (policy + 0.1 * kl) * self.pipeline_config.rl_loss_coef, {}

    return ActorWorker, agg_loss


SAMPLES = "global_valid_samples"


@pytest.mark.parametrize(
    ("setting", "method"), [("token", "clip(0.2)"), ("seq", "gspo(0.2, 0.2, variant='gspo')")]
)
def test_the_page_of_roll_replaces_its_policy_term(
    setting: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, agg_loss = rolls(setting)
    given = {
        "roll.pipeline.rlvr.actor_worker": {"ActorWorker": worker},
        "roll.utils.functionals": {"agg_loss": agg_loss},
    }
    for path, names in given.items():
        for i in range(1, path.count(".") + 2):
            name = ".".join(path.split(".")[:i])
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        vars(sys.modules[path]).update(names)
    code = code_of("roll.md")
    assert code.count('tc.method("atr", delta=0.07)') == 1
    own: dict[str, Any] = {}
    exec(code.replace('tc.method("atr", delta=0.07)', f"tc.as_method({method!r})"), own)

    batch = engine_cases.batch_for(tc.method("clip"))
    first = torch.zeros(len(batch.mask), 1, dtype=torch.bool)
    gradients = []
    for one in (worker(), own["Worker"]()):
        logp = batch.logp.detach().clone().requires_grad_()
        data = types.SimpleNamespace(
            batch={
                "response_mask": torch.cat([first, batch.mask], 1),
                "advantages": batch.advantages,
                "old_log_probs": batch.logp_old,
            },
            meta_info={"batch_num_tokens": {"response_mask": 40}, SAMPLES: {"response_mask": 9}},
        )
        loss, metrics = one.loss_func(data, logp)
        gradients.append(torch.autograd.grad(loss, logp)[0])
        assert data.batch["advantages"] is batch.advantages
    torch.testing.assert_close(*gradients)
    assert 0 < metrics["actor/trustclip_gated@sum"] < 1
