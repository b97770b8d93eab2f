"""What every method owes, whoever wrote it: value, gradient and numerics."""

import dataclasses
import itertools
import math
import typing
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from method_cases import (
    FLOATS,
    SEEDS,
    astuple,
    batch_for,
    candidates_for,
    changed,
    drawn,
    every_method,
    every_name,
    known,
    known_to_oracle,
    label,
    numbers,
    random_batch,
    variants,
    weight_on_policy,
)
from torch import Tensor

import trustclip as tc
from trustclip.constraints.base import of_own_token

#: Metrics that are no share of gated tokens, which one token less can change.
SIMPLE = ("ratio", "k1", "k2", "k3", "off_policy", "zero_advantage", "kl_old_new", "kl_new_old")


def fields_of(batch: tc.TokenBatch) -> dict[str, Any]:
    return {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}


def loss_and_gradient(
    method: tc.Method, fields: dict[str, Any], aggregation: str = "token_mean"
) -> tuple[Any, Tensor]:
    """The loss of a batch, and its gradient in the log-probabilities as they are handed in."""
    leaf = fields["logp"].detach().clone().requires_grad_()
    loss = tc.policy_loss(method, tc.TokenBatch(**{**fields, "logp": leaf}), aggregation)
    loss.value.backward(retain_graph=True)
    assert leaf.grad is not None
    return loss, leaf.grad


# Value and gradient ----------------------------------------------------------------------------


@every_method
def test_on_policy_the_gradient_is_the_advantage(method: tc.Method) -> None:
    for dtype in (torch.float64, torch.float32):
        batch = random_batch(method, dtype)
        batch = batch_for(method, batch.logp_old.clone(), *astuple(batch)[1:])
        for other in ("logp_rollout", "logp_ref"):
            if getattr(batch, other) is not None:
                batch = dataclasses.replace(batch, **{other: batch.logp_old})
        if (among := batch.candidates) is not None:
            batch = dataclasses.replace(
                batch, candidates=dataclasses.replace(among, logp=among.logp_old)
            )
        got = tc.coefficient(method, batch)
        want = torch.where(batch.mask, batch.advantages, 0.0)
        if tc.Trait.ACTS_ON_POLICY in method.traits:
            kept = method.surrogate(batch).kept
            want = torch.where(kept, weight_on_policy(method) * want, 0.0)
        torch.testing.assert_close(got, want, rtol=8 * torch.finfo(dtype).eps, atol=0)


@every_method
def test_a_coefficient_of_an_own_token_needs_no_other(method: tc.Method) -> None:
    """`of_own_token` is true exactly where a token alone gets what it gets among the others."""
    differs = method.statistics_over == "micro_batch"
    for seed in range(4):
        batch = random_batch(method)
        noise = torch.empty_like(batch.logp).normal_(generator=torch.Generator().manual_seed(seed))
        noisy = (batch.logp + 1.2 * noise).clamp(max=-1e-3)
        x = noisy - batch.logp_old
        further = {"top_k_kl": 0.3 * x**2, "top_k_tv": 0.4 * x.abs()}
        given = {k: v for k, v in further.items() if getattr(batch, k) is not None}
        batch = dataclasses.replace(batch, logp=noisy, **given)
        if method.statistics_over == "generation":
            batch = dataclasses.replace(batch, statistics=method.statistics(batch))
        alone = changed(batch, lambda x: x.reshape(-1, 1))
        alone = dataclasses.replace(alone, statistics=batch.statistics)
        want = tc.coefficient(method, batch).reshape(-1, 1)
        differs |= not torch.equal(tc.coefficient(method, alone), want)
    assert differs != of_own_token(method)


