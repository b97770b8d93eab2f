"""The loss of a trainer that is not its method is named by what is wrong in it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import trustclip as tc
from trustclip.constraints.conformance import AGGREGATIONS
from trustclip.constraints.notation import read, spelled

EPSILON, CEILING = 0.2, 1.2


def clipped(ratio: Tensor, advantages: Tensor) -> Tensor:
    return torch.minimum(ratio * advantages, ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantages)


def mean(x: Tensor, mask: Tensor) -> Tensor:
    return -(x * mask).sum() / mask.sum()


def ratio_of(logp: Tensor, logp_old: Tensor) -> Tensor:
    return (logp - logp_old).float().exp()


def clip(logp, logp_old, advantages, mask):
    return mean(clipped(ratio_of(logp, logp_old), advantages), mask)


def corrected(logp, logp_old, advantages, mask, logp_rollout):
    weight = ratio_of(logp_old, logp_rollout).clamp(max=CEILING)
    return mean(weight * clipped(ratio_of(logp, logp_old), advantages), mask)


def cispo(logp, logp_old, advantages, mask):
    return mean(ratio_of(logp, logp_old).clamp(max=5).detach() * advantages * logp, mask)


def on_ranks(logp, logp_old, advantages, mask, total_tokens):
    return -(clipped(ratio_of(logp, logp_old), advantages) * mask).sum() / total_tokens


def averaged_over_ranks(logp, logp_old, advantages, mask, total_tokens, ranks):
    return ranks * on_ranks(logp, logp_old, advantages, mask, total_tokens)


def of_known(logp, logp_old, advantages, mask, logp_rollout=None):
    known = logp_old if logp_rollout is None else logp_rollout
    return corrected(logp, logp_old, advantages, mask, known)


def in_one_row(logp, logp_old, advantages, mask, segment_id):
    terms = clipped(ratio_of(logp, logp_old), advantages)
    means = [
        (terms * own).sum() / own.sum().clamp(min=1)
        for own in (mask & (segment_id == i) for i in segment_id.unique())
    ]
    return -torch.stack(means).mean()


RIGHT = [(clip, "clip(0.2)"), (corrected, "tis(clip(0.2), 1.2)"), (cispo, "cispo"),
         (on_ranks, "clip(0.2)"), (averaged_over_ranks, "clip(0.2)"),
         (of_known, "tis(clip(0.2), 1.2)")]  # fmt: skip


@pytest.mark.parametrize(("loss", "method"), RIGHT, ids=lambda x: getattr(x, "__name__", x))
def test_a_right_loss_conforms(loss: Callable[..., Tensor], method: str) -> None:
    found = tc.conform(loss, method, "token_mean")
    assert found, found
    assert found.factor == 1 and found.tokens > 600
    assert ({"two ranks", "three ranks"} <= {*found.cases}) == ("ranks" in loss.__name__)
    assert ("no sampler" in found.cases) == (loss is of_known)


def test_sequences_of_one_row_keep_their_own_means() -> None:
    found = tc.conform(in_one_row, "clip(0.2)")
    assert found and "packed rows" in found.cases, found
    assert found.aggregation in ("sequence_mean", "filled_sequence_mean")


def test_sequences_are_counted_over_all_ranks() -> None:
    def loss(logp, logp_old, advantages, mask, total_sequences):
        terms = clipped(ratio_of(logp, logp_old), advantages) * mask
        return -(terms.sum(1) / mask.sum(1).clamp(min=1)).sum() / total_sequences

    found = tc.conform(loss, "clip(0.2)", "sequence_mean")
    assert found and "three ranks" in found.cases, found


def test_an_assertion_fails_with_the_sentences() -> None:
    tc.assert_conforms(clip, "clip(0.2)", "token_mean")
    with pytest.raises(AssertionError, match=r"The loss is not clip\(epsilon=0.1.*\n- The gate is"):
        tc.assert_conforms(clip, "clip(0.1)")


# -- planted ---------------------------------------------------------------------------------------


def negated(logp, logp_old, advantages, mask):
    return -clip(logp, logp_old, advantages, mask)


def unmasked(logp, logp_old, advantages, mask):
    return -(clipped(ratio_of(logp, logp_old), advantages)).sum() / mask.sum()


def uncapped(logp, logp_old, advantages, mask, logp_rollout):
    weight = ratio_of(logp_old, logp_rollout)
    return mean(weight * clipped(ratio_of(logp, logp_old), advantages), mask)


def twice(logp, logp_old, advantages, mask, logp_rollout):
    weight = ratio_of(logp_old, logp_rollout).clamp(max=CEILING)
    return mean(weight**2 * clipped(ratio_of(logp, logp_old), advantages), mask)


def by_moved_tokens(logp, logp_old, advantages, mask):
    kept = mask & (advantages != 0)
    return -(clipped(ratio_of(logp, logp_old), advantages) * mask).sum() / kept.sum()


def constant_branch(logp, logp_old, advantages, mask):
    ratio = ratio_of(logp, logp_old)
    bound = torch.where(advantages > 0, torch.ones_like(ratio), ratio)
    return mean(torch.minimum(ratio * advantages, bound * advantages), mask)


def detached(logp, logp_old, advantages, mask):
    return mean(clipped(ratio_of(logp, logp_old).detach(), advantages) + 0 * logp, mask)


def not_detached(logp, logp_old, advantages, mask):
    return mean(ratio_of(logp, logp_old).clamp(max=5) * advantages * logp, mask)


def without_ratio(logp, logp_old, advantages, mask):
    return mean(advantages * logp, mask)


def capped(logp, logp_old, advantages, mask):
    return mean(ratio_of(logp, logp_old).clamp(max=2).detach() * advantages * logp, mask)


def on_parts(logp, logp_old, advantages, mask, total_tokens):
    return clip(logp, logp_old, advantages, mask)


def added_over_ranks(logp, logp_old, advantages, mask, total_tokens, ranks):
    return on_ranks(logp, logp_old, advantages, mask, total_tokens)


def broken_without_sampler(logp, logp_old, advantages, mask, logp_rollout=None):
    known = logp_old * torch.nan if logp_rollout is None else logp_rollout
    return corrected(logp, logp_old, advantages, mask, known)


#: Wrong loss -> what it is meant to be, the cause, and words of the verdict.
WRONG: dict[Callable[..., Tensor], tuple[str, str, str]] = {
    uncapped: ("tis(clip(0.2), 1.2)", "cap", "left out: that of the sampler's weight, at 1.2"),
    unmasked: ("clip(0.2)", "mask", "Masked tokens have a gradient"),
    twice: ("tis(clip(0.2), 1.2)", "weight", "once too often: the sampler's weight"),
    corrected: ("clip(0.2)", "weight", "once too often: the sampler's weight"),
    clip: ("tis(clip(0.2), 1.2)", "weight", "missing: the sampler's weight"),
    by_moved_tokens: ("clip(0.2)", "normaliser", "divided by another number in some batches"),
    on_parts: ("clip(0.2)", "normaliser", "Sequences weigh otherwise"),
    added_over_ranks: ("clip(0.2)", "normaliser", "divided by another number in some batches"),
    broken_without_sampler: ("tis(clip(0.2), 1.2)", "finite", "not finite"),
    negated: ("clip(0.2)", "sign", "against the advantage"),
    constant_branch: ("clip_higher(1, 1e-9)", "tie", "a constant branch"),
    detached: ("clip(0.2)", "detached", "no gradient in `logp`"),
    not_detached: ("cispo", "weight", "not detached"),
    without_ratio: ("importance_sampling", "weight", "missing: the ratio"),
    capped: ("cispo", "cap", "a further cap"),
}


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(loss, marks=[pytest.mark.slow] * (number % 3 > 0))
        for number, loss in enumerate(WRONG)
    ],
    ids=lambda loss: loss.__name__,
)
def test_what_is_wrong_is_named_first(loss: Callable[..., Tensor]) -> None:
    method, cause, words = WRONG[loss]
    found = tc.conform(loss, method)
    assert not found
    first = found.differences[0]
    assert (first.cause, words in first.verdict) == (cause, True), str(found)
    assert "unexplained" not in {one.cause for one in found.differences}, str(found)
    assert str(found).startswith(f"The loss is not {spelled(found.method.to_dict())}.\n- ")


def test_another_threshold_shows_at_the_token_between_the_two() -> None:
    (one,) = tc.conform(clip, "clip(0.1)").differences
    ratio, _, advantage, ours, theirs = one.numbers
    assert one.cause == "gate" and ours == 0 != theirs
    assert 0.1 < abs(ratio - 1) < 0.2 and theirs == pytest.approx(ratio * advantage, 1e-3)
    batch, row, _ = one.where or ("", 0, 0)
    assert f"sequence {row} of the batch '{batch}': its ratio is" in str(one)


@pytest.mark.parametrize(
    ("meant", "other"),
    [
        ("atr(0.07)", "atr(0.08)"),
        ("gspo(0.2, 0.2)", "gspo(0.2, 0.3)"),
        ("gspo(3e-4, 4e-4)", "gspo(3e-4, 5e-4)"),
    ],
)
def test_a_bound_a_little_further_is_another_gate(meant: str, other: str) -> None:
    def loss(logp, logp_old, advantages, mask):
        batch = tc.TokenBatch(logp, logp_old, advantages, mask, density=True)
        return tc.policy_loss(other, batch).value

    assert [one.cause for one in tc.conform(loss, meant).differences] == ["gate"]
    assert tc.conform(loss, other)


def test_a_loss_of_another_form_is_unexplained() -> None:
    def other(logp, logp_old, advantages, mask):
        return mean(advantages * ratio_of(logp, logp_old).sqrt() * (2 + logp.sin()), mask)

    causes = [one.cause for one in tc.conform(other, "clip(0.2)").differences]
    assert "unexplained" in causes


# -- aggregations, numbers, arguments --------------------------------------------------------------


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_the_aggregation_and_its_factor_are_found(name: str) -> None:
    def loss(logp, logp_old, advantages, mask):
        weights = AGGREGATIONS[name].weights(mask)
        return -2.5 * (weights * clipped(ratio_of(logp, logp_old), advantages)).sum()

    found = tc.conform(loss, "clip(0.2)")
    assert found, found
    assert (found.aggregation, found.factor) == (name, pytest.approx(2.5, rel=1e-4))
    other = next(other for other in AGGREGATIONS if other != name)
    assert not tc.conform(loss, "clip(0.2)", other)


@pytest.mark.parametrize("name", [n for n in tc.methods() if n not in ("centered", "troll")])
def test_every_method_is_its_own_loss_in_single_precision(name: str) -> None:
    method = tc.method(name)
    optional = [field for field in method.requires if field != "logp_rollout"]
    arguments = ["logp", "logp_old", "advantages", "mask", "logp_rollout", *optional]
    given = ", ".join(f"{field}={field}" for field in arguments)
    scope: dict[str, Any] = {"tc": tc, "method": method}
    call = f"tc.policy_loss(method, tc.TokenBatch({given}, density=True))"
    exec(f"def loss({', '.join(arguments)}): return {call}.value", scope)
    found = tc.conform(scope["loss"], method, "token_mean")
    assert found, found


@pytest.mark.parametrize(
    ("loss", "arguments", "words"),
    [
        (lambda logp, old: logp.sum(), {}, "unknown argument 'old' of the loss"),
        (lambda logp: logp, {}, r"must be a scalar tensor; it returns \[8, 12\]"),
        (lambda logp, entropy: logp.sum(), {}, "takes `entropy`, which the method does not read"),
        (clip, {"aggregation": "mean"}, "unknown aggregation 'mean'"),
        (clip, {"leave_out": "bf16"}, "unknown batch 'bf16'; did you mean 'bfloat16'"),
        (clip, {"leave_out": tc.conform(clip, "clip").cases}, "no batch is left"),
        (clip, {"method": "centered"}, "moves tokens that were not sampled"),
    ],
)
def test_what_cannot_be_compared_is_refused(loss: Any, arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tc.conform(loss, **{"method": "clip", **arguments})


# -- methods as text -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tc.methods())
def test_a_method_is_read_as_it_is_spelled(name: str) -> None:
    method = tc.method(name)
    assert tc.as_method(spelled(method.to_dict())) == method


@pytest.mark.parametrize(
    "text",
    ["clip(", "clip(0.1) + 2", "clip(*x)", "clip(1, 2, 3, 4, 5)", "f.g(1)", "clip(lambda: 1)"],
)
def test_a_text_that_is_no_method_says_how_one_is_written(text: str) -> None:
    with pytest.raises(ValueError, match="is not a method: it is written as a name"):
        read(text)
