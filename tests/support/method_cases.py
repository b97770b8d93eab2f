"""Every method in every variant, and batches that suit it: shared by the tests of all methods."""

import dataclasses
import math
import typing
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from torch import Tensor

import trustclip as tc
from trustclip.constraints.base import value
from trustclip.constraints.probes import batch_for as batch_for
from trustclip.constraints.probes import candidates_for as candidates_for
from trustclip.constraints.probes import changed as changed

#: Variants that a walk over the choices of a field does not reach.
MORE = [
    ("dynamic_clip", {"dual_ceiling": 10.0}),
    ("clip_cov", {"low": 0.2, "high": 0.28, "share": 0.2, "cov_low": 0.05}),
    ("truly_ppo", {"variant": "ppo_rb", "slope": 0.1}),
    *(
        ("atr", {"level": level, "reduction": reduction, "weight": weight})
        for level in ("prefix", "turn", "sequence")
        for reduction in ("ratio", "mean", "sum", "max")
        for weight in ("level", "token")
    ),
    ("gspo", {"low": 0.1, "high": 0.1}),
    ("kl_cov", {"share": 0.2, "beta": 0.3}),
    ("cispo", {"low": 0.2, "high": 0.28}),
    ("bandpo", {"ceiling": 1.5, "dual_ceiling": 10.0}),
    ("bandpo", {"ceiling": None}),
    ("abc_grpo", {"positive_low": 1.0, "negative_low": 0.3, "negative_high": 2.0}),
    ("icepop", {"floor": None, "level": "sequence"}),
    ("icepop", {"inner": "importance_sampling", "policy": "new", "floor": 0.2}),
    ("icepop", {"policy": "new", "level": "geometric", "ceiling": 1.5}),
    ("ipo", {"delta": 0.02, "anchor": "old", "ceiling": None}),
    ("ipo", {"ceiling": 1.2}),
    ("m2po", {"side": "strict", "anchor": "rollout", "budget": 0.1}),
    ("drpo", {"delta": 0.15}),
    ("dgpo", {"low": 0.1, "high": 0.3, "n": 2.0, "m": 1.0}),
    *(("vaco", {"delta": delta}) for delta in (0.1, 0.3)),
    ("cppo", {"delta": 0.05, "budget": 0.01}),
    ("cppo", {"delta": 0.05, "budget": 0.05, "budget_ceiling": None}),
    ("cppo", {"budget": 0.01, "budget_ceiling": 0.06, "least_weight": 0.5, "anchor": "rollout"}),
    ("kpop", {"delta": 0.02, "inner": {"name": "ipo", "anchor": "old"}}),
    ("kpop", {"delta": 0.5, "policy": "new", "inner": "importance_sampling"}),
    *(("bapo", {"target": share, "high_step": 0.21}) for share in (0.44, 0.53, 0.54, 0.55)),
    ("bapo", {"target": 0.9, "low_limit": 0.2, "high_limit": 0.5}),
    ("erc", {"inner": {"name": "ce_gppo", "beta_low": 1.0}, "low": 0.02, "high": 0.1}),
    ("tis", {"inner": {"name": "gspo", "low": 0.1, "high": 0.1}, "level": "sequence"}),
    ("tis", {"inner": {"name": "full_kl", "order": "new_old"}}),
    ("tis", {"inner": {"name": "icepop", "inner": {"name": "cispo"}}}),
    ("tis", {"inner": {"name": "clip_cov", "share": 0.2, "cov_low": 0.05}}),
    ("opsm", {"delta": 0.02, "inner": {"name": "gmpo"}}),
    ("trm", {"reduction": "mean", "delta": 0.05, "inner": {"name": "soft_gate"}}),
    ("anchored", {"inner": {"name": "cispo", "low": 0.2, "high": 0.28}}),
    ("anchored", {"inner": {"name": "gspo", "low": 0.1, "high": 0.1}}),
    ("anchored", {"inner": "clip", "ceiling": 1.3}),
    ("anchored", {"inner": "drpo", "ceiling": 1.3}),
    ("penalty", {"beta": 0.3, "anchor": "rollout", "on": "cut", "inner": {"name": "atr"}}),
    ("penalty", {"beta": 0.3, "level": "sequence", "inner": {"name": "gspo"}}),
    *(
        ("penalty", {"beta": 0.3, "divergence": "k1", "anchor": "ref", "inner": inner})
        for inner in ("atr", {"name": "clip_cov", "share": 0.2, "cov_low": 0.05}, "trpo")
    ),
    ("penalty", {"beta": 2.0, "inner": {"name": "penalty", "divergence": "k3"}}),
    *(
        ("sampler", {"level": "sequence", "reduction": how, "measure": measure, "ceiling": high})
        for how, measure, high in (
            *(("mean", "ratio", 1.2), ("sum", "k1", 0.5), ("max", "k2", 0.2), ("mean", "k3", 0.1)),
            *(("max", "binary_kl", 0.1), ("max", "ratio", 1.5)),
            *(("mean", "tv", 0.2), ("mean", "exp_abs", 1.2), ("max", "probability", 0.1)),
        )
    ),
    ("sampler", {"measure": "probability", "floor": -0.1, "ceiling": 0.1}),
    ("sampler", {"level": "turn", "floor": 0.9, "ceiling": 1.1}),
    ("sampler", {"measure": "k2", "level": "turn", "reduction": "max", "ceiling": 0.1}),
    ("sampler", {"measure": "tv", "side": "away", "ceiling": 0.2}),
    ("sampler", {"measure": "tv", "level": "sequence", "side": "away", "ceiling": 0.2}),
    ("sampler", {"measure": "kl_old_new", "between": "new_old", "ceiling": 0.05}),
    ("sampler", {"measure": "binary_kl", "between": "new_old", "ceiling": 0.05}),
    ("sampler", {"floor": 0.7, "weigh_by": "token", "weight_floor": 0.8, "inner": "gspo"}),
    (
        "sampler",
        {"ceiling": None, "weigh_by": "geometric", "weigh_of": "new", "weight_ceiling": 9.0},
    ),
    ("sampler", {"ceiling": None, "weigh_by": "geometric", "weigh_of": "new"}),
    ("sampler", {"between": "new_rollout", "weigh_by": "sequence", "weight_ceiling": 2.0}),
    *(("centered", {"inner": inner}) for inner in ("reinforce", "clip", "atr", "dppo", "icepop")),
    ("troll", {"delta": 0.005, "alpha": 0.0}),
    ("troll", {"delta": 0.3}),
    ("both", {"first": {"name": "truly_ppo", "variant": "ppo_rb"}, "second": {"name": "trm"}}),
    ("either", {"first": {"name": "kl_cov", "share": 0.2}, "second": {"name": "atr"}}),
    ("by_sign", {"positive": {"name": "gspo", "low": 0.02, "high": 0.03}, "negative": "cispo"}),
]
FLOATS = (
    *("logp", "logp_old", "advantages", "entropy", "kl_old_new", "kl_new_old", "top_k_kl"),
    *("top_k_tv", "logp_rollout", "logp_ref", "entropy_old"),
)
#: Names of methods of which the oracle knows the rule.
KNOWN = oracle.KEPT