@every_method
def test_only_the_current_log_probability_is_trained(method: tc.Method) -> None:
    """The same tensor in every field: what a user without a second policy hands over."""
    clean = random_batch(method)
    fields = fields_of(clean)
    given = [f for f in FLOATS if fields[f] is not None and not f.startswith("kl_")]
    alone = clean.logp.detach().clone().requires_grad_()
    shared = clean.logp.detach().clone().requires_grad_()
    leaves = {f: fields[f].detach().clone().requires_grad_() for f in given if f != "logp"}
    one = tc.TokenBatch(**{**fields, "logp": alone, "logp_old": clean.logp.detach()})
    same = tc.TokenBatch(**{**fields, **leaves, "logp": shared, "logp_old": shared})
    tc.policy_loss(method, same).value.backward(retain_graph=True)
    tc.policy_loss(method, one).value.backward(retain_graph=True)
    assert torch.equal(typing.cast(Tensor, shared.grad), typing.cast(Tensor, alone.grad))
    torch.testing.assert_close(shared.grad, -tc.coefficient(method, same) / clean.mask.sum())
    assert shared.grad is not None and (shared.grad.any() or not method.surrogate(same).kept.any())
    assert all(leaf.grad is None for leaf in leaves.values())


def with_number(batch: tc.TokenBatch, name: str, at: tuple[int, int], number: float) -> Any:
    """The fields of a batch, one number of one of them replaced."""
    value = getattr(batch, name).detach().clone()
    value[at] = number
    return {**fields_of(batch), name: value.requires_grad_(getattr(batch, name).requires_grad)}


@every_method
def test_a_number_that_is_not_finite_reaches_the_gradient_and_nothing_else(
    method: tc.Method,
) -> None:
    """The one rule of `TokenBatch`: the token is NaN, the other sequences do not notice."""
    clean = random_batch(method)
    row, column = 5, 2
    without = clean.mask.clone()
    without[row, column] = False
    masked = dataclasses.replace(clean, mask=without)
    want, metrics = tc.coefficient(method, masked), tc.policy_loss(method, masked).metrics
    for name in (f for f in FLOATS if getattr(clean, f) is not None):
        for number in (math.nan, math.inf if name == "advantages" else -math.inf):
            if name == "logp_rollout" and math.isnan(number):
                continue  # the sampler gave none
            fields = with_number(clean, name, (row, column), number)
            loss, found = loss_and_gradient(method, fields)
            assert loss.value.isnan() and found[row, column].isnan(), (name, number)
            got = tc.coefficient(method, tc.TokenBatch(**fields))
            assert got[row, column].isnan(), (name, number)
            got[row] = torch.where(got[row].isnan(), want[row], got[row])
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)
            assert [n.item() for n in loss.metrics["nonfinite"]] == [1, clean.mask.sum()]
            own = {k: v for k, v in loss.metrics.items() if k in SIMPLE}
            assert_same_metrics(own, {k: metrics[k] for k in own}, atol=1e-12)


@every_method
def test_masked_tokens_never_matter(method: tc.Method) -> None:
    clean = random_batch(method)
    want, coefficient = method.surrogate(clean), tc.coefficient(method, clean)
    # An aggregation knows nothing of the method: one for each of two kinds of rubbish is enough.
    aggregations = {math.inf: "sequence_mean", 100.0: "dapo"}
    for rubbish in (math.inf, -math.inf, math.nan, 100.0, -100.0):
        raw = fields_of(clean)
        for name in FLOATS:
            if raw[name] is not None:
                raw[name] = torch.where(clean.mask, raw[name], rubbish)
        dirty = tc.TokenBatch(**raw)
        got = method.surrogate(dirty)
        assert torch.equal(got.objective, want.objective), rubbish
        assert torch.equal(got.kept, want.kept), rubbish
        assert not got.kept[~clean.mask].any(), rubbish
        assert not got.objective[~clean.mask].any(), rubbish
        assert torch.equal(tc.coefficient(method, dirty), coefficient), rubbish
        if aggregation := aggregations.get(rubbish):
            wanted, along = loss_and_gradient(method, fields_of(clean), aggregation)
            loss, found = loss_and_gradient(method, raw, aggregation)
            assert torch.equal(found, along), (rubbish, aggregation)
            assert not found[~clean.mask].any(), (rubbish, aggregation)
            assert torch.equal(loss.value, wanted.value), (rubbish, aggregation)
            assert_same_metrics(loss.metrics, wanted.metrics)


