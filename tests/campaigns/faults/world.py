"""File operations of a process on a `Disk`, any of which a plan lets fail.

Inside ``with World(disk, plan):`` the functions by which Python works with files (of ``os``,
``io``, ``fcntl``, safetensors and PyArrow) ask the plan before each operation below the disk's
root, and tell the disk what was done. Everything else goes on as ever. A process that has been
killed or has lost its power can do nothing any more: each further operation raises `Dead`.
"""

import builtins
import fcntl
import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

import pyarrow.parquet
import safetensors.torch

from .disk import Disk, File, Folder, Node, Place


class Dead(BaseException):
    """The process has ended: of the code that follows, nothing runs in reality."""


class Plan:
    """What happens at each operation; this one lets all of them succeed and counts them."""

    def __init__(self) -> None:
        self.count = 0
        self.dead = False
        self.pause: Callable[[], None] = lambda: None  # another thread's turn may come
        self.meanwhile: Callable[[], None] = lambda: None  # people may do something

    def before(self, kind: str) -> bool:
        """Called before an operation; may raise. True: do half of the write, then `after_half`."""
        self.pause()
        self.meanwhile()
        if self.dead:
            raise Dead
        self.count += 1
        return False

    def after_half(self) -> None:
        """Called when half of a write is done; what it returns as the number of bytes is true."""