def variants(name: str, cls: type) -> list[tc.Method]:
    """The method's defaults, and every other choice of each field that is a choice."""
    return list(dict.fromkeys(tc.method(name, **given) for given in choices(name, cls)))


def choices(name: str, cls: type) -> list[dict[str, typing.Any]]:
    """The hyper-parameters of each variant: none, one for each choice, and those of `MORE`."""
    options = {
        field: typing.get_args(hint)
        for field, hint in typing.get_type_hints(cls).items()
        if typing.get_origin(hint) is typing.Literal
    }
    given = [{}, *({field: c} for field, several in options.items() for c in several)]
    alone = {"measure": "kl_old_new"}, {"divergence": "k1"}  # neither is the only condition
    given = [one for one in given if one not in alone]
    return given + [more for owner, more in MORE if owner == name]


def numbers(cls: type) -> list[str]:
    """Names of the hyper-parameters that are numbers, or may be."""
    hints = typing.get_type_hints(cls)
    fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    return [name for name in fields if float in (hints[name], *typing.get_args(hints[name]))]


def drawn(name: str, cls: type) -> list[tc.Method]:
    """The variants again, several times, with every number drawn from around its default.

    A number is up to four times larger or smaller, in every other draw up to a third, within the
    range of its field. One that is unset by default is between 0.01 and 3, or stays unset.
    """
    random = np.random.default_rng(zlib.crc32(name.encode()))
    given = choices(name, cls)
    given *= max(2, DRAWS // len(given))
    return list(dict.fromkeys(_drawn(tc.method(name, **one), random) for one in given))


def _drawn(method: tc.Method, random: np.random.Generator) -> tc.Method:
    for _ in range(1000):
        far = random.choice((0.3, 1.4))
        values = {field: _number(method, field, random, far) for field in numbers(type(method))}
        try:
            return dataclasses.replace(method, **values)  # type: ignore[type-var]
        except ValueError:  # out of the range of a field, or of two fields together
            continue
    raise AssertionError(f"no numbers around the defaults of {label(method)} are allowed")


def _number(method: tc.Method, field: str, random: np.random.Generator, far: float) -> float | None:
    if getattr(method, field) is None and random.random() < 1 / 3:
        return None
    if (usual := value(method, field)) is None:
        return math.exp(random.uniform(-4.6, 1.1))
    return usual * math.exp(random.uniform(-far, far))


def label(method: tc.Method) -> str:
    own = method.to_dict()
    plain = tc.method(own["name"]).to_dict()
    return "-".join([own["name"], *(f"{k}={v}" for k, v in own.items() if plain[k] != v)])


def known(method: tc.Method) -> bool:
    """Whether there is a reference answer for the method, and for all that it is made of.

    There is none for a part that measures a batch, around which others measure a sequence.
    """
    parts = getattr(method, "parts", ())
    return method.name in KNOWN and all(
        known(part) and part.statistics_over is None for part in parts
    )


def without_a_rule() -> str:
    """A sentence about every method that the oracle does not know; empty where there is none."""
    return "".join(
        f"the method {name!r} has no rule in tests/support/oracle.py: add it to KEPT there, and to "
        "COEFFICIENT or GRADIENT where its weight is not the ratio of a kept token, written from "
        "the paper and not from the code. (Its page also shows an entry of its name in "
        "docs/methods.toml: `defaults`, where they are from, and `traps`; nothing else needs it.)\n"
        for name in tc.methods()
        if name not in KNOWN
    )


def weight_on_policy(method: tc.Method) -> float:
    """Weight of a kept token's gradient while new, old and sampling policy are one."""
    return 1 - method.to_dict()["alpha"] if method.name == "pspo" else 1.0


#: The numbers of each variant are drawn twice, and those of a method at least about this often.
DRAWS = 16
ALL = [m for name, cls in tc.methods().items() for m in variants(name, cls)]
every_name = pytest.mark.parametrize("name", tc.methods())


def each(given: Sequence[tc.Method]) -> Callable[[Callable[[tc.Method], None]], Any]:
    """Makes a test of a method one for each name, in all variants given; a failure names one."""
    variants_of = {name: [m for m in given if m.name == name] for name in (m.name for m in given)}

    def of_names(test: Callable[[tc.Method], None]) -> Any:
        def of_variants(name: str) -> None:
            for method in variants_of[name]:
                try:
                    test(method)
                except Exception as error:
                    error.add_note(f"The method is {label(method)}.")
                    raise

        of_variants.__doc__ = test.__doc__
        return pytest.mark.parametrize("name", variants_of)(of_variants)

    return of_names


every_method, known_to_oracle = each(ALL), each([m for m in ALL if known(m)])


#: Seeds of the batches on which a method is compared with its rule.
SEEDS = range(3)


def random_batch(
    method: tc.Method, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tc.TokenBatch:
    """Sequences of up to eleven tokens: holes, padding, an empty one, a zero advantage.

    Beyond the first seed there are more, and each has moved by another amount, from far inside of
    any threshold to far beyond it; in the last one, tokens differ in their advantage.
    """
    random = torch.Generator().manual_seed(7 + seed)
    rows = 24 if seed else 8
    logp_old = torch.rand(rows, 11, dtype=torch.float64, generator=random)
    logp_old = -logp_old.exponential_(generator=random)
    size = 10 ** torch.linspace(seed - 4.5, seed - 1.3, rows)[:, None] if seed else 0.35
    logp = logp_old + size * torch.randn(rows, 11, dtype=torch.float64, generator=random)
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5, 0.0, 2.0, -2.0, 1.0], dtype=torch.float64)
    lengths = torch.tensor([11, 11, 7, 9, 11, 4, 1, 0]).repeat(rows // 8).roll(3 * seed)
    mask = torch.arange(11) < lengths[:, None]
    mask[0, 3] = mask[3, 0] = False
    grid = advantages.repeat(rows // 8)[:, None].expand(rows, 11)
    if seed == SEEDS[-1]:
        grid = grid * torch.randn(rows, 11, dtype=torch.float64, generator=random)
    return batch_for(method, logp.to(dtype), logp_old.to(dtype), grid.to(dtype), mask)


def astuple(batch: tc.TokenBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return batch.logp, batch.logp_old, batch.advantages, batch.mask