def assert_same_metrics(got: typing.Any, want: typing.Any, atol: float = 0.0) -> None:
    """Of the same names, types and values; ``atol`` is relative to what is above one as well."""
    assert got.keys() == want.keys()
    for name in want:
        for mine, theirs in zip(got[name], want[name], strict=True):
            assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, name
            mine, theirs = mine.item(), theirs.item()
            assert mine == theirs or abs(mine - theirs) <= atol * (1 + abs(theirs)), name


#: Fields of the oracle's that are made here.
BY_HAND = ("turn", "candidates")


def turns_of(mask: list[bool]) -> list[int]:
    """Number of each token's turn: one more after every gap."""
    turn, before, found = 0, False, []
    for own in mask:
        turn += own and not before
        before = own
        found.append(turn)
    return found


def tokens_of(method: tc.Method, batch: tc.TokenBatch) -> list[tuple[oracle.Tokens, Any]]:
    """Unmasked tokens as the oracle takes them, and where in the flat batch they are.

    Sequences of one length together; all tokens as one where the method measures the batch.
    """
    names = [f.name for f in dataclasses.fields(oracle.Tokens) if f.name not in BY_HAND]
    given = {"x": batch.log_ratio, "advantage": batch.advantages}
    given |= {k: v for k in names[2:] if (v := getattr(batch, k)) is not None}
    given["turn"] = torch.tensor([turns_of(row) for row in batch.mask.tolist()])
    flat: dict[str, Any] = {k: v.detach().numpy().ravel() for k, v in given.items()}
    if (among := batch.candidates) is not None:
        of_all = torch.cat([among.logp, among.logp_old, among.logp_rollout], dim=2)
        flat["candidates"] = of_all.detach().numpy().reshape(batch.mask.numel(), -1)
    lengths, indices = batch.mask.sum(dim=1), np.arange(batch.mask.numel())
    if method.statistics_over is not None:
        places = [indices[None, batch.mask.numpy().ravel()]]
    else:
        places = [
            indices.reshape(batch.mask.shape)[same][batch.mask[same].numpy()].reshape(-1, length)
            for length in lengths.unique().tolist()
            if length and (same := (lengths == length).numpy()).any()
        ]
    return [(oracle.Tokens(**{k: v[at] for k, v in flat.items()}), at) for at in places]


