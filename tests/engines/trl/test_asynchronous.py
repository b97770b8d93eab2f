"""TRL's asynchronous trainer with our methods: its own class, a worker in this process, no server.

Its attention is a kernel for GPUs; here the same sums are computed by PyTorch.
"""

import inspect
import itertools
import math
import queue
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Trainer
from trl.experimental.async_grpo import async_grpo_trainer
from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig
from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
from trl_runs import fresh_model

import trustclip as tc
from trustclip.engines.trl import upstream

packing = pytest.importorskip("trl.experimental.async_grpo.packing", reason="needs TRL 1.16")
from trustclip.engines.trl.asynchronous import ConstrainedAsyncGRPOTrainer  # noqa: E402

PROMPT, PAIRS = 5, 4


def varlen(query: Tensor, key: Tensor, value: Tensor, *layout: Any, **kwargs: Any) -> Tensor:
    """Attention of each segment to its path, whose last tokens it is."""
    (queries, keys), outputs = ([x.tolist() for x in layout[:2]], [])
    for (q0, q1), (k0, k1) in zip(
        itertools.pairwise(queries), itertools.pairwise(keys), strict=True
    ):
        q, k, v = (x.transpose(0, 1) for x in (query[q0:q1], key[k0:k1], value[k0:k1]))
        seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril((k1 - k0) - (q1 - q0))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=kwargs["softmax_scale"], enable_gqa=True
        )
        outputs.append(out.transpose(0, 1))
    return torch.cat(outputs)


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    # The flops of a GPU, from its name.
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)
    monkeypatch.setattr(
        packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=varlen)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("model"))
    for part in fresh_model():
        part.save_pretrained(path)
    return path


def samples(folder: str, seed: int = 0) -> list[dict[str, Any]]:
    """Pairs of completions of one prompt that share their first token, and some a tool's tokens."""
    g = torch.Generator().manual_seed(seed)
    rows = []
    model = fresh_model()[0]
    for group in range(PAIRS):
        prompt = torch.randint(5, 60, (PROMPT,), generator=g)
        first = torch.randint(5, 60, (1,), generator=g)
        for of in range(2):
            more = torch.randint(5, 60, (3 + group + of,), generator=g)
            ids = torch.cat([prompt, first, more])
            mask = torch.arange(len(ids)) >= PROMPT
            mask[PROMPT + 2] &= of == 1
            apart = 0.3 * 3.0 ** (group - 2) * torch.randn(len(ids), generator=g)
            old = (log_probs(model, ids) + apart) * mask
            advantage = (1.5 - of * 2.2) * (1 + group / 4)
            rows.append({"ids": ids, "mask": mask, "old": old.detach(), "advantage": advantage})
    return rows


def log_probs(model: Any, ids: Tensor) -> Tensor:
    """Of every token but the first, by a pass over one sequence. Shape [time]."""
    logits = model(ids[None]).logits[0, :-1].float().log_softmax(1)
    return torch.cat([logits.new_zeros(1), logits.gather(1, ids[1:, None])[:, 0]])


class Worker:
    """Hands the same samples out, each of the version that is `behind` the newest."""

    def __init__(self, rows: list[dict[str, Any]], behind: int = 0) -> None:
        self.rows, self.behind, self.version = itertools.cycle(rows), behind, 0
        self.rollout_buffer, self.metrics_queue = self, queue.Queue()

    def get(self, timeout: float) -> RolloutSample:
        row, number = next(self.rows), self.version
        return RolloutSample(
            prompt=[],
            completion=[],
            input_ids=row["ids"].numpy(),
            completion_mask=row["mask"].long().numpy(),
            old_log_probs=row["old"].numpy(),
            advantage=row["advantage"],
            model_version=max(number - self.behind, 0),
            group_id=int(row["ids"][0]),
            metrics={"reward": 1.0},
        )

    def qsize(self) -> int:
        return 1

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def update_model_version(self, model_version: int) -> None:
        self.version = model_version

    def check_health(self, stale_after_s: float) -> None: ...


class NoTransfer:
    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def build(cls: Any, folder: str, tmp_path: Any, behind: int = 0, **given: Any) -> Any:
    settings = {
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "token_budget": 0,
        "per_device_train_batch_size": 2 * PAIRS,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-3,
        "max_steps": 3,
        "max_staleness": 9,
        **given.pop("settings", {}),
    }
    return cls(
        folder,
        args=AsyncGRPOConfig(str(tmp_path), **settings),
        train_dataset=[{"prompt": "a"}],
        rollout_worker=Worker(samples(folder), behind),
        weight_transfer=NoTransfer(),
        **given,
    )


