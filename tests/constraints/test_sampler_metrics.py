"""The sampler's mismatch: by hand, by enumeration of all actions, by NumPy, and in TRL."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import trustclip as tc
from trustclip.constraints import diagnostics, sampler
from trustclip.constraints.registry import as_method

DOUBLE = torch.float64


def value(pair):
    return (pair[0] / pair[1]).item()


def batch_of(rollout, old, new=None, **fields):
    """Log-probabilities [batch, time]; None among them masks a position."""
    tensors = [
        torch.tensor([[0.0 if p is None else math.log(p) for p in row] for row in rows]).to(DOUBLE)
        for rows in (rollout, old, new or old)
    ]
    mask = torch.tensor([[p is not None for p in row] for row in rollout])
    a = fields.pop("advantages", torch.ones_like(tensors[0]))
    return tc.TokenBatch(tensors[2], tensors[1], a, mask, logp_rollout=tensors[0], **fields)


def random_batch(rows=12, time=9, noise=0.05, **fields):
    torch.manual_seed(3)
    old = -torch.rand(rows, time, dtype=DOUBLE) * 4
    rollout = old - noise * torch.randn(rows, time, dtype=DOUBLE)
    return tc.TokenBatch(
        old + 0.3 * torch.randn(rows, time, dtype=DOUBLE), old,
        torch.randn(rows, time, dtype=DOUBLE), torch.rand(rows, time) > 0.2,
        logp_rollout=rollout, **fields,
    )  # fmt: skip


def test_over_every_action_the_means_are_the_divergences() -> None:
    """Each action weighed by the sampler's probability: an exact expectation, no sample."""
    rng = np.random.default_rng(0)
    b, old, new = (rng.dirichlet(np.ones(7)) for _ in range(3))
    total = dict.fromkeys(("k1", "k3", "chi2", "abs", "sequence_ratio"), 0.0)
    current = dict(total)
    for i in range(7):
        found = sampler.sampler_metrics(batch_of([[b[i]]], [[old[i]]], [[new[i]]]))
        for sums, prefix in ((total, "sampler/"), (current, "sampler/current/")):
            for name in sums:
                sums[name] += b[i] * value(found[prefix + name])
    for sums, p in ((total, old), (current, new)):
        kl = float((b * np.log(b / p)).sum())
        assert sums["k1"] == pytest.approx(kl) and sums["k3"] == pytest.approx(kl)
        assert sums["chi2"] == pytest.approx(float((p**2 / b).sum()) - 1)
        assert sums["abs"] == pytest.approx(float((b * np.abs(np.log(p / b))).sum()))
        assert sums["sequence_ratio"] == pytest.approx(1.0)  # a ratio's mean under its denominator


def test_tokens_without_a_number_are_counted_and_nothing_else() -> None:
    batch = batch_of([[0.5, 0.5, None], [0.2, 0.4, 0.4]], [[0.5, 0.25, None], [0.2, 0.4, 0.8]])
    rollout = batch.given("logp_rollout").clone()
    rollout[1, 0] = math.nan
    with_hole = replace(batch, logp_rollout=rollout)
    found = {k: tuple(x.item() for x in v) for k, v in sampler.sampler_metrics(with_hole).items()}
    assert found["sampler/missing"] == (1, 5)
    assert found["sampler/identical_share"] == (2, 4)
    assert found["sampler/abs"] == pytest.approx((2 * math.log(2), 4))
    # The second completion is incomplete, so only the first has a ratio.
    assert found["sampler/sequence_ratio"] == pytest.approx((0.5, 1))


def test_a_broken_token_is_in_no_metric() -> None:
    batch = batch_of([[0.5, 0.5]], [[0.5, 0.25]], [[math.nan, 0.25]])
    found = {k: tuple(x.item() for x in v) for k, v in sampler.sampler_metrics(batch).items()}
    assert found["sampler/k3"][1] == 1 and found["sampler/sequence_ratio"] == (0, 0)
    assert all(math.isfinite(x) for pair in found.values() for x in pair)