class World:
    """The file functions of this process while it is inside ``with``.

    Args:
      disk: told of every change below its root.
      plan: asked before every operation there.
    """

    def __init__(self, disk: Disk, plan: Plan) -> None:
        self._disk, self._plan = disk, plan
        self._nodes: dict[int, Node] = {}  # by descriptor

    def __enter__(self) -> "World":
        self._stack = ExitStack()
        self._real = {name: getattr(os, name) for name in _OF_OS}
        self._open_file, self._flock = io.open, fcntl.flock
        replacements = [(os, name, getattr(self, name)) for name in _OF_OS]
        replacements += [(module, "open", self.open_file) for module in (io, builtins)]
        replacements += [(fcntl, "flock", self.flock)]
        tensors = safetensors.torch
        self._load_file = tensors.load_file
        replacements += [(tensors, "save_file", self.save_file)]
        replacements += [(tensors, "load_file", self.load_file)]
        self._write_table = pyarrow.parquet.write_table
        replacements += [(pyarrow.parquet, "write_table", self.write_table)]
        for target, name, function in replacements:
            self._stack.enter_context(mock.patch.object(target, name, function))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Work of other processes, which nothing happens to."""
        plan, self._plan = self._plan, Plan()
        try:
            yield
        finally:
            self._plan = plan

    def _place(self, path: Any, dir_fd: int | None = None) -> Place | None:
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        if dir_fd is None:
            return self._disk.place(os.path.abspath(text))
        start = self._nodes.get(dir_fd)
        return self._disk.place(text, start) if isinstance(start, Folder) else None

    @contextmanager
    def _on(self, kind: str, place: object) -> Iterator[bool]:
        """Ask the plan about an operation on a place, if there is one."""
        if place is not None:
            self._plan.before(kind)
        yield place is not None

    # -- files -------------------------------------------------------------------------------------

    def open_file(
        self, file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **more: Any
    ) -> Any:
        place = self._place(file)
        bare = mode.replace("b", "").replace("t", "")
        if place is None or isinstance(place.node, Folder):  # of those, only openers make files
            return self._open_file(file, mode, buffering, *rest, **more)
        opener = more.pop("opener", None)
        if opener is None:
            self._plan.before("read" if bare == "r" else "create")
        raw = _Raw(self, file, bare, opener)
        if opener is None:  # others call `os.open`
            self._opened(raw.fileno(), place, truncated=bare.startswith("w"))
        kind = io.BufferedReader if bare == "r" else io.BufferedWriter
        buffered = (io.BufferedRandom if "+" in bare else kind)(raw) if buffering else raw
        if "b" in mode:
            return buffered
        text = io.TextIOWrapper(buffered, *rest, **more)  # type: ignore[arg-type]
        text.mode = mode  # type: ignore[misc]
        return text

    def _opened(self, descriptor: int, place: Place, *, truncated: bool = False) -> None:
        if place.node is None:
            self._disk.move((place, File()))
        node = self._disk.followed(place.node)
        if node is None:  # a link leads elsewhere
            return
        if truncated and isinstance(node, File) and node.now:
            node.change(0, None)
        self._nodes[descriptor] = node

    def _caught_up(self, descriptor: int, node: Node) -> None:
        """Take note of what a library in another language has written into an open file."""
        with suppress(OSError):  # it may be open for writing alone
            content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            if isinstance(node, File) and node.now != content:
                node.change(0, None)
                node.change(0, content)

    def written(self, descriptor: int, data: Any, write: Callable[[Any], int], end: bool) -> int:
        """One write at the current place of a descriptor, or at the end of the file."""
        node = self._nodes.get(descriptor)
        data = bytes(data)
        if not isinstance(node, File):
            return write(data)
        half = self._plan.before("write") and len(data) > 1
        data = data[: len(data) // 2] if half else data
        place = len(node.now) if end else os.lseek(descriptor, 0, os.SEEK_CUR)
        done = write(data)
        node.change(place, data[:done])
        if half:
            self._plan.after_half()
        return done

    def resized(self, node: Node | None, size: int, resize: Callable[[], Any]) -> None:
        with self._on("truncate", node):
            resize()
        if isinstance(node, File):
            node.change(size, None)

    def released(self, descriptor: int) -> None:
        """A descriptor is being closed, which even a dead process does."""
        self._nodes.pop(descriptor, None)

    # -- functions of os ---------------------------------------------------------------------------

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        place = self._place(path, dir_fd)
        top = place is None and os.fspath(path) == str(self._disk.root)
        with self._on("create" if flags & os.O_CREAT else "read", place or (top or None)):
            descriptor = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        if place is not None:
            self._opened(descriptor, place, truncated=bool(flags & os.O_TRUNC))
        elif top:
            self._nodes[descriptor] = self._disk.top
        return descriptor

    def close(self, fd: int) -> None:
        self.released(fd)
        self._real["close"](fd)

    def write(self, fd: int, data: Any) -> int:
        return self.written(fd, data, lambda part: self._real["write"](fd, part), end=False)

    def fsync(self, fd: Any) -> None:
        descriptor = fd if isinstance(fd, int) else fd.fileno()
        node = self._nodes.get(descriptor)
        if node is None:  # a folder above the disk, which is safe
            return
        self._caught_up(descriptor, node)
        try:
            self._plan.before("fsync")  # the real one would only cost time
        except OSError:
            self._disk.lose(node)
            raise
        self._disk.sync(node)

    def ftruncate(self, fd: int, length: int) -> None:
        self.resized(self._nodes.get(fd), length, lambda: self._real["ftruncate"](fd, length))

    def truncate(self, path: Any, length: int) -> None:
        place = self._place(path)
        real = self._real["truncate"]
        self.resized(place and place.node, length, lambda: real(path, length))

    def rename(self, src: Any, dst: Any, **directories: Any) -> None:
        old, new = self._place(src), self._place(dst)
        with self._on("rename", old):
            self._real["rename"](src, dst, **directories)
        if old is not None and new is not None:
            self._disk.move((old, None), (new, old.node or File()))

    replace = rename

    def _removed(self, name: str, path: Any, dir_fd: int | None) -> None:
        place = self._place(path, dir_fd)
        with self._on(name, place):
            self._real[name](path, dir_fd=dir_fd)
        if place is not None:
            self._disk.move((place, None))

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._removed("unlink", path, dir_fd)

    remove = unlink

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._removed("rmdir", path, dir_fd)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        place = self._place(path, dir_fd)
        with self._on("mkdir", place):
            self._real["mkdir"](path, mode, dir_fd=dir_fd)
        if place is not None:
            self._disk.move((place, Folder()))

    def chmod(self, path: Any, mode: int, **more: Any) -> None:
        with self._on("chmod", self._place(path)):
            self._real["chmod"](path, mode, **more)

    def listdir(self, path: Any = ".") -> list[Any]:
        with self._on("list", self._place(path)):
            return self._real["listdir"](path)

    def scandir(self, path: Any = ".") -> Any:
        with self._on("list", self._place(path)):
            return self._real["scandir"](path)

    # -- functions of others, which write in other languages ---------------------------------------

    def flock(self, fd: Any, operation: int) -> None:
        descriptor = fd if isinstance(fd, int) else fd.fileno()
        with self._on("flock", self._nodes.get(descriptor)):
            self._flock(fd, operation)

    def save_file(self, tensors: Any, filename: Any, metadata: Any = None) -> None:
        content = safetensors.torch.save(tensors, metadata)
        with self.open_file(filename, "wb") as file:
            file.write(content)

    def write_table(self, table: Any, where: Any, **options: Any) -> None:
        content = io.BytesIO()
        self._write_table(table, content, **options)
        with self.open_file(where, "wb") as file:
            file.write(content.getvalue())

    def load_file(self, filename: Any, device: Any = "cpu") -> Any:
        with self._on("mmap", self._place(filename)):
            return self._load_file(filename, device)


_OF_OS = (
    "open", "close", "write", "fsync", "ftruncate", "truncate", "rename", "replace", "unlink",
    "remove", "rmdir", "mkdir", "chmod", "listdir", "scandir",
)  # fmt: skip


class _Raw(io.FileIO):
    """An open file below the root."""

    def __init__(self, world: World, path: Any, mode: str, opener: Any = None) -> None:
        self._world = world
        super().__init__(path, mode, opener=opener)

    def write(self, data: Any) -> int:  # type: ignore[override]
        end = self.mode.startswith("a")
        return self._world.written(self.fileno(), data, super().write, end)

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        node = self._world._nodes.get(self.fileno())
        self._world.resized(node, size, lambda: super(_Raw, self).truncate(size))
        return size

    def close(self) -> None:
        if not self.closed:
            self._world.released(self.fileno())
        super().close()