def logged(trainer: Any, name: str) -> list[float]:
    return [row[name] for row in trainer.state.log_history if name in row]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ({"name": "clip", "epsilon": 0.2}, {}),
        (
            {"name": "clip_higher", "low": 0.1, "high": 0.28},
            {"epsilon": 0.1, "epsilon_high": 0.28, "gradient_accumulation_steps": 2},
        ),
    ],
    ids=["clip", "clip_higher"],
)
def test_its_own_clip_is_our_clip(method, settings, folder, tmp_path):
    theirs = build(AsyncGRPOTrainer, folder, tmp_path, settings=settings)
    more = {k: v for k, v in settings.items() if "epsilon" not in k}
    ours = build(ConstrainedAsyncGRPOTrainer, folder, tmp_path, method=method, settings=more)
    for trainer in (theirs, ours):
        trainer.train()
    clipped = [f"clip_ratio/{kind}" for kind in ("low_mean", "high_mean", "low_min", "high_max")]
    for name in ("loss", "grad_norm", "ratio", "kl", "entropy", *clipped):
        assert logged(ours, name) == pytest.approx(logged(theirs, name), 1e-5, 1e-6), name
    assert 0.1 < logged(ours, "trustclip/gated")[0] < 0.9
    for a, b in zip(theirs.model.parameters(), ours.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)  # Adam enlarges rounding


@pytest.mark.parametrize("name", ["atr", "gspo", "cispo", "topr", "soft_gate", "ipo", "trm"])
def test_the_gradient_is_the_methods(name, folder, tmp_path, monkeypatch):
    """By a pass over each completion alone, without packing, and the coefficient of each token."""
    monkeypatch.setattr(upstream, "RELEASE", "9.1.0")
    method = tc.method(name)
    trainer = build(ConstrainedAsyncGRPOTrainer, folder, tmp_path, method=method)
    (inputs,) = itertools.islice(trainer.get_train_dataloader(), 1)
    trainer.current_gradient_accumulation_steps = 1
    assert not trainer._verified
    trainer.compute_loss(trainer.model, inputs).backward()
    assert trainer._verified
    plain, rows = fresh_model()[0], samples(folder)
    new = [log_probs(plain, row["ids"]) for row in rows]

    def padded(of: list[Tensor]) -> Tensor:
        chosen = [x[row["mask"]] for x, row in zip(of, rows, strict=True)]
        return torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)

    logp, old = padded(new), padded([row["old"] for row in rows])
    mask = padded([row["mask"] for row in rows])
    a = torch.tensor([row["advantage"] for row in rows])[:, None].expand_as(logp)
    c = tc.coefficient(method, tc.TokenBatch(logp, old, a, mask, logp_rollout=old))
    (-(c * logp * mask).sum() / mask.sum()).backward()
    for ours, want in zip(trainer.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, want.grad, rtol=2e-4, atol=1e-6)


def test_divergences_are_logged_by_the_lag_of_the_weights(folder, tmp_path):
    settings = {"max_steps": 4, "weight_sync_steps": 2}
    trainer = build(ConstrainedAsyncGRPOTrainer, folder, tmp_path, behind=1, settings=settings)
    trainer.train()
    lags = [
        {int(name.split("_")[1]) for name in row if name.startswith("trustclip/k3/lag_")}
        for row in trainer.state.log_history
    ]
    # Versions appear at the start and after updates 2 and 4; a sample is of the one before.
    assert [max(lag) for lag in lags if lag] == [0, 1, 2, 3]
    assert math.isfinite(logged(trainer, "trustclip/sampler/current/k3")[0])


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("reinforce", "does not depend on the ratio, so nothing corrects"),
        ("tis", "compares the old policy with the one that sampled"),
        ("full_kl", "needs `kl_old_new`"),
        ({"name": "atr", "level": "turn"}, "measures turns, and it packs the tokens"),
    ],
    ids=["reinforce", "tis", "full_kl", "turns"],
)
def test_what_cannot_be_trained_is_refused(method, words, folder, tmp_path):
    with pytest.raises(ValueError, match="in TRL's AsyncGRPOTrainer: it .*" + words):
        build(ConstrainedAsyncGRPOTrainer, folder, tmp_path, method=method)


def test_bounds_of_its_own_clip_are_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"epsilon=0\.1 has no effect here; use method="):
        build(ConstrainedAsyncGRPOTrainer, folder, tmp_path, settings={"epsilon": 0.1})


def test_another_loss_is_an_error_in_the_first_update(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(upstream, "RELEASE", "9.1.0")
    trainer = build(ConstrainedAsyncGRPOTrainer, folder, tmp_path)
    monkeypatch.setattr(torch, "min", torch.max)  # as a loss that prefers the other branch
    with pytest.raises(RuntimeError, match="does not train by the method"):
        trainer.train()


def test_every_name_that_is_used_is_looked_for_and_there():
    own = {name for name, value in vars(ConstrainedAsyncGRPOTrainer).items() if callable(value)}
    overridden = own & vars(AsyncGRPOTrainer).keys() - {*dir(Trainer)}
    assert overridden and overridden <= {*upstream.RELIED_ON_ASYNC}
    source = inspect.getsource(async_grpo_trainer)
    assert upstream.unmentioned(source, upstream.RELIED_ON_ASYNC) == []