def test_kish_effective_sample_size_of_completions() -> None:
    old = [[0.5, 0.5, None], [0.1, 0.4, 0.3]]
    window = diagnostics.Window()
    batch = batch_of([[0.25, 0.5, None], [0.1, 0.4, 0.6]], old)  # ratios 2 and 1/2
    window.add(batch, tc.method("atr").surrogate(batch))
    read = window.read()
    assert read["sampler/sequence_ess"] == pytest.approx(2.5**2 / (2 * 4.25))
    assert read["sampler/sequence_ratio"] == pytest.approx(1.25)
    assert "sampler/sequence_ratio_squared" not in read


def test_one_completion_that_outweighs_all_is_a_share_of_one() -> None:
    """Ratios beyond any float are held at e^40, in the sum and in the sum of squares alike."""
    old = torch.tensor([[-1.0], [-1.0], [-1.0], [-200.0]])
    batch = tc.TokenBatch(old, old, old, old < 0, logp_rollout=-torch.ones(4, 1))
    far = replace(batch, logp_rollout=torch.tensor([[-1.0], [-1.0], [-150.0], [-200.0]]))
    for one, want in ((batch, 0.75), (far, 0.25)):
        window = diagnostics.Window()
        window.add(one, tc.method("atr").surrogate(one))
        assert window.read()["sampler/sequence_ess"] == pytest.approx(want, rel=1e-5)


def test_quantiles_have_both_tails() -> None:
    torch.manual_seed(1)
    old = torch.full((50, 400), -20.0, dtype=DOUBLE)
    d = torch.randn(50, 400, dtype=DOUBLE) ** 3 * 0.01  # heavy tails, and signs that cancel
    batch = tc.TokenBatch(old, old, old, old < 0, logp_rollout=old - d)
    window = diagnostics.Window()
    for part in range(0, 50, 10):
        rows = slice(part, part + 10)
        one = tc.TokenBatch(
            old[rows],
            old[rows],
            old[rows],
            old[rows] < 0,
            logp_rollout=batch.given("logp_rollout")[rows],
        )
        window.add(one, tc.method("atr").surrogate(one))
    read = window.read()
    for name, q in (("001", 0.001), ("01", 0.01), ("99", 0.99), ("999", 0.999)):
        want = float(np.quantile(d.numpy(), q))
        assert read[f"sampler/log_ratio_q{name}"] == pytest.approx(want, rel=0.09)
    assert read["sampler/log_ratio_q001"] < 0 < read["sampler/log_ratio_q999"]
    exact = replace(batch, logp_rollout=old)
    window = diagnostics.Window()
    window.add(exact, tc.method("atr").surrogate(exact))
    read = window.read()
    assert [read[f"sampler/log_ratio_q{q}"] for q in sampler.QUANTILES] == [0.0] * 5
    assert read["sampler/identical_share"] == 1


def test_by_lag_the_policy_moved_and_the_sampler_differs() -> None:
    lag = torch.tensor([0, 0, 1, 2, 3, 4, 7, 8, 12, 16, 17, 99])[:, None].expand(12, 9)
    batch = random_batch(lag=lag)
    found = {k: value(v) for k, v in sampler.sampler_metrics(batch).items()}
    buckets = {"0": [0, 1], "1": [2], "2": [3], "3_4": [4, 5], "5_8": [6, 7], "9_16": [8, 9],
               "17_inf": [10, 11]}  # fmt: skip
    for name, rows in buckets.items():
        pick = batch.mask[rows]
        for key, x in (
            ("k3", batch.log_ratio),
            ("sampler/k3", batch.rollout_log_ratio),
            ("sampler/current/k3", batch.log_ratio + batch.rollout_log_ratio),
        ):
            x = x[rows][pick].numpy()
            want = float(np.mean(np.exp(x) - 1 - x))
            assert found[f"{key}/lag_{name}"] == pytest.approx(want)
    moved = [k for k in found if "/lag_" in k]
    assert len(moved) == 4 * len(buckets)


