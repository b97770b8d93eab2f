"""What one rank puts into a checkpoint: taken at the update, written then or later."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from trustclip.durable import shards, states
from trustclip.durable.ranks import Ranks
from trustclip.durable.store import Listed, listed

Tensors = dict[str, Tensor]


@dataclass
class Content:
    """Files of one rank, and its parts of what all ranks hold together."""

    texts: dict[str, str] = field(default_factory=dict)  # files of text, by name
    tensors: dict[str, Tensors] = field(default_factory=dict)  # safetensors files, by name
    shards: Tensors | None = None  # parts of tensors, for `shards.save`; None where none is sharded

    def state(self, name: str, value: Any) -> None:
        """Add nested state, to be read by `states.load`."""
        tensors, packed = states.pack(value, name)
        self.texts[f"{name}.json"] = json.dumps(packed, allow_nan=False)
        if tensors:
            self.tensors[f"{name}.safetensors"] = tensors

    def copied(self) -> "Content":
        """The same in CPU memory of its own, which later updates leave alone."""
        return Content(
            self.texts,
            {file: {n: _copied(t) for n, t in held.items()} for file, held in self.tensors.items()},
            None if self.shards is None else shards.copied(self.shards),
        )

    @property
    def bytes(self) -> int:
        held = [tensor for tensors in self.tensors.values() for tensor in tensors.values()]
        held += map(shards.local, (self.shards or {}).values())
        return sum(tensor.nbytes for tensor in held)

    def write(self, folder: Path, ranks: Ranks) -> dict[str, Listed]:
        """Write into a checkpoint's folder, on every rank, and to the disk; lists all files."""
        found = ranks.everyone(lambda: self.write_own(folder))
        if self.shards is not None:
            parts = self.shards
            ranks.everyone(lambda: shards.save(folder, parts, ranks.group))
            # Not by the rank that wrote: torch alone knows which file that was.
            files = sorted((folder / shards.SHARDS).iterdir())[ranks.rank :: ranks.world]
            found += ranks.everyone(lambda: listed(folder, files))
        return {name: entry for of_rank in found for name, entry in of_rank.items()}

    def write_own(self, folder: Path) -> dict[str, Listed]:
        """Write the files of this rank alone, and to the disk."""
        from safetensors.torch import save_file

        for name, text in self.texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        for name, tensors in self.tensors.items():
            plain = {key: tensor.contiguous() for key, tensor in tensors.items()}
            save_file(plain, folder / name, metadata={"format": "pt"})
        return listed(folder, [folder / name for name in (*self.texts, *self.tensors)])


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()
