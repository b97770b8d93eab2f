"""Ranks of a job and threads that write in the background, as threads that take turns.

One thread runs at a time. At every file operation, and wherever one waits for another, a seed draws
which goes on: the same seed plays the same order. The ranks meet in a store and in collective calls
that are lists in memory; each has random numbers of its own.
"""

import itertools
import pickle
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

from trustclip.logs.writing import run as writing
from trustclip.support import lock
from trustclip.train.durable import ranks, saving

from .world import Dead, Plan


class PeerLostError(RuntimeError):
    """What a collective call fails with when another rank has ended."""


class Task:
    """A thread: of a rank, and what it waits for."""

    def __init__(self, rank: int) -> None:
        self.rank, self.done, self.gate = rank, False, threading.Lock()
        self.gate.acquire()
        self.ready: Callable[[], bool] = lambda: True
        self.result: Any = None


class Turns:
    """The threads of one job.

    Args:
      world: number of ranks; the first one is the thread that calls.
      dice: who goes on, and how often another one does.
      plan: of the job's operations.
    """

    def __init__(self, world: int, dice: random.Random, plan: Plan) -> None:
        self.world, self._dice, self._plan = world, dice, plan
        self._often = dice.choice((0.02, 0.1, 0.4))
        self._main = self._current = Task(0)
        self._tasks = [self._main]
        self._random: dict[int, Any] = {}
        self._errors: list[BaseException] = []
        self._calls: dict[Any, list[dict[int, bytes]]] = defaultdict(list)
        self._made: dict[Any, int] = defaultdict(int)

    def run(self, work: Callable[[], bool]) -> bool:
        """Let every rank do its work; true if all of it is finished.

        Raises:
          BaseException: the first failure of any rank.
        """
        self._plan.pause = self.pause
        finished = False
        with self._patched():
            others = [self._start(rank, work) for rank in range(1, self.world)]
            try:
                finished = work()
            except BaseException as error:
                self._errors.append(error)
            try:  # the others finish, or give up where they need a rank that has ended
                self.wait(lambda: all(task.done for task in others))
            except BaseException as error:
                self._errors.append(error)
            self._end()
        if self._errors:
            raise self._errors[0]
        return finished and all(task.result for task in others)

    def _end(self) -> None:
        """End what is left of the job: a process takes its threads with it."""
        self._plan.dead, before = True, self._plan.dead
        while left := [task for task in self._tasks if not task.done and task is not self._main]:
            self._to(left[0])
        self._plan.dead = before

    def _start(self, rank: int, work: Callable[[], Any]) -> Task:
        task = Task(rank)

        def play() -> None:
            task.gate.acquire()
            try:
                if not self._plan.dead:
                    task.result = work()
            except BaseException as error:
                self._errors.append(error)
            task.done = True
            self._give(self._next() or self._main)

        self._tasks.append(task)
        threading.Thread(target=play, daemon=True).start()
        return task

    # -- whose turn it is --------------------------------------------------------------------------

    def pause(self) -> None:
        """Perhaps let another thread go on."""
        if len(self._tasks) > 1 and self._dice.random() < self._often:
            self.wait(lambda: True, polite=True)

    def wait(self, ready: Callable[[], bool], *, polite: bool = False) -> None:
        """Let others go on until something has come true.

        Raises:
          PeerLostError: it never will, since another rank has ended.
        """
        own = self._current
        own.ready = ready
        while polite or not ready():
            polite = False
            if self._plan.dead:
                raise Dead
            task = self._next()
            if task is None:
                if not self._errors:
                    raise AssertionError("all threads wait for one another")
                raise PeerLostError("gloo/transport/tcp/pair: connection closed by peer")
            self._to(task)
        own.ready = lambda: True
        if self._plan.dead:
            raise Dead

    def _next(self) -> Task | None:
        alive = [task for task in self._tasks if not task.done]
        if self._plan.dead:
            return self._main
        able = [task for task in alive if task.ready()]
        if not able and self._current.done and alive:  # somebody has to notice
            return alive[0]
        return self._dice.choice(able) if able else None

    def _to(self, task: Task) -> None:
        own = self._current
        if task is not own:
            self._give(task)
            own.gate.acquire()

    def _give(self, task: Task) -> None:
        if self.world > 1 and task.rank != self._current.rank:
            self._random[self._current.rank] = _numbers()
            if task.rank in self._random:
                _set_numbers(self._random[task.rank])
        self._current = task
        task.gate.release()

    # -- what the product meets instead of torch.distributed and its store -------------------------

    def rank(self) -> int:
        """Of the thread that runs."""
        return self._current.rank

    def all_gather_object(self, found: list[Any], value: Any, group: Any = None) -> None:
        call = self._meeting(("gather", group))
        call[self.rank()] = pickle.dumps(value)
        self.wait(lambda: len(call) == self.world)
        found[:] = [pickle.loads(call[rank]) for rank in range(self.world)]

    def _meeting(self, kind: Any) -> Any:
        """The meeting of a kind that is this rank's next one."""
        number, calls = self._made[kind, self.rank()], self._calls[kind]
        self._made[kind, self.rank()] += 1
        while len(calls) <= number:
            calls.append({})
        return calls[number]

    def new_group(self, **_: Any) -> Any:
        self._made["groups", self.rank()] += 1
        return f"group {self._made['groups', self.rank()]}"

    def thread(self, target: Callable[[], None], **_: Any) -> Any:
        """In the place of `threading.Thread`."""
        started: list[Task] = []
        return SimpleNamespace(
            start=lambda: started.append(self._start(self.rank(), target)),
            join=lambda *_: self.wait(lambda: started[0].done),
            is_alive=lambda: bool(started) and not started[0].done,
        )

    @contextmanager
    def _patched(self) -> Iterator[None]:
        meet = {"all_gather_object": self.all_gather_object, "new_group": self.new_group}
        dist = SimpleNamespace(**meet, is_available=lambda: False)  # no roll is called
        patches: list[Any] = [
            mock.patch.object(saving, "threading", SimpleNamespace(Thread=self.thread)),
            mock.patch.object(saving, "dist", dist),
            mock.patch.object(ranks, "dist", dist),
        ]
        if self.world > 1:
            store, numbers = _Store(), defaultdict(itertools.count)
            calls = _Each(lambda: next(numbers[self.rank()]))
            atexit = SimpleNamespace(register=lambda *_: None, unregister=lambda *_: None)
            meeting = {"_store": lambda: store, "_calls": calls, "atexit": atexit}
            meeting |= {"rank": self.rank, "world": lambda: self.world}
            time = SimpleNamespace(sleep=lambda _: self.wait(lambda: True, polite=True))
            patches += [
                mock.patch.multiple(ranks, time=time, **meeting),
                mock.patch.object(lock, "rank", self.rank),
                mock.patch.object(writing, "rank", self.rank),
            ]
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            yield


class _Each:
    """An iterator, by a function."""

    def __init__(self, value: Callable[[], int]) -> None:
        self._value = value

    def __next__(self) -> int:
        return self._value()


class _Store:
    """The store by which ranks find each other."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self._values[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def get(self, key: str) -> bytes:
        return self._values[key]


def _numbers() -> Any:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_numbers(state: Any) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])