def test_micro_batches_and_ranks_add_up_to_the_whole() -> None:
    whole = random_batch(lag=torch.arange(12)[:, None].expand(12, 9))
    names = ("logp", "logp_old", "advantages", "mask")
    method = tc.method("clip", epsilon=0.1)
    ranks, once = [diagnostics.Window(), diagnostics.Window()], diagnostics.Window()
    for i in range(0, 12, 3):
        part = tc.TokenBatch(
            *(getattr(whole, n)[i : i + 3] for n in names),
            logp_rollout=whole.given("logp_rollout")[i : i + 3],
            lag=whole.given("lag")[i : i + 3],
        )  # fmt: skip
        ranks[i % 2].add(part, method.surrogate(part), method)
    once.add(whole, method.surrogate(whole), method)
    sent = []
    ranks[0].read(lambda x: sent.append(x) or x)
    both = ranks[1].read(lambda x: x + sent[0])
    want = once.read()
    assert both == pytest.approx(want, rel=1e-9)
    assert any("/lag_" in name for name in want) and "sampler/gated_rollout" in want


def test_a_window_is_the_same_after_a_checkpoint() -> None:
    batch = random_batch()
    method = tc.method("atr")
    window, resumed = diagnostics.Window(), diagnostics.Window()
    window.add(batch, method.surrogate(batch), method)
    resumed.load_state_dict(window.state_dict())
    for one in (window, resumed):
        one.add(batch, method.surrogate(batch), method)
    assert resumed.read() == window.read()


@pytest.mark.parametrize(
    "method",
    [
        {"name": "clip", "epsilon": 0.2},
        {"name": "icepop", "inner": "clip", "ceiling": 1.5},
        {"name": "tis", "inner": "clip"},
        {"name": "dppo", "anchor": "rollout", "divergence": "binary_tv"},
    ],
    ids=lambda m: m["name"],
)
def test_the_gate_against_the_proximal_policy_and_against_the_sampler(method) -> None:
    """Of a correction, the inner gate; of a method of either anchor, both."""
    batch = random_batch(noise=0.4)
    found = {k: value(v) for k, v in sampler.gated_against(batch, as_method(method)).items()}
    inner = as_method(method.get("inner", method))
    if method["name"] == "dppo":
        each = (as_method({**method, "anchor": anchor}) for anchor in ("old", "rollout"))
        want = [(~m.surrogate(batch).kept & batch.mask).sum() for m in each]
    else:
        shifted = replace(batch, logp_old=batch.logp_rollout)
        want = [(~inner.surrogate(b).kept & batch.mask).sum() for b in (batch, shifted)]
    total = batch.mask.sum().item()
    assert [found["sampler/gated_old"], found["sampler/gated_rollout"]] == pytest.approx(
        [x.item() / total for x in want]
    )
    assert found["sampler/gated_old"] != found["sampler/gated_rollout"]


def test_a_mask_on_the_current_policy_counts_in_whichever_of_its_forms() -> None:
    batch = random_batch(noise=0.4)
    same = {"inner": "importance_sampling", "floor": 0.5, "ceiling": 1.5}
    forms = ("icepop", {"policy": "new"}), ("sampler", {"between": "new_rollout"})
    shares = [sampler.gated_against(batch, tc.method(n, **same, **own)) for n, own in forms]
    assert shares[0] == shares[1] and value(shares[0]["sampler/gated_rollout"]) > 0


@pytest.mark.parametrize("name", ["clip_cov", "trpo", "full_kl", "truly_ppo"])
def test_a_gate_on_other_numbers_than_ratios_has_one_anchor(name) -> None:
    zeros = torch.zeros(12, 9, dtype=DOUBLE)
    batch = random_batch(kl_old_new=zeros, kl_new_old=zeros)
    assert sampler.gated_against(batch, tc.method(name)) == {}


