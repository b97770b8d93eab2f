"""What a disk may hold after a power cut.

A process sees every write at once. The disk keeps only what was flushed; of the rest it may keep
anything: a write in full, in part or not at all, a file's new size without its content, a rename
without the one before it. `Disk` follows what a process did in a real folder and, when the power
is cut, rewrites that folder to one of the states that a disk is allowed to be in:

- the content of a file is safe after `fsync` of the file; until then each of its pieces may be
  missing, and holes read as zeros;
- its name is safe after `fsync` of the folder that it stands in, whatever was done to the file;
- two changes of names happen in their order if they concern the same name or the same file, and
  otherwise in any order; one rename is never half done;
- a flush that failed has lost what it should have written, even if a later one succeeds.
"""

import itertools
import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

#: A write at an offset, or the new size of a file.
Change = tuple[int, bytes | None]

_numbers = itertools.count()


class File:
    """A file: what is on the disk, what a process sees, and the changes between the two."""

    def __init__(self, durable: bytes = b"") -> None:
        self.number = next(_numbers)
        self.durable, self.now, self.pending = durable, bytearray(durable), list[Change]()

    def change(self, place: int, data: bytes | None) -> None:
        """Write at a place; without data, cut or extend the file to that size."""
        self.pending.append((place, data))
        _apply(self.now, place, data)

    def sync(self) -> None:
        content = bytearray(self.durable)
        for place, data in self.pending:
            _apply(content, place, data)
        self.durable, self.pending = bytes(content), []

    def survive(self, dice: random.Random) -> None:
        """Keep some of what was pending."""
        content, how = bytearray(self.durable), dice.choice(("all", "first", "some", "size"))
        changes = self.pending if how != "first" else _begun(self.pending, dice)
        for place, data in changes:
            if how == "size" and data is not None:  # the file has grown, its content is missing
                data = bytes(len(data))
            piece = dice.choice((1, 16, 512)) if how == "some" and data else 0
            if not piece:
                if how != "some" or dice.random() < 0.5:
                    _apply(content, place, data)
                continue
            assert data is not None
            for start in range(0, len(data), piece):
                if dice.random() < 0.5:
                    _apply(content, place + start, data[start : start + piece])
        self.durable, self.now, self.pending = bytes(content), content, []


def _begun(changes: list[Change], dice: random.Random) -> list[Change]:
    """The first few changes, the last of them torn."""
    some = changes[: dice.randrange(len(changes) + 1)]
    if some and (data := some[-1][1]) is not None:
        some[-1] = (some[-1][0], data[: dice.randrange(len(data) + 1)])
    return some


def _apply(content: bytearray, place: int, data: bytes | None) -> None:
    if data is None:
        del content[place:]
    if len(content) < place:
        content.extend(bytes(place - len(content)))
    if data:
        content[place : place + len(data)] = data


@dataclass(eq=False)
class Folder:
    """A folder: the names on the disk, and those that a process sees."""

    durable: dict[str, "Node"] = field(default_factory=dict)
    entries: dict[str, "Node"] = field(default_factory=dict)
    number: int = field(default_factory=lambda: next(_numbers))


@dataclass(eq=False)
class Link:
    """A symbolic link; the processes themselves make none."""

    target: str
    number: int = field(default_factory=lambda: next(_numbers))


Node = File | Folder | Link


class Place(NamedTuple):
    """A name in a folder."""

    folder: Folder
    name: str

    @property
    def node(self) -> Node | None:
        return self.folder.entries.get(self.name)


class Move:
    """A change of names that is done at once: the new node of each, None for none."""

    def __init__(self, changes: list[tuple[Place, Node | None]]) -> None:
        nodes = [node for place, new in changes for node in (place.node, new) if node is not None]
        self.changes = changes
        # Moves with one of these in common keep their order.
        self.keys: set[object] = {(p.folder.number, p.name) for p, _ in changes}
        self.keys |= {node.number for node in nodes}
        self.folders = [place.folder for place, _ in changes]

    def apply(self, *, durable: bool) -> None:
        for place, node in self.changes:
            names = place.folder.durable if durable else place.folder.entries
            if node is None:
                names.pop(place.name, None)
            else:
                names[place.name] = node


