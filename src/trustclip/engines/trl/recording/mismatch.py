"""The tokens on which trainer and sampler agree least, and the first completions of a run."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.sampler import Pairs, has_rollout

#: Tokens recorded of an update.
WORST = 10

#: Whole numbers of a recorded token, and its log-probabilities, nats.
_PLACES = ("generated", "index", "position", "token")
_LOGPS = ("logp", "logp_old", "logp_rollout")
#: All that is kept of a token. float64 holds every id exactly.
_COLUMNS = (*_PLACES, *_LOGPS, "entropy")


class Mismatch:
    """What an update's micro-batches say about the sampler, apart from means.

    Example:
      >>> old = torch.tensor([[-1.0, -2.0]])
      >>> batch = TokenBatch(old, old, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool),
      ...                    logp_rollout=torch.tensor([[-1.0, -2.5]]))
      >>> number, seen = torch.tensor([5]), Mismatch()
      >>> seen.add({"generated": 0 * number, "sample_index": number,
      ...           "completion_ids": torch.tensor([[7, 8]])}, batch)
      >>> worst = seen.read(decode=lambda tokens: f"<{tokens[0]}>")["worst"]
      >>> worst[0]["position"], worst[0]["logp_rollout"], worst[0]["text"]
      (1, -2.5, '<8>')
    """

    #: Gets the tokens of the next update before it is made, on every rank those of its own.
    listener: Callable[[Pairs], None] | None = None

    def __init__(self) -> None:
        self._rows: list[Tensor] = []  # of a token: its places, then its log-probabilities
        self._sequences: dict[tuple[int, int], tuple[list[int], list[int]]] = {}

    def add(self, inputs: Mapping[str, Any], batch: TokenBatch) -> None:
        """Add a micro-batch of TRL's; nothing is added where it has no ``logp_rollout``."""
        if batch.logp_rollout is None:
            return
        shape = batch.logp.shape
        position = torch.arange(shape[1], device=batch.logp.device)
        entropy = batch.logp * torch.nan if batch.entropy is None else batch.entropy
        columns = (  # [batch, time] each
            *(inputs[name][:, None].expand(shape) for name in ("generated", "sample_index")),
            *(position.expand(shape), inputs["completion_ids"]),
            *(batch.logp.detach(), batch.logp_old, batch.logp_rollout, entropy.detach()),
        )
        # [tokens, columns]; NaN where nothing was given, since an index by a mask waits for a GPU.
        rows = torch.stack([c.flatten().double() for c in columns], dim=1)
        rows = rows.masked_fill(~has_rollout(batch).flatten()[:, None], torch.nan)
        # All are kept only for a listener: of an update of millions of tokens, ten are recorded.
        self._rows.append(_farthest(rows) if self.listener is None else rows)
        if self.listener is not None and "prompt_ids" in inputs:
            self._sequences |= _sequences(inputs)

    def forget(self) -> None:
        """Drop the micro-batches since the last call of `read`."""
        self._rows, self._sequences = [], {}

    def read(
        self,
        gather: Callable[[Tensor], Any] = lambda x: x,
        decode: Callable[[list[int]], str] = str,
    ) -> dict[str, list[dict[str, Any]]]:
        """The `WORST` tokens since the last call by the distance of proximal policy and sampler.

        ``gather`` joins a tensor's rows over ranks, and is called once, on every rank alike;
        ``decode`` gives the text of token ids.

        Returns:
          ``worst``, the worst first; nothing where the sampler gave no log-probabilities.
        """
        if not self._rows:
            return {}
        own, self._rows = torch.cat(self._rows), []
        if (listener := self.listener) is not None:
            own = own[~own[:, 0].isnan()]
        if listener is not None and len(own):
            self.listener = None
            listener(self._pairs(dict(zip(_COLUMNS, own.T, strict=True))))
        own = _farthest(own)
        rows = gather(F.pad(own, (0, 0, 0, WORST - len(own)), value=torch.nan))  # alike on ranks
        found = _farthest(rows[~rows[:, 0].isnan()]).tolist()
        worst = []
        for row in found:
            told = dict(zip(_COLUMNS, row, strict=True))
            token: dict[str, Any] = {name: int(told[name]) for name in _PLACES}
            token |= {name: round(told[name], 6) for name in _LOGPS}
            worst.append(token | {"text": decode([token["token"]])})
        return {"worst": worst}

    def _pairs(self, told: Mapping[str, Tensor]) -> Pairs:
        of = torch.stack([told["generated"], told["index"]], dim=1).long()
        which, completion = of.unique(dim=0, return_inverse=True)
        kept, self._sequences = self._sequences, {}
        named = [kept.get((generated, index)) for generated, index in which.tolist()]
        sequences = [ids for ids in named if ids is not None]
        return Pairs(
            trainer=told["logp_old"],
            sampler=told["logp_rollout"],
            entropy=None if told["entropy"].isnan().any() else told["entropy"],
            position=told["position"].long(),
            token=told["token"].long(),
            completion=completion,
            sequences=sequences if len(sequences) == len(named) else None,
        )


def _sequences(inputs: Mapping[str, Any]) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
    """Ids of prompt and completion, without padding, by generation and number of a sample."""
    numbers = (inputs["generated"].tolist(), inputs["sample_index"].tolist())
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    rows = zip(*numbers, *(inputs[name] for name in names), strict=True)
    return {
        (generated, index): (prompt[asked.bool()].tolist(), completion[answered.bool()].tolist())
        for generated, index, prompt, asked, completion, answered in rows
    }


def _farthest(rows: Tensor) -> Tensor:
    old, rollout = (rows[:, _COLUMNS.index(name)] for name in ("logp_old", "logp_rollout"))
    distance = (old - rollout).abs().nan_to_num(nan=-1.0)  # a row of none comes last
    return rows[distance.topk(min(WORST, len(rows))).indices]
