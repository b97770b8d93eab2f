"""Parts of tensors in files: each comes back where it was."""

import errno
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from trustclip.train.durable import shards
from trustclip.train.durable.saving import Content
from trustclip.train.durable.store import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore")  # torch says that there is one process

NAMES = [["unused", "weight", "bias"]]


def trained(steps: int) -> tuple[nn.ParameterDict, torch.optim.AdamW]:
    """Weights, of which the first is never used: the optimizer keeps nothing of it."""
    torch.manual_seed(0)
    shapes = {"unused": (1,), "weight": (2, 3), "bias": (2,)}
    model = nn.ParameterDict({name: torch.rand(shape) for name, shape in shapes.items()})
    optimizer = torch.optim.AdamW([model[name] for name in shapes], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        (torch.rand(4, 3) @ model["weight"].T + model["bias"]).square().sum().backward()
        optimizer.step()
    return model, optimizer


def test_every_state_of_the_optimizer_comes_back_where_it_was(tmp_path: Path):
    model, optimizer = trained(3)
    more = {"exact": torch.full((2,), 0.1).double(), "seen": torch.tensor(2**40 + 1), "by": "hand"}
    optimizer.state[model["bias"]] |= more
    tensors, described = shards.named_tensors(dict(model), NAMES, optimizer)
    assert {f"model.{name}" for name in model} < tensors.keys()
    (tmp_path / shards.SHARDS).mkdir()
    fresh, again = trained(0)
    tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    shards.save(tmp_path, shards.copied(tensors))
    shards.load(tmp_path, shards.make_room(json.loads(json.dumps(described)), NAMES, again))
    assert fresh["unused"] not in again.state
    for name in ("weight", "bias"):
        stored, expected = again.state[fresh[name]], optimizer.state[model[name]]
        kept = {"step", "exp_avg", "exp_avg_sq"}
        assert stored.keys() == expected.keys() == kept | (more.keys() if name == "bias" else set())
        for key, value in expected.items():
            if key == "by":
                assert stored[key] == value
            else:
                assert stored[key].dtype == value.dtype and torch.equal(stored[key], value), key
        assert not torch.equal(stored["exp_avg"], stored["exp_avg_sq"])


def test_a_copy_is_left_alone_by_later_updates():
    now = {"weight": torch.ones(2)}
    copies = [shards.copied(now), Content({}, {"file": now}).copied().tensors["file"]]
    now["weight"].zero_()
    assert [copy["weight"].tolist() for copy in copies] == [[1, 1]] * 2


def test_a_state_is_made_on_the_device_that_it_was_on():
    weight = nn.Parameter(torch.empty(2, 3, device="meta"))
    optimizer = torch.optim.AdamW([weight])
    state = {"step": torch.tensor(3.0), "rows": torch.empty(2, device="meta")}
    optimizer.state[weight] = state | {"exp_avg": torch.empty(2, 3, device="meta")}
    _, described = shards.named_tensors({}, [["w"]], optimizer)
    room = shards.make_room(described, [["w"]], optimizer)
    on = {name.removeprefix("optimizer.w."): tensor.device.type for name, tensor in room.items()}
    assert on == {"step": "cpu", "rows": "meta", "exp_avg": "meta"}


def test_an_error_names_the_rank_and_keeps_its_number(tmp_path: Path):
    tensors = {"model.weight": torch.ones(2)}
    (tmp_path / shards.SHARDS).write_text("")
    with pytest.raises(OSError, match="rank 0: File exists") as error:
        shards.save(tmp_path, tensors)
    assert error.value.errno == errno.EEXIST
    (tmp_path / "empty" / shards.SHARDS).mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"rank 0: .*model\.weight"):
        shards.load(tmp_path / "empty", tensors)


def test_a_sharded_state_is_sharded_again_or_refused(tmp_path: Path):
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        whole, rows = (distribute_tensor(torch.ones(n), mesh, [Shard(0)]) for n in ((4, 2), (4,)))
        weight = nn.Parameter(whole)
        assert shards.sharded(nn.ParameterList([weight])) and not shards.sharded(nn.Linear(1, 1))
        optimizer = torch.optim.AdamW([weight])
        optimizer.state[weight] = {"exp_avg": whole}
        _, described = shards.named_tensors({}, [["w"]], optimizer)
        (made,) = shards.make_room(described, [["w"]], optimizer).values()
        part = shards.local(made)
        assert isinstance(made, DTensor) and not isinstance(part, DTensor)
        assert shards.local(part) is part
        optimizer.state[weight]["rows"] = rows
        with pytest.raises(ValueError, match=r"its rows of w is sharded .*; use .* as AdamW\.$"):
            shards.named_tensors({}, [["w"]], optimizer)
    finally:
        dist.destroy_process_group()
