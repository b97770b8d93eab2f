"""How often ``trustclip doctor --sampler`` names the cause: each cause planted, at real sizes.

``python benchmarks/sampler_causes.py [SEEDS]`` draws 64 completions of 64 tokens from distributions
as a language model's (half of the tokens nearly certain), lets trainer and sampler differ by one
cause, asks for the verdict with and without a noise floor, and writes the shares of verdicts to
``sampler_causes.csv`` beside it. Healthy sizes are published ones: a standard deviation of 0.05
nats in bfloat16 (Qwen2.5-0.5B against vLLM), 8 % of tokens by up to 2.8 nats in a mixture of
experts.
"""

import csv
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from trustclip.constraints.sampler import Pairs
from trustclip.findings.mismatch.agreement import compare

COMPLETIONS, LENGTH, VOCABULARY = 64, 64, 200
TABLE = Path(__file__).with_suffix(".csv")
#: Noise of the logits: other kernels in float32, and half precision (a standard deviation of d of
#: 0.05 nats).
FLOAT, HALF = 1e-5, 0.058


class Distributions:
    """Distributions of one seed, and what a planted cause makes of them."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.tokens = COMPLETIONS * LENGTH
        sharp = 1 + 5 * torch.rand(self.tokens, 1, generator=self.generator)
        self.z = sharp * self.normal()
        self.position = torch.arange(LENGTH).repeat(COMPLETIONS)
        self.lag = torch.arange(COMPLETIONS).remainder(5).repeat_interleave(LENGTH).double()

    def normal(self) -> Tensor:
        return torch.randn(self.tokens, VOCABULARY, generator=self.generator, dtype=torch.float64)

    def some_tokens(self, share: float) -> Tensor:
        """A share of the tokens. Shape [tokens, 1]."""
        return torch.rand(self.tokens, 1, generator=self.generator) < share

    def noisy(self, size: float | Tensor) -> Tensor:
        """The logits with noise. ``size`` broadcasts over [tokens, vocabulary]."""
        return self.z + size * self.normal()

    def pairs(self, sampled: Tensor, reported: Tensor, trainer: Tensor, *, half: bool) -> Pairs:
        """Tokens of the first, as the second reports and the third scores them; logits each."""
        token = sampled.softmax(-1).multinomial(1, generator=self.generator)
        logp = trainer.log_softmax(-1)
        a = logp.gather(1, token)[:, 0]
        own = {
            "batch": self._again(token, HALF if half else FLOAT) - self._again(token, 0.0),
            "precision": self._again(token, HALF) - self._again(token, 0.0),
        }
        return Pairs(
            trainer=a,
            sampler=reported.log_softmax(-1).gather(1, token)[:, 0],
            entropy=-(logp.exp() * logp.clamp(min=-1e4)).sum(-1),
            position=self.position,
            token=token[:, 0],
            completion=torch.arange(COMPLETIONS).repeat_interleave(LENGTH),
            lag=self.lag,
            floor=own,
        )

    def _again(self, token: Tensor, size: float) -> Tensor:
        return self.noisy(size).log_softmax(-1).gather(1, token)[:, 0]

    def truncate(self, z: Tensor, top_p: float) -> Tensor:
        ordered, index = z.softmax(-1).sort(descending=True)
        mask = torch.zeros_like(z, dtype=torch.bool)
        mask = mask.scatter(1, index, ordered.cumsum(-1) - ordered < top_p)
        return z.masked_fill(~mask, -math.inf)

    def move(self, size: float) -> Tensor:
        """Other weights: logits moved alike in blocks of tokens, most where they are uncertain."""
        shift = self.normal()[: self.tokens // 8].repeat_interleave(8, dim=0)
        return self.z + size * shift


Plant = Callable[[Distributions], tuple[Tensor, Tensor, Tensor]]


def _honest(reported: Callable[[Distributions], Tensor]) -> Plant:
    """The sampler draws from what it reports; the trainer has the logits as they are."""

    def make(d: Distributions) -> tuple[Tensor, Tensor, Tensor]:
        z = reported(d)
        return z, z, d.z

    return make


def _experts(share: float, size: float) -> Callable[[Distributions], Tensor]:
    return lambda d: torch.where(d.some_tokens(share), d.noisy(size), d.noisy(HALF))


def _late(d: Distributions) -> Tensor:
    """Noise of a cache that goes wrong: eight times as large at the end as at the beginning."""
    return d.noisy(HALF * (1 + 7 * (d.position / LENGTH)[:, None].square()))


def _stale(d: Distributions) -> Tensor:
    return d.noisy(HALF / 2 + 0.25 * d.lag[:, None])


def _first(d: Distributions) -> Tensor:
    """Another prompt: what was read before matters less and less along the completion."""
    return d.noisy(0.3 + 2.5 * torch.exp(-d.position / 4)[:, None])


def _sharper(d: Distributions) -> tuple[Tensor, Tensor, Tensor]:
    return d.z / 0.7, d.z, d.z


def _padding(d: Distributions) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.cat([d.z, torch.full((d.tokens, 64), 1.0, dtype=torch.float64)], dim=1)
    return d.z, wide, d.z


def _retokenise(d: Distributions) -> tuple[Tensor, Tensor, Tensor]:
    wrong = torch.where(d.some_tokens(0.004), d.z.roll(7, dims=1), d.z)
    return d.z, wrong, d.z


#: Cause -> (how it is planted, the verdicts that name it, whether the trainer is in half
#: precision).
CAUSES: dict[str, tuple[Plant, tuple[str, ...], bool]] = {
    "float32 / float32": (_honest(lambda d: d.noisy(FLOAT)), ("none",), False),
    "bfloat16 / float32": (_honest(lambda d: d.noisy(HALF)), ("precision",), False),
    "bfloat16 / bfloat16": (_honest(lambda d: d.noisy(1.2 * HALF)), ("precision",), True),
    "float16 / float32": (_honest(lambda d: d.noisy(HALF / 8)), ("precision",), False),
    "8-bit weights": (_honest(lambda d: d.noisy(2 * HALF)), ("precision",), False),
    "experts, 8 % of tokens": (_honest(_experts(0.08, 1.2)), ("tail",), True),
    "experts, 3 % of tokens": (_honest(_experts(0.03, 1.2)), ("tail",), True),
    "temperature 0.8": (_honest(lambda d: d.noisy(HALF) / 0.8), ("temperature",), False),
    "temperature 1.2": (_honest(lambda d: d.noisy(HALF) / 1.2), ("temperature",), False),
    "top-p 0.9": (_honest(lambda d: d.truncate(d.noisy(HALF), 0.9)), ("truncation",), False),
    "top-p 0.95": (_honest(lambda d: d.truncate(d.noisy(HALF), 0.95)), ("truncation",), False),
    "drawn at 0.7, reported at 1": (_sharper, ("sharper",), False),
    "rows of padding": (_padding, ("padding",), False),
    "tokenised again": (_retokenise, ("outliers",), False),
    "cache or positions": (_honest(_late), ("depth",), False),
    "staleness, lags 0 to 4": (_honest(_stale), ("stale",), False),
    "another prompt": (_honest(_first), ("prompt",), False),
    "another model": (_honest(lambda d: d.z.roll(64, dims=0)), ("prompt",), False),
    "other weights": (_honest(lambda d: d.move(0.6)), ("weights",), False),
}

#: Causes near what half precision makes, of which some have no mark: where the doctor stops.
EDGES: dict[str, tuple[Plant, tuple[str, ...], bool]] = {
    "top-p 0.98": (_honest(lambda d: d.truncate(d.noisy(HALF), 0.98)), ("truncation",), False),
    "temperature 0.97": (_honest(lambda d: d.noisy(HALF) / 0.97), ("temperature",), False),
    "experts, 1 % of tokens": (_honest(_experts(0.01, 1.2)), ("tail",), True),
    "experts, 8 %, a third as far": (_honest(_experts(0.08, 0.4)), ("tail",), True),
    "cache, 2.5 times at the end": (
        _honest(lambda d: d.noisy(HALF * (1 + 1.5 * (d.position / LENGTH)[:, None]))),
        ("depth",),
        False,
    ),
    "another prompt, mild": (
        _honest(lambda d: d.noisy(HALF * (1 + 4 * torch.exp(-d.position / 4)[:, None]))),
        ("prompt",),
        False,
    ),
    "other weights, as far as bfloat16": (_honest(lambda d: d.move(HALF)), ("weights",), False),
}


def verdicts(cause: str, seed: int) -> tuple[str, str]:
    """The doctor's verdict about a planted cause, with a noise floor and without.

    Returns:
      Names of causes, or ``sharper``.
    """
    plant, _, half = (CAUSES | EDGES)[cause]
    distributions = Distributions(seed)
    pairs = distributions.pairs(*plant(distributions), half=half)
    return _name(pairs), _name(replace(pairs, floor=None))


def _name(pairs: Pairs) -> str:
    name = compare(pairs).name
    return "precision" if name == "finer" else name


def confusion(seeds: range) -> Iterator[dict[str, str]]:
    """A row for each cause: how often it got which verdict, with and without a floor."""
    for cause, (_, names, _) in (CAUSES | EDGES).items():
        columns = zip(*(verdicts(cause, seed) for seed in seeds), strict=True)
        counts = [
            "; ".join(f"{name} {n}" for name, n in Counter(column).most_common())
            for column in columns
        ]
        expected = " or ".join(names)
        yield {"planted": cause, "named": expected, "with floor": counts[0], "without": counts[1]}


def main(seeds: int = 20) -> None:
    """Print the table, and write it."""
    rows = []
    print("| planted | verdict with a floor | without |\n|---|---|---|")
    for row in confusion(range(seeds)):
        rows.append(row)
        print(f"| {row['planted']} | {row['with floor']} | {row['without']} |", flush=True)
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
