"""What TRL's vLLM returns beside the sampled tokens, in the lists that TRL documents.

The engine itself samples in ``tests/real/test_colocated.py``.
"""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trustclip.engines.trl.sampling.returned import allow, with_likeliest

#: Two completions: ranked (token, log-probability); of each position the sampled one is named.
POSITIONS: list[list[tuple[int, list[tuple[int, float | None]]]]] = [
    [
        (7, [(7, -0.1), (3, -2.5), (1, -9999.0)]),  # a server's logarithm of 0
        (5, [(2, -0.2), (4, -2.0), (5, -6.0)]),  # sampled outside of the first two
    ],
    [(9, [(8, -0.3), (9, -1.4)])],
]


class Generation:
    """`VLLMGeneration` as far as a trainer of TRL uses it."""

    def __init__(self, limit: int = 20, mode: str = "colocate"):
        self.logprobs, self.mode = 0, mode
        config = SimpleNamespace(max_logprobs=limit)
        self.llm = SimpleNamespace(llm_engine=SimpleNamespace(model_config=config))
        self.asked: list[int] = []

    def generate(self, prompts: Any) -> Any:
        self.asked.append(self.logprobs)
        k = self.logprobs + 1
        tokens = [[token for token, _ in row] for row in POSITIONS]
        logps = [[[v for _, v in ranked[:k]] for _, ranked in row] for row in POSITIONS]
        ids = [[[i for i, _ in ranked[:k]] for _, ranked in row] for row in POSITIONS]
        return prompts, tokens, logps, ids


def test_the_sampled_token_is_returned_as_before_and_the_others_are_kept() -> None:
    generation = Generation()
    with with_likeliest(generation, 2, all_drawn=False) as found:
        prompts, tokens, logps, _ = generation.generate("prompts")
    assert prompts == "prompts" and tokens == [[7, 5], [9]]
    assert logps == [[[-0.1], [-6.0]], [[-1.4]]]  # what TRL takes the first of
    assert generation.asked == [2] and generation.logprobs == 0
    first, second = found
    assert first.ids.tolist() == [[7, 3], [2, 4]] and second.ids.tolist() == [[8, 9]]
    torch.testing.assert_close(first.logps, torch.tensor([[-0.1, -2.5], [-0.2, -2.0]]))
    assert not first.complete.any()
    generation.generate("more")
    assert generation.asked == [2, 0] and len(found) == 2


def test_what_cannot_be_drawn_is_no_candidate() -> None:
    generation = Generation()
    with with_likeliest(generation, 3, all_drawn=False) as found:
        generation.generate("prompts")
    first, second = found
    assert first.logps[0, 2] == -math.inf and first.complete.tolist() == [True, False]
    assert second.logps.tolist()[0][2] == -math.inf and second.complete.tolist() == [True]
    with with_likeliest(generation, 2, all_drawn=True) as found:
        generation.generate("prompts")
    assert all(one.complete.all() for one in found)


@pytest.mark.parametrize(
    ("limit", "mode", "after"),
    [(20, "colocate", 64), (100, "colocate", 100), (-1, "colocate", -1), (20, "server", 20)],
)
def test_a_colocated_vllm_may_return_more(limit: int, mode: str, after: int) -> None:
    generation = Generation(limit, mode)
    allow(generation, 64)
    assert generation.llm.llm_engine.model_config.max_logprobs == after
