"""A sample of completions, token by token: which ones are taken, and what is kept of them."""

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.selection import with_advantage

#: Bytes on disk, at most: of a recorded token (six numbers, its id, its text), and of a file.
BYTES, FILE = 32, 8192


def draw(*key: object) -> int:
    """A number drawn by a key alone: the same in every process, and after every resumption."""
    text = "/".join(map(str, key)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


@dataclass(frozen=True)
class Plan:
    """Which completions of a run are recorded; a function of its arguments, with no state.

    Of every ``every`` updates one is drawn. The first update of a generation is left out if there
    are others: the policy is still the one that sampled, so that no ratio differs from 1.

    Every drawn update has the same share of the space, and what one leaves is there for the next.

    Example:
      >>> plan = Plan(10, 8, 2**20, updates=30, per_generation=2, seed=0)
      >>> [step for step in range(30) if plan.wants(step)], plan.allowed(17)
      ([3, 13, 29], 21333)
    """

    every: int
    completions: int  # most of them from one update, over all ranks
    space: int  # most bytes over the run, of all ranks together
    updates: int  # of the run
    per_generation: float  # updates that each generation serves
    seed: int

    def wants(self, step: int) -> bool:
        """Whether completions of an update are recorded; ``step`` is the updates done before."""
        first = step - step % self.every
        block = range(first, min(first + self.every, self.updates))
        moved = [s for s in block if s % self.per_generation >= 1] or list(block)
        return moved[draw(self.seed, "update", first) % len(moved)] == step

    def allowed(self, step: int) -> int:
        """Most tokens that the run may have recorded after this update."""
        files = -(-self.updates // self.every)
        each = self.space // files - FILE
        return each * (step // self.every + 1) // BYTES

    def chosen(self, rows: list[list[int]], room: int) -> set[tuple[int, int]]:
        """Completions to record: the first in the order of their draws, while ``room`` tokens last.

        Rows are of all ranks: updates before its sampling, number in its generation, tokens.
        """
        selection: set[tuple[int, int]] = set()
        for generated, index, length in sorted(rows, key=lambda r: draw(self.seed, *r[:2])):
            room -= length
            if room < 0 or len(selection) == self.completions:
                break
            selection.add((generated, index))
        return selection


@dataclass
class TokenSampler:
    """Collects the tokens of the completions that a plan chooses, and writes them."""

    plan: Plan
    group: int  # completions of one prompt
    prompts: int  # of one generation, over all ranks
    text: Callable[[int], str]  # of a token's id
    #: Gets the update (updates done before it) and this rank's rows: columns of
    #: `trustclip.logs.tokens` by name. Not called without rows.
    write: Callable[[int, list[dict[str, Any]]], None]
    #: Of a micro-batch: ``generated``, ``index`` and tokens of each completion (none of one without
    #: signal), the rewards, and the columns, [batch, time] each.
    _parts: list[tuple[Tensor, Tensor, dict[str, Any]]] = field(default_factory=list, init=False)

    def add(
        self,
        step: int,
        inputs: Mapping[str, Any],
        batch: TokenBatch,
        surrogate: Surrogate,
        coefficient: Tensor,
    ) -> None:
        """Keep a micro-batch if its update is recorded; ``step`` is the updates done before."""
        if not self.plan.wants(step):
            return
        signal = with_advantage(batch.advantages, batch.mask)  # [batch]
        length = inputs["completion_mask"].sum(dim=1) * signal
        facts = torch.stack([inputs["generated"], inputs["sample_index"], length], dim=1)
        columns = {
            "logp": batch.logp,
            "logp_old": batch.logp_old,
            "logp_rollout": batch.logp_rollout,
            "entropy": batch.entropy,
            "advantage": batch.advantages,
            "coefficient": coefficient,
            "mask": batch.mask,
            "kept": surrogate.kept,
            "token_id": inputs["completion_ids"],
        }
        self._parts.append((facts, inputs["reward"], columns))

    def forget(self) -> None:
        """Drop the micro-batches of an abandoned update."""
        self._parts = []

    def finish(self, step: int, used: int, gather: Callable[[Tensor], Any]) -> int:
        """Write the chosen completions of the update, if it is recorded.

        ``used`` and what is returned are the tokens recorded before and by now, over all ranks;
        ``gather`` is called on every rank alike.
        """
        parts, self._parts = self._parts, []
        if not parts:
            return used
        facts = gather(torch.cat([facts for facts, _, _ in parts])).tolist()
        rows = [row for row in facts if row[2]]
        chosen = self.plan.chosen(rows, self.plan.allowed(step) - used)
        own = [row for part in parts for row in self._rows(step, chosen, *part)]
        if own:
            self.write(step, own)
        return used + sum(length for *key, length in rows if tuple(key) in chosen)

    def _rows(
        self,
        step: int,
        chosen: set[tuple[int, int]],
        facts: Tensor,
        rewards: Tensor,
        columns: dict[str, Any],
    ) -> Iterator[dict[str, Any]]:
        for place, (generated, index, length) in enumerate(facts.tolist()):
            if not length or (generated, index) not in chosen:
                continue
            row: dict[str, Any] = {
                name: values[place, :length].cpu().numpy()
                for name, values in columns.items()
                if values is not None
            }
            group = generated * self.prompts + index // self.group
            row |= {"step": step, "generated": generated, "index": index, "group": group}
            row["reward"] = rewards[place].item()
            row["token"] = [self.text(number) for number in row["token_id"].tolist()]
            yield row


def pieces(tokenizer: Any) -> Callable[[int], str]:
    """Texts of single tokens by their ids, each decoded once.

    A token that is no whole character (a byte of one) has the name that the vocabulary gives it.
    """

    @functools.cache
    def text(number: int) -> str:
        name = str(tokenizer.convert_ids_to_tokens(number))
        decoded = tokenizer.decode([number], skip_special_tokens=False)
        if name.startswith("▁") and not decoded.startswith(" "):
            decoded = " " + decoded  # SentencePiece drops the space at the beginning of a text
        return name if "�" in decoded else decoded

    return text
