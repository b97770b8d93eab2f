"""Parts of tensors in files: each comes back where it was."""

import warnings
from pathlib import Path

import torch
from torch import nn

from trustclip.train.durable import shards


def trained(steps: int) -> tuple[nn.Linear, torch.optim.AdamW]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.rand(4, 3)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def test_every_state_of_the_optimizer_comes_back_where_it_was(tmp_path: Path):
    model, optimizer = trained(3)
    names = [["weight", "bias"]]
    tensors, described = shards.named_tensors(dict(model.named_parameters()), names, optimizer)
    (tmp_path / shards.SHARDS).mkdir()
    fresh, again = trained(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that there is one process
        shards.save(tmp_path, {name: tensor.detach() for name, tensor in tensors.items()})
        shards.load(tmp_path, shards.make_room(described, names, again))
    for new, old in zip(fresh.parameters(), model.parameters(), strict=True):
        stored, expected = again.state[new], optimizer.state[old]
        assert stored.keys() == expected.keys() == {"step", "exp_avg", "exp_avg_sq"}
        for key, value in expected.items():
            assert torch.equal(stored[key], value), key
        assert not torch.equal(stored["exp_avg"], stored["exp_avg_sq"])