def test_engines_that_call_a_loss_get_means_of_their_micro_batch() -> None:
    from trustclip.engines.token_loss import means

    batch = random_batch(lag=torch.ones(12, 9, dtype=torch.long))
    method = tc.method("clip")
    found = means(batch, method.surrogate(batch), method=method)
    d = batch.rollout_log_ratio[batch.mask]
    assert found["trustclip/sampler/abs"].item() == pytest.approx(d.abs().mean().item())
    ratio = torch.where(batch.mask, batch.rollout_log_ratio, 0).sum(1).exp()
    assert found["trustclip/sampler/sequence_ratio"].item() == pytest.approx(ratio.mean().item())
    squared = found["trustclip/sampler/sequence_ratio_squared"].item()
    assert squared == pytest.approx(ratio.square().mean().item())
    assert "trustclip/sampler/gated_rollout" in found
    assert not [name for name in found if "lag_" in name]  # of a part of the tokens
    # An engine that adds up over micro-batches gets what adds up, and no mean of completions.
    total = torch.tensor(1000.0, dtype=DOUBLE)
    summed = means(batch, method.surrogate(batch), total, method)
    assert summed["trustclip/sampler/abs"].item() == pytest.approx(d.abs().sum().item() / 1000)
    assert not [name for name in summed if "sequence_" in name]


# In TRL


def test_trl_reports_a_sampler_that_differs_and_the_worst_tokens(tmp_path) -> None:
    from trl_runs import build

    from trustclip.engines.trl import ConstrainedGRPOTrainer

    rows, first, added = [], [], []

    class Rows:
        def generation(self, generation):
            pass

        def gates(self, row):
            rows.append(row)

        def notice(self, step, name, text):
            pass

    class Foreign(ConstrainedGRPOTrainer):
        """Its sampler reports log-probabilities that are off by known amounts."""

        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            sampled = output["sampling_per_token_logps"]
            shift = torch.zeros_like(sampled)
            shift[:, 0] = 0.5
            shift[3, 1] = -3.0
            added.append(shift)
            output["sampling_per_token_logps"] = sampled + shift
            return {**output, "generated": output["generated"] - 2}

    torch.manual_seed(0)
    settings = {"method": "clip", "max_steps": 2, "skip_zero_advantage": False}
    trainer = build(tmp_path, None, Foreign, **settings)
    trainer.recorder = Rows()
    trainer.mismatch.listener = first.append
    trainer.train()
    log = [row for row in trainer.state.log_history if "loss" in row]
    tokens = len(first[0].trainer)
    assert len(first) == 1 and len(rows) == 2
    for row in log:
        assert row["trustclip/sampler/abs"] == pytest.approx((16 * 0.5 + 3) / tokens, rel=1e-4)
        assert row["trustclip/sampler/missing"] == 0
    # The first update's proximal policy is a pass of its own: equal to rounding only.
    assert log[1]["trustclip/sampler/identical_share"] == pytest.approx(1 - 17 / tokens)
    # The samples of two updates ago are those of three after the next one.
    for row, lag in zip(log, ("lag_2", "lag_3_4"), strict=True):
        assert row[f"trustclip/sampler/k3/{lag}"] == row["trustclip/sampler/k3"]
        assert len([name for name in row if "sampler/k3/lag_" in name]) == 1
    # The policy has moved by the second update; the sampler is as far as it was.
    assert log[0]["trustclip/k3"] < 1e-12 < log[1]["trustclip/k3"]
    assert log[1]["trustclip/sampler/current/k3"] > log[1]["trustclip/sampler/k3"]
    worst = rows[0]["worst"]
    assert len(worst) == 10 and worst[0]["position"] == 1
    assert worst[0]["logp_rollout"] - worst[0]["logp_old"] == pytest.approx(-3.0, abs=1e-4)
    assert {w["position"] for w in worst[1:]} == {0}
    assert worst[0]["text"] == trainer.processing_class.decode([worst[0]["token"]])
    json.dumps(rows)