class Disk:
    """The disk under a real folder, which is empty at first.

    Args:
      root: the folder; a process works in it through `faults.world.World`.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.top, self._moves = root, Folder(), list[Move]()

    def place(self, path: str, start: Folder | None = None) -> Place | None:
        """Where a path leads: a name in a folder that exists; None outside of the root."""
        if start is None:
            root = str(self.root)
            if not path.startswith(root + os.sep):
                return None
            path = path[len(root) :]
        *parents, name = [part for part in path.split(os.sep) if part] or [""]
        folder: Node | None = start or self.top
        for part in parents:
            folder = folder.entries.get(part) if isinstance(folder, Folder) else None
            folder = self.followed(folder)
        return Place(folder, name) if isinstance(folder, Folder) and name else None

    def followed(self, node: Node | None) -> Node | None:
        """What a link leads to; None where that is not on this disk."""
        if not isinstance(node, Link):
            return node
        place = self.place(node.target)
        return place and place.node

    def move(self, *changes: tuple[Place, Node | None]) -> None:
        """Give names new nodes, as a process does by creating, renaming and removing."""
        move = Move([*changes])
        move.apply(durable=False)
        self._moves.append(move)

    def sync(self, node: Node) -> None:
        """Flush a file, or the names in a folder."""
        if isinstance(node, File):
            node.sync()
            return
        keys: set[object] = set()
        wanted = []
        for move in reversed(self._moves):
            if any(folder is node for folder in move.folders) or keys & move.keys:
                wanted.append(move)
                keys |= move.keys
        for move in reversed(wanted):
            move.apply(durable=True)
            self._moves.remove(move)

    def lose(self, node: Node) -> None:
        """Flush without success: what is pending will not be written, whatever comes."""
        if isinstance(node, File):
            node.pending = []

    def adopt(self) -> None:
        """Take note of what was written past Python: as never flushed."""
        self._adopt(self.root, self.top)

    def _adopt(self, path: Path, folder: Folder) -> None:
        for real in path.iterdir():
            place = Place(folder, real.name)
            if real.is_symlink():
                continue
            if real.is_dir():
                if place.node is None:
                    self.move((place, Folder()))
                assert isinstance(place.node, Folder)
                self._adopt(real, place.node)
                continue
            if place.node is None:
                self.move((place, File()))
            file, content = place.node, real.read_bytes()
            assert isinstance(file, File)
            if file.now != content:
                file.change(0, None)
                file.change(0, content)

    def settle(self) -> None:
        """Take the folder as it is, all of it flushed: long after the last process."""
        self.top, self._moves = _read(self.root), []

    def restore(self) -> None:
        """Rewrite the real folder to what a process sees."""
        _empty(self.root)
        _write(self.top, self.root)

    def cut_power(self, dice: random.Random) -> None:
        """Lose some of what was not flushed, and rewrite the real folder accordingly."""
        luck, held = dice.choice((0.0, 0.5, 0.9, 1.0)), set[object]()
        for move in self._moves:
            if move.keys & held or dice.random() >= luck:
                held |= move.keys
            else:
                move.apply(durable=True)
        self._moves = []
        self._survive(self.top, dice)
        self.restore()

    def _survive(self, folder: Folder, dice: random.Random) -> None:
        folder.entries = dict(folder.durable)
        for node in folder.entries.values():
            if isinstance(node, Folder):
                self._survive(node, dice)
            elif isinstance(node, File):
                node.survive(dice)


def _read(path: Path) -> Folder:
    nodes: dict[str, Node] = {}
    for real in path.iterdir():
        if real.is_symlink():
            nodes[real.name] = Link(os.readlink(real))
        else:
            nodes[real.name] = _read(real) if real.is_dir() else File(real.read_bytes())
    return Folder(dict(nodes), nodes)


def _empty(path: Path) -> None:
    for real in path.iterdir():
        shutil.rmtree(real) if real.is_dir() and not real.is_symlink() else real.unlink()


def _write(folder: Folder, path: Path) -> None:
    for name, node in folder.entries.items():
        if isinstance(node, Folder):
            (path / name).mkdir()
            _write(node, path / name)
        elif isinstance(node, Link):
            (path / name).symlink_to(node.target)
        else:
            (path / name).write_bytes(node.now)
