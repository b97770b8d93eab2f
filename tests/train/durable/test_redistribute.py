"""A generation, and sums not yet logged, spread over another number of ranks."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from trustclip.train.durable import states
from trustclip.train.durable.ranks import Ranks
from trustclip.train.durable.redistribute import respread, summed
from trustclip.train.durable.saving import Content
from trustclip.train.durable.trainer import Durable

#: Of two ranks: prompts padded on the left, completions on the right, to lengths of their own.
PROMPTS = [[[1, 2, 3], [0, 4, 5]], [[6, 7], [0, 8]]]
COMPLETIONS = [[[1, 0], [2, 3]], [[4, 5, 6], [7, 0, 0]]]


def micro_batch(rank: int) -> dict[str, object]:
    prompts, completions = torch.tensor(PROMPTS[rank]), torch.tensor(COMPLETIONS[rank])
    return {
        "prompt_ids": prompts,
        "prompt_mask": (prompts > 0).long(),
        "completion_ids": completions,
        "completion_mask": (completions > 0).long(),
        "advantages": torch.tensor([0.5, -0.5]) + rank,
        "num_items_in_batch": torch.tensor(9.0),
        "pixel_values": None,
    }


def test_every_completion_keeps_its_place_and_its_prompt():
    held = [[micro_batch(0)], [micro_batch(1)]]
    (whole,) = respread(held, 0, 1, filler=99) or []
    assert whole["prompt_ids"].tolist() == [[1, 2, 3], [0, 4, 5], [99, 6, 7], [99, 0, 8]]
    assert whole["prompt_mask"].tolist() == [[1, 1, 1], [0, 1, 1], [0, 1, 1], [0, 0, 1]]
    assert whole["completion_ids"].tolist() == [[1, 0, 99], [2, 3, 99], [4, 5, 6], [7, 0, 0]]
    assert whole["completion_mask"].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 0]]
    assert whole["num_items_in_batch"] == 9 and whole["pixel_values"] is None
    shares = [(respread(held, rank, 4, filler=99) or [])[0] for rank in range(4)]
    for name in ("prompt_ids", "completion_ids", "advantages"):
        assert torch.equal(torch.cat([share[name] for share in shares]), whole[name])


def test_a_rank_without_a_generation_means_that_there_is_none():
    assert respread([[micro_batch(0)], None], 0, 1, filler=0) is None


def test_sums_of_all_ranks_stay_the_same_sum():
    states = [{"k3": (torch.tensor(1.0), None)}, None, {"k3": (torch.tensor(2.5), None)}]
    ranks = [summed([states[0], states[2]], rank)["k3"][0] for rank in range(4)]
    assert ranks == [3.5, 0, 0, 0]


def test_ranks_that_are_new_draw_numbers_of_their_own(tmp_path):
    for rank in range(2):
        content = Content()
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(rank)
        loop = {"loss": torch.tensor(float(rank))}
        own = {"random": states.random_state(), "loop": loop, "progress": {}}
        content.state(f"rank-{rank}", own)
        content.write_own(tmp_path)
    for world in (1, 4, 5):
        drawn, losses = set(), set()
        for rank in range(world):
            trainer: Any = SimpleNamespace(
                _ranks=Ranks(rank, world),
                _of_rank=lambda folder, number: states.load(folder, f"rank-{number}"),
                _redistributed=lambda stored: stored[0],
            )
            own = Durable._of_this_rank(trainer, tmp_path)
            states.set_random_state(own["random"])
            drawn.add((*torch.rand(2).tolist(), *np.random.rand(2), random.random()))
            losses.add(own["loop"]["loss"].item())
        assert len(drawn) == world and losses == {0.5}
        for place in range(5):
            assert len({numbers[place] for numbers in drawn}) == world
