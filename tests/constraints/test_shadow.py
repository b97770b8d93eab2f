"""Shadow gates: what they count, that counts add up, what they refuse, and that they only watch."""

import math
from dataclasses import replace

import method_cases
import pytest
import torch
from trl_runs import constrained

import trustclip as tc
from trustclip.constraints.loss import gradient
from trustclip.constraints.shadow import Shadows, label, refusal, shadow_methods

SUPPLIED = {"entropy", "keys", "kl_old_new", "kl_new_old", "logp_rollout", "top_k_kl", "top_k_tv"}
ABLE = [m for m in method_cases.ALL if refusal(m, SUPPLIED, "a test") is None]


def batch_of(*tokens: tuple[float, float, float], mask: list[bool] | None = None) -> tc.TokenBatch:
    """One sequence of (old probability, new probability, advantage)."""
    old, new, a = torch.tensor(tokens, dtype=torch.float64).T[:, None]
    return tc.TokenBatch(new.log(), old.log(), a, torch.tensor([mask or [True] * len(tokens)]))


def seen_by(acting: tc.Method, methods: list[tc.Method], *batches: tc.TokenBatch) -> Shadows:
    shadows = Shadows(methods)
    for batch in batches:
        c, surrogate = gradient(acting, batch)
        shadows.add(batch, c, surrogate.kept)
    return shadows


def test_shares_and_agreement_are_those_counted_by_hand():
    # Ratios 1.15, 1.3, 0.75, 1.05 and 0.5; the last token's gradient moves it back, so all keep it.
    batch = batch_of(
        (0.4, 0.46, 1), (0.05, 0.065, 2), (0.8, 0.6, -1), (0.2, 0.21, 1), (0.2, 0.1, 1)
    )
    narrow, wide = tc.method("clip", epsilon=0.1), tc.method("clip", epsilon=0.28)
    shadows = seen_by(tc.method("clip"), [narrow, wide, tc.method("cispo")], batch)
    seen = shadows.read()

    def of(name: str) -> dict[str, float]:
        return {k.removeprefix(f"shadow/{name}/"): v for k, v in seen.items() if f"/{name}/" in k}

    first, second = of("clip(epsilon=0.1)"), of("clip(epsilon=0.28)")
    # The acting clip of 0.2 gates two tokens (1.3 and 0.75); 0.1 gates three; 0.28 gates 1.3 alone.
    assert [first[k] for k in ("gated", "precision", "recall", "jaccard")] == [
        pytest.approx(x) for x in (3 / 5, 2 / 3, 1, 2 / 3)
    ]
    assert [second[k] for k in ("gated", "precision", "recall", "jaccard")] == [
        1 / 5,
        1,
        1 / 2,
        1 / 2,
    ]
    assert (first["both"], first["both/clip(epsilon=0.28)"]) == (2 / 5, 1 / 5)
    assert first["gated/positive_above"] == pytest.approx(2 / 5)
    assert first["gated/negative_below"] == pytest.approx(1 / 5)
    assert first["gated/positive_below"] == first["gated/negative_above"] == 0
    # By old probability, of the tokens of that kind: 0.05; 0.4 with two of 0.2; 0.8.
    assert first["gated/p_old_0.01_0.1"] == 1
    assert first["gated/p_old_0.1_0.5"] == pytest.approx(1 / 3)
    assert first["gated/p_old_0.5_0.9"] == 1
    assert "gated/p_old_0_0.01" not in first  # no such token
    # Coefficients w A of kept tokens: acting (1.15, 0, 0, 1.05, 0.5), 0.1 without the first.
    acting, own = (1.15, 1.05, 0.5), (1.05, 0.5)
    dot = sum(x * x for x in own)
    assert first["cosine"] == pytest.approx(dot / math.sqrt(dot * sum(x * x for x in acting)))
    assert of("cispo")["gated"] == 0 and "precision" not in of("cispo")


def test_masked_and_broken_tokens_are_not_counted():
    batch = batch_of((0.4, 0.8, 1), (0.4, 0.8, 1), (0.4, 0.41, 1), mask=[True, False, True])
    assert seen_by(tc.method("clip"), [tc.method("atr")], batch).read()["shadow/atr/gated"] == 0.5
    logp = batch.logp.clone()
    logp[0, 2] = torch.nan
    seen = seen_by(tc.method("clip"), [tc.method("atr")], replace(batch, logp=logp)).read()
    assert seen["shadow/atr/gated"] == 1


@pytest.mark.parametrize("method", ABLE, ids=method_cases.label)
def test_a_shadow_gates_what_the_method_would(method):
    batch = method_cases.random_batch(method)
    (want,) = tc.policy_loss(method, batch).metrics["gated"][:1]
    seen = seen_by(method, [method], batch).read()
    name = f"shadow/{label(method)}"
    assert seen[f"{name}/gated"] * batch.mask.sum() == pytest.approx(want.item())
    # Beside itself it agrees with itself.
    assert seen.get(f"{name}/jaccard", 1.0) == 1
    assert seen.get(f"{name}/cosine", 1.0) == pytest.approx(1)


def test_sums_do_not_depend_on_micro_batches_nor_ranks():
    methods = [tc.method(name) for name in ("atr", "kl2", "clip_higher", "dppo", "gspo", "cispo")]
    whole = method_cases.random_batch(methods[0])

    def rows(i: int) -> tc.TokenBatch:
        return tc.TokenBatch(*(x[i : i + 1] for x in method_cases.astuple(whole)))

    acting = tc.method("clip")
    together = seen_by(acting, methods, whole).read()
    ranks = [seen_by(acting, methods, *map(rows, range(r, 8, 2))) for r in (0, 1)]
    sent: list[torch.Tensor] = []

    def collect(x: torch.Tensor) -> torch.Tensor:
        sent.append(x)
        return x

    ranks[1].read(collect)
    apart = ranks[0].read(lambda x: x + sent[0])
    assert apart.keys() == together.keys()
    for name, value in together.items():
        assert apart[name] == (pytest.approx(value) if "cosine" in name else value), name


