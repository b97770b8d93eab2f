"""A method that is wrong is named, by the rule that it breaks; a right one is not."""

import dataclasses
from typing import Any

import pytest
import wrong_methods
from method_cases import random_batch

import trustclip as tc

#: Wrong method -> the rule that it breaks, and words of the sentence.
WRONG = {
    "SignInGate": ("direction", "wrong way round: it cuts only steps that lead back to ratio 1"),
    "Negated": ("sign", "The gradient goes against the advantage"),
    "MeanOverPadding": ("masked", "depends on masked tokens: it changes with more padding"),
    "AnotherKept": ("kept", "match the gradient: it is false for a token with a gradient"),
    "Detached": ("gradient", "The objective has no gradient"),
    "RatioInverted": ("on policy", "At ratio 1 the gradient goes against the advantage"),
    "BoundsSwapped": ("threshold", "closes on tokens that have hardly moved"),
    "AdvantageSquared": ("on policy", "At ratio 1 the gradient goes against the advantage"),
    "MeanOverBatch": ("completions", "depends on other completions"),
    "MeanOverSequence": ("tokens", "`traits` lacks SEES_OTHERS"),
    "LogRatioForRatio": ("threshold", "closes on tokens that have hardly moved"),
    "MinimumOfConstant": ("on policy", "the gradient is not the advantage"),
    "OverflowBehindTheGate": ("finite", "write gates.safe_exp for exp"),
    "HidesNaN": ("nan", "A log-probability of NaN is hidden"),
    "AnotherInterval": ("interval", "inside the interval that `log_interval` states"),
    "ReadsWhatItDoesNotRequire": ("runs", "It raises AssertionError: no entropy"),
    "ByChance": ("repeats", "Two calls on the same batch"),
    "Reduced": ("form", "`objective` has shape [12], not [12, 11]"),
    "KeptAsNumbers": ("form", "`kept` is torch.float32, not torch.bool"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_method_is_named(name):
    rule, words = WRONG[name]
    found = tc.check(f"wrong_methods:{name}")
    assert not found
    (fault,) = (fault for fault in found.faults if fault.rule == rule)
    assert words in str(fault) and str(fault).endswith(".") and str(fault) in str(found)
    assert str(found).startswith(f"'wrong_methods:{name}' is wrong.\n- ")


@pytest.mark.parametrize("name", ["wrong_methods:Undecorated", "trustclip:Method"])
def test_a_class_that_is_not_whole_is_one_sentence(name):
    with pytest.raises(ValueError, match=f"{name}' needs `surrogate` and the decorator"):
        tc.method(name)


def test_a_right_method_is_right_and_is_asked_nothing_about_batches():
    found = tc.check(wrong_methods.Right())
    assert found and not found.faults and str(found).startswith("'wrong_methods:Right' passes")


def test_the_token_shows_the_fault():
    (fault,) = tc.check("wrong_methods:AnotherKept").faults
    assert fault.token is not None
    ratio, advantage, kept, coefficient = fault.token
    assert coefficient == pytest.approx(ratio * advantage) and not kept
    assert f"ratio {ratio:.4g}, advantage {advantage:.4g}, kept False" in str(fault)


@pytest.mark.parametrize("name", ["MeanOverPadding", "MeanOverBatch", "MeanOverSequence"])
@pytest.mark.parametrize("bound", [0.02, 0.05, 0.1, 0.2, 0.4, 0.8])
def test_a_statistic_is_found_out_whatever_its_threshold(name, bound):
    found = tc.check({"name": f"wrong_methods:{name}", "bound": bound})
    assert WRONG[name][0] in [fault.rule for fault in found.faults]


@pytest.mark.parametrize("outer", ["tis", "both", "penalty"])
def test_a_wrong_part_is_named_within_what_allows_more(outer):
    field = "first" if outer == "both" else "inner"
    method = tc.method(outer, **{field: "wrong_methods:MinimumOfConstant"})
    assert "on policy" in [fault.rule for fault in tc.check(method).faults]


def test_what_a_method_declares_it_may_do():
    @tc.definition
    class Declared(tc.Method):
        @property
        def traits(self):
            return tc.Trait.CUTS | tc.Trait.SEES_OTHERS

        def surrogate(self, batch):
            return wrong_methods.MeanOverSequence().surrogate(batch)

    assert tc.check(Declared())


def test_kept_is_compared_with_the_gradient_on_ones_own_batches_too():
    """What no small batch shows: a gate that is right up to a ratio of 400."""

    @tc.definition
    class Far(tc.Method):
        def surrogate(self, batch):
            kept = ~(batch.log_ratio > 6)
            return dataclasses.replace(tc.gates.soft(batch, batch.log_ratio), kept=kept)

    batch = dataclasses.replace(random_batch(Far()), density=True)
    assert tc.check(Far(), batch).faults == ()
    far = dataclasses.replace(batch, logp=batch.logp_old + 7)
    (fault,) = tc.check(Far(), [far]).faults
    assert fault.rule == "kept" and far != batch


@pytest.mark.parametrize(
    "method",
    [
        tc.method("clip") + tc.penalty("k2", 1e-3),
        tc.method("centered", inner="clip") + tc.penalty("k2"),
        tc.method("centered", inner={"name": "tis", "inner": "clip"}),
        tc.method("anchored", inner={"name": "tis", "inner": "clip"}, anchor="interpolated"),
        tc.method("atr", delta=tc.controllers.target_gate(share=0.02)),
        tc.method("atr", delta=tc.controllers.per_token(by="p_old", scale=0.1)),
        tc.method("atr", delta=tc.controllers.per_token(by="entropy", scale=1.0)),
        tc.method("clip_higher", level="turn", low=0.003, high=0.004),
    ],
    ids=str,
)
def test_documented_compositions_are_right(method):
    found = tc.check(method)
    assert found, str(found)


def test_the_objective_of_a_detached_method_is_a_sentence_in_a_loop():
    batch = random_batch(wrong_methods.Right())
    with pytest.raises(ValueError, match="'wrong_methods:Detached' has no gradient"):
        tc.coefficient("wrong_methods:Detached", batch)
    wrong: Any = {"logp": batch.logp}
    for ask in (tc.coefficient, tc.policy_loss, lambda name, wrong: tc.check(name, [wrong])):
        with pytest.raises(ValueError, match=r"`batch` must be a trustclip\.TokenBatch, got dict"):
            ask("clip", wrong)
