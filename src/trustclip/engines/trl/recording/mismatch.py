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
    """The largest mismatches between trainer and sampler in an update's micro-batches.

    Example:
      >>> old = torch.tensor([[-1.0, -2.0]])
      >>> batch = TokenBatch(old, old, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool),
      ...                    logp_rollout=torch.tensor([[-1.0, -2.5]]))
      >>> number, mismatch = torch.tensor([5]), Mismatch()
      >>> mismatch.add({"generated": 0 * number, "sample_index": number,
      ...               "completion_ids": torch.tensor([[7, 8]])}, batch)
      >>> worst = mismatch.read(decode=lambda tokens: f"<{tokens[0]}>")["worst"]
      >>> worst[0]["position"], worst[0]["logp_rollout"], worst[0]["text"]
      (1, -2.5, '<8>')
    """

    #: Gets the tokens of the next update before its step, on every rank its own.
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
        # [tokens, columns]; NaN without a log-probability: an index by a mask would wait for a GPU.
        rows = torch.stack([c.flatten().double() for c in columns], dim=1)
        rows = rows.masked_fill(~has_rollout(batch).flatten()[:, None], torch.nan)
        # All rows are kept only for a listener, otherwise the farthest of each micro-batch.
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
        farthest = _farthest(rows[~rows[:, 0].isnan()]).tolist()
        worst = []
        for row in farthest:
            values = dict(zip(_COLUMNS, row, strict=True))
            token: dict[str, Any] = {name: int(values[name]) for name in _PLACES}
            token |= {name: round(values[name], 6) for name in _LOGPS}
            worst.append(token | {"text": decode([token["token"]])})
        return {"worst": worst}

    def _pairs(self, columns: Mapping[str, Tensor]) -> Pairs:
        keys = torch.stack([columns["generated"], columns["index"]], dim=1).long()  # [tokens, 2]
        distinct, completion = keys.unique(dim=0, return_inverse=True)
        recorded, self._sequences = self._sequences, {}
        entries = [recorded.get((generated, index)) for generated, index in distinct.tolist()]
        sequences = [ids for ids in entries if ids is not None]
        return Pairs(
            trainer=columns["logp_old"],
            sampler=columns["logp_rollout"],
            entropy=None if columns["entropy"].isnan().any() else columns["entropy"],
            position=columns["position"].long(),
            token=columns["token"].long(),
            completion=completion,
            sequences=sequences if len(sequences) == len(entries) else None,
        )


def _sequences(inputs: Mapping[str, Any]) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
    """Ids of prompt and completion, without padding, by generation and number of a sample."""
    numbers = (inputs["generated"].tolist(), inputs["sample_index"].tolist())
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    rows = zip(*numbers, *(inputs[name] for name in names), strict=True)
    return {
        (generated, index): (prompt[p_mask.bool()].tolist(), completion[c_mask.bool()].tolist())
        for generated, index, prompt, p_mask, completion, c_mask in rows
    }


def _farthest(rows: Tensor) -> Tensor:
    old, rollout = (rows[:, _COLUMNS.index(name)] for name in ("logp_old", "logp_rollout"))
    distance = (old - rollout).abs().nan_to_num(nan=-1.0)  # rows of NaN come last. [tokens]
    return rows[distance.topk(min(WORST, len(rows))).indices]