def test_the_state_continues_and_that_of_other_shadows_is_dropped():
    atr, clip = tc.method("atr"), tc.method("clip")
    batch = method_cases.random_batch(atr)
    before = seen_by(clip, [atr], batch)
    after, other = Shadows([atr]), Shadows([clip])
    after.load_state_dict(before.state_dict())
    other.load_state_dict(before.state_dict())
    assert after.read() == before.read() and other.read() == {}


def test_a_label_names_what_is_not_default():
    inner = {"name": "clip", "epsilon": 0.1}
    assert label(tc.method("tis", inner=inner)) == "tis(inner=clip(epsilon=0.1))"
    assert label(tc.method("dppo", delta=0.05, divergence="binary_kl")) == (
        "dppo(divergence=binary_kl,delta=0.05)"
    )
    by = tc.method("atr", delta=tc.controllers.per_token(by="entropy"))
    assert label(by).startswith("atr(delta={") and " " not in label(by)


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        (["atrr"], "did you mean 'atr'"),
        ("atr", "must be a list of methods, got 'atr'"),
        (["atr", {"name": "atr", "delta": 0.07}], "the shadow 'atr' is listed twice"),
        (["full_kl"], "needs `kl_old_new`"),
        (["tis"], "needs `logp_rollout`"),
        (["trpo"], "statistics over all ranks"),
        ([{"name": "atr", "delta": {"controller": "target_gate", "share": 0.02}}], "adapts"),
    ],
)
def test_what_cannot_be_a_shadow_is_refused_in_one_sentence(specs, words):
    with pytest.raises(ValueError, match=r"\.|listed") as error:
        shadow_methods(specs, (), "TRL")
    assert words in str(error.value)


# In the TRL engine --------------------------------------------------------------------------------

WATCHED = ["clip", {"name": "clip", "epsilon": 0.02}, "gspo", "cispo"]


def test_shadows_change_no_bit_of_a_training(tmp_path):
    alone = constrained(tmp_path / "a", "atr", {"delta": 0.02})
    watched = constrained(tmp_path / "b", "atr", {"delta": 0.02}, shadows=WATCHED)
    assert torch.equal(alone.parameters, watched.parameters)
    own = [{k: v for k, v in row.items() if "/shadow/" not in k} for row in watched.history]
    assert [row.keys() for row in own] == [row.keys() for row in alone.history]
    assert watched.column("trustclip/shadow/gspo/gated")[-1] > 0
    assert not any("/shadow/" in key for row in alone.history for key in row)


def test_the_config_serialises_its_shadows_and_refuses_what_the_engine_lacks(tmp_path):
    from trustclip.engines.trl import ConstrainedGRPOConfig

    plain: dict = {"num_iterations": 2, "use_cpu": True, "bf16": False}
    args = ConstrainedGRPOConfig(str(tmp_path), shadows=WATCHED, **plain)
    again = ConstrainedGRPOConfig(str(tmp_path), shadows=args.to_dict()["shadows"], **plain)
    assert args.watched() == again.watched() == [tc.as_method(spec) for spec in WATCHED]
    with pytest.raises(ValueError, match="'full_kl' cannot be a shadow in TRL: it needs `kl_old"):
        ConstrainedGRPOConfig(str(tmp_path), shadows=["full_kl"], **plain)
    # Beside a method for which the engine computes it, it costs nothing.
    exact = {"name": "full_kl", "delta": 0.01}
    ConstrainedGRPOConfig(str(tmp_path), method="full_kl", shadows=[exact], **plain)


def test_a_recipe_takes_shadows_and_locates_a_wrong_one(tmp_path):
    from test_recipe_files import changed, errors_of

    from trustclip.cli.commands.experiments import settings
    from trustclip.train.settings.stages import RLSettings

    given = ["--preset", "tiny", "--output-dir", str(tmp_path), "--shadows"]
    built = settings(RLSettings, [*given, "atr, {name: clip, epsilon: 0.1}"], "rl")
    assert built.shadows == (tc.method("atr"), tc.method("clip", epsilon=0.1))
    for value, words in (
        (["atrr"], "did you mean 'atr'"),
        (["full_kl"], "'full_kl' cannot be a shadow in TRL"),
        ("a: b", "a method needs a `name`"),
        (3, "should be a list of methods, got 3"),
    ):
        text = errors_of(changed(tmp_path, "rl.shadows", value))
        assert words in text and "1 error:\n  line " in text, text


# One line for any loop ----------------------------------------------------------------------------


def test_the_check_says_why_a_constraint_is_inert():
    batch = batch_of((0.4, 0.42, 1), (0.2, 0.19, -1))
    still = replace(batch, logp=batch.logp_old)
    atr = tc.method("atr")
    for batches, words in (
        ([], "no token is unmasked"),
        ([still, still], "the ratio is 1 on all 4 tokens"),
        ([still, batch], "closed on none of 4 tokens, with log-ratios of up to 0.051 nats"),
    ):
        found = tc.check(atr, batches)
        assert not found and words in str(found)
    found = tc.check(tc.method("clip", epsilon=0.01), iter([still, batch]))
    assert found and "it gated 50.00% of 4 tokens" in str(found)
    assert tc.check(tc.method("cispo"), [batch]) and not tc.check(tc.method("cispo"), [still])
    assert tc.check(tc.method("pspo"), [still])  # it acts at ratio 1, too