def assert_agrees_with_oracle(
    method: tc.Method, batch: tc.TokenBatch, tolerance: float = 1e-10
) -> None:
    """Gate and gradient of each sequence, but for those that a rounding could tip over."""
    name, params = method.name, method.to_dict()
    kept = method.surrogate(batch).kept.numpy().ravel()
    found = tc.coefficient(method, batch).numpy().ravel()
    for tokens, places in tokens_of(method, batch):
        with np.errstate(all="ignore"):
            sure, want = (f(name, params, tokens) for f in (oracle.kept, oracle.gradient))
            size = np.exp(tokens.x).max(axis=1, keepdims=True).clip(min=1.0)
            same = (kept[places] == sure).all(axis=1)
            near = [
                oracle.kept(name, params, dataclasses.replace(tokens, x=tokens.x + by)) != sure
                for by in (() if same.all() else (-1e-9, 1e-9))
            ]
        tipped = np.any(near, axis=(0, 2)) if near else same
        assert (same | tipped).all(), (label(method), "keeps other tokens than its rule")
        gap = np.abs(found[places] - want) > tolerance * (size + np.abs(want))
        wrong = (gap & same[:, None]).any(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            fields = {k: v[row].tolist() for k, v in vars(tokens).items() if v is not None}
            differ = f"{found[places][row]} is the gradient, {want[row]} that of the rule"
            raise AssertionError(label(method), differ, fields)


def column(values: typing.Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)[:, None]


def of_the_token(method: tc.Method) -> tc.Method:
    """Clip-Cov with a window no covariance falls in: what is left is its clip."""
    if method.name != "clip_cov":
        return method
    return tc.method(**{**method.to_dict(), "cov_low": 1e8, "cov_high": 1e9})


@known_to_oracle
def test_agrees_with_the_oracle_on_a_grid(method: tc.Method) -> None:
    steps = [s / 8 for s in range(-12, 13)] + [0.01, -0.01, 0.06, -0.06, 0.34, 0.36, -0.39, -0.41]
    steps += [-5, -3.5, -2.5, -2, 2, 2.5, 3.5, 5]
    olds = [math.log(p) for p in (1e-9, 1e-3, 0.01, 0.3, 0.64, 0.9, 0.999)]
    tokens = list(itertools.product(steps, olds, (-1.7, -1.0, 0.0, 0.5, 1.0)))
    x, old, a = (column(values) for values in zip(*tokens, strict=True))
    method = of_the_token(method)
    batch = batch_for(method, old + x, old, a, torch.ones_like(x, dtype=torch.bool))
    assert_agrees_with_oracle(method, batch)


@every_method
def test_bounds_belong_to_the_interval(method: tc.Method) -> None:
    try:
        low, high = method.log_interval()
    except ValueError:
        return  # the constraint is no interval of the ratio alone
    if not isinstance(low, float) or not isinstance(high, float):
        return  # the bounds depend on the token
    method = of_the_token(method)
    for bound, away, a in ((low, -math.inf, -1.0), (high, math.inf, 1.0)):
        if math.isinf(bound):
            continue
        x = column([bound, math.nextafter(bound, away)])
        ones = torch.ones_like(x)
        batch = batch_for(method, x, 0 * ones, a * ones, ones.bool())
        assert method.surrogate(batch).kept[:, 0].tolist() == [True, False]


@every_method
def test_the_order_of_sequences_does_not_matter(method: tc.Method) -> None:
    batch = random_batch(method)
    order = torch.tensor([3, 0, 7, 5, 1, 6, 2, 4])
    shuffled = changed(batch, lambda tensor: tensor[order])
    want, got = method.surrogate(batch), method.surrogate(shuffled)
    assert torch.equal(got.kept, want.kept[order])
    torch.testing.assert_close(got.objective, want.objective[order], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(
        tc.coefficient(method, shuffled),
        tc.coefficient(method, batch)[order],
        rtol=1e-13,
        atol=1e-13,
    )


@every_method
def test_metrics_of_micro_batches_add_up(method: tc.Method) -> None:
    batch = random_batch(method)
    if method.statistics_over is not None:
        batch = dataclasses.replace(batch, statistics=method.statistics(batch))
    whole = tc.policy_loss(method, batch).metrics
    halves = [tc.policy_loss(method, rows(batch, part)).metrics for part in ((0, 3), (3, 8))]
    added = {
        name: tuple(a + b for a, b in zip(halves[0][name], halves[1][name], strict=True))
        for name in halves[0]
    }
    if "max" in " ".join(whole):  # a maximum is no sum
        whole = {k: v for k, v in whole.items() if "max" not in k}
        added = {k: v for k, v in added.items() if "max" not in k}
    assert_same_metrics(added, whole, atol=1e-12)


def rows(batch: tc.TokenBatch, part: tuple[int, int]) -> tc.TokenBatch:
    sliced = changed(batch, lambda tensor: tensor[slice(*part)])
    return dataclasses.replace(sliced, statistics=batch.statistics)


@every_method
def test_the_loss_is_minus_the_aggregated_objective(method: tc.Method) -> None:
    batch = random_batch(method)
    objective = method.surrogate(batch).objective
    loss, found = loss_and_gradient(method, fields_of(batch))
    assert torch.equal(loss.per_token, -objective)
    assert loss.value.item() == pytest.approx(-objective.sum().item() / batch.mask.sum().item())
    torch.testing.assert_close(found * batch.mask.sum(), -tc.coefficient(method, batch))


def compared(name: str) -> typing.Iterator[tuple[tc.Method, tc.TokenBatch]]:
    """Every choice, and twice or more with its numbers drawn; the tokens' seeds take turns."""
    cls = tc.methods()[name]
    chosen = [*variants(name, cls), *drawn(name, cls)]
    for method, seed in zip(chosen, itertools.cycle(SEEDS)):
        if known(method):
            yield method, random_batch(method, seed=seed)


@every_name
def test_agrees_with_the_oracle_whatever_its_numbers(name: str) -> None:
    for method, batch in compared(name):
        assert_agrees_with_oracle(of_the_token(method), batch)


@every_name
def test_every_number_is_seen(name: str) -> None:
    """Else the comparison above would not see that the code ignores it, or has another in place."""
    usual = tc.method(name).to_dict()
    unseen = set(numbers(tc.methods()[name])) - NO_RULE.get(name, set())
    for method, batch in compared(name):
        if not unseen:
            break
        values = method.to_dict()
        given = [*tokens_of(method, batch), *tokens_of(method, hardly_sampled(method))]
        for field in [field for field in unseen if values[field] is not None]:
            other = values[field] / 2 if usual[field] is None else usual[field]
            unseen -= {field} if differ(values, values | {field: other}, given) else set()
    assert not unseen, f"{name}: nothing depends on {', '.join(sorted(unseen))}"


#: Numbers that the rule of a sampled token does not see: of a draw at random, and of the pull
#: on tokens that were not sampled, each with a test of its own; and BAPO's second step, which leads
#: away from the target, so that its search ends at the limit.
NO_RULE = {
    "clip_cov": {"share", "cov_low", "cov_high"},
    "troll": {"alpha"},
    "bapo": {"low_step"},
}


def differ(values: Any, others: Any, given: list[tuple[oracle.Tokens, Any]]) -> bool:
    """Whether a rule has another gradient or gate with other hyper-parameters."""
    with np.errstate(all="ignore"):
        return any(
            not np.array_equal(f(name, values, t), f(name, others, t), equal_nan=True)
            for t, _ in given
            for f in (oracle.gradient, oracle.kept)
            for name in [values["name"]]
        )


# Numerics --------------------------------------------------------------------------------------


@every_method
def test_extreme_ratios_stay_finite(method: tc.Method) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        tokens = itertools.product((0.0, -80.0, -200.0), (0.0, -80.0, -200.0), (1.0, -1.0, 0.0))
        columns = [column(values).to(dtype) for values in zip(*tokens, strict=True)]
        logp, logp_old, advantages = columns
        batch = batch_for(
            method, logp, logp_old, advantages, torch.ones_like(logp, dtype=torch.bool)
        )
        assert all_finite(method.surrogate(batch).objective)
        assert all_finite(tc.coefficient(method, batch))
        leaf, candidates = logp.clone().requires_grad_(), candidates_for(logp_old.float())
        given: typing.Any = {"logp": leaf, "candidates": batch.candidates or candidates}
        loss = tc.policy_loss(method, dataclasses.replace(batch, **given))
        loss.value.backward(retain_graph=True)
        assert leaf.grad is not None
        assert all_finite(leaf.grad) and all_finite(loss.value)
        assert all(all_finite(torch.stack(pair)) for pair in loss.metrics.values())


def all_finite(values: Tensor) -> bool:
    return bool(values.isfinite().all())


def hardly_sampled(method: tc.Method) -> tc.TokenBatch:
    """Tokens of a probability of e^-200, whose ratios reach from 0.5 to e^30."""
    tokens = itertools.product((-0.6, -0.1, -0.01, 0.01, 0.1, 0.6, 3.0, 30.0), (1.0, -1.0, 0.0))
    x, a = (column(values).float() for values in zip(*tokens, strict=True))
    old = torch.full_like(x, -200.0)
    return batch_for(method, old + x, old, a, torch.ones_like(x, dtype=torch.bool))


@known_to_oracle
def test_tokens_the_old_policy_hardly_ever_samples(method: tc.Method) -> None:
    """A probability too small for single precision; the gate must go by its logarithm."""
    method = of_the_token(method)
    batch = hardly_sampled(method)
    assert_agrees_with_oracle(method, batch, tolerance=1e-5)
    assert all_finite(method.surrogate(batch).objective)


@every_method
def test_precision(method: tc.Method) -> None:
    for given in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        batch = random_batch(method, given)
        computed = torch.float64 if given == torch.float64 else torch.float32
        assert method.surrogate(batch).objective.dtype == computed, given
        assert tc.coefficient(method, batch).dtype == computed, given
        assert tc.policy_loss(method, batch).value.dtype == computed, given
