"""``kept`` false means coefficient 0, whatever is around what, and traits say what else can be."""

import dataclasses
import warnings

import pytest
import torch
from method_cases import ALL, batch_for, label
from torch import Tensor

import trustclip as tc
from trustclip.constraints.compose import Composite

#: Methods of a whole sequence or prefix, and one of a token.
INNER: list[dict] = [
    {"name": "gspo", "low": 0.1, "high": 0.1},
    {"name": "luspo", "low": 0.1, "high": 0.1},
    {"name": "gmpo"},
    {"name": "atr", "level": "sequence", "delta": 0.005},
    {"name": "atr", "level": "sequence", "reduction": "mean", "delta": 0.05},
    {"name": "clip", "level": "sequence", "epsilon": 0.1},
    {"name": "clip_higher", "level": "sequence", "low": 0.1, "high": 0.1},
    {"name": "atr", "level": "prefix", "delta": 0.005},
    {"name": "clip", "level": "turn", "epsilon": 0.1},
    {"name": "clip"},
]
COMPOSITES = {name: cls for name, cls in tc.methods().items() if issubclass(cls, Composite)}


def around(inner: dict) -> list[tc.Method]:
    """Every composite, with the method in each of its places."""
    return [
        tc.method(name, **{field.name: inner})
        for name, cls in COMPOSITES.items()
        # What reads candidates refuses sequences, and pulls on tokens that were not sampled.
        if "candidates" not in cls().requires
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if isinstance(field.default, tc.Method)
    ]


COMPOSED = [method for inner in INNER for method in around(inner)]
#: Defaults, and compositions around a sequence and a turn; the rest is slow.
FEW = [*map(tc.method, tc.methods()), *(m for i in (0, 8) for m in around(INNER[i]))]
every_composition = pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, marks=() if method in FEW else pytest.mark.slow)
        for method in dict.fromkeys([*ALL, *COMPOSED])
    ],
    ids=label,
)


def tokens(method: tc.Method, advantages: str) -> tc.TokenBatch:
    """Ragged sequences, some outside of all bounds, of one advantage each or of their tokens'."""
    generator = torch.Generator().manual_seed(11)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    old = -0.05 - noise(16, 9).abs()
    new = (old + 0.3 * noise(16, 1) + 0.3 * noise(16, 9)).clamp(max=-1e-3)
    grid = noise(16, 9 if advantages == "of the token" else 1).expand(16, 9).clone()
    grid[torch.rand(grid.shape, generator=generator) < 0.2] = 0.0
    if advantages == "of the sequence":
        grid = grid[:, :1].expand(16, 9)
    lengths = torch.randint(1, 10, (16, 1), generator=generator)
    return batch_for(method, new, old, grid, torch.arange(9) < lengths)


@every_composition
def test_every_method_and_composition_is_right(method: tc.Method) -> None:
    found = tc.check(method)
    assert found, str(found)


def test_the_form_that_follows_the_mean_says_so() -> None:
    """GSPO as a trainer differentiates it: right where a sequence has one advantage."""
    plain, literal = (tc.method("gspo", low=0.1, high=0.1, variant=v) for v in VARIANTS)
    batch = tokens(plain, "of the sequence")
    torch.testing.assert_close(tc.coefficient(plain, batch), tc.coefficient(literal, batch))
    batch = tokens(plain, "of the token")
    got, kept = tc.coefficient(literal, batch), literal.surrogate(batch).kept
    assert got[~kept & batch.mask].any() and (got * batch.advantages < 0).any()
    assert tc.Trait.REVERSES | tc.Trait.MOVES_WITHOUT_ADVANTAGE in literal.traits
    each, shared = (tc.coefficient(m, batch).sum(dim=1) for m in (plain, literal))
    torch.testing.assert_close(each, shared)


VARIANTS = ("gspo_token", "gspo")


@pytest.mark.parametrize("name", ["logp", "logp_old", "logp_rollout"])
def test_losses_in_place_of_log_probabilities_are_named(name: str) -> None:
    right = tokens(tc.method("icepop"), "of the sequence")
    right = dataclasses.replace(right, logp_rollout=right.logp_old - 0.1, density=False)
    assert tc.check(tc.method("icepop"), [right])
    words = f"`{name}` has numbers above 0.5, .* minus the loss"
    with pytest.warns(UserWarning, match=words):
        wrong = dataclasses.replace(right, **{name: -getattr(right, name)})
    with pytest.raises(ValueError, match=words):
        tc.check(tc.method("icepop"), [wrong])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tc.check(tc.method("icepop"), [dataclasses.replace(wrong, density=True)])
        z = torch.linspace(0, 128, 40_001)  # of a sure token: its logit is the logsumexp
        rounded = torch.full_like(right.logp, (z - z.bfloat16()).max().item())
        assert rounded.max() > 0.2
        tc.check(tc.method("icepop"), [dataclasses.replace(right, **{name: rounded})])
