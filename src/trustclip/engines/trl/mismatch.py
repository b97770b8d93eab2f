"""The tokens on which trainer and sampler agree least, and the first completions of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.sampler import has_rollout

#: Tokens recorded of an update.
WORST = 10

#: Whole numbers of a recorded token, and its log-probabilities, nats.
_PLACES = ("generated", "index", "position", "token")
_LOGPS = ("logp", "logp_old", "logp_rollout")


@dataclass(frozen=True)
class Pairs:
    """Log-probabilities of the same tokens under the trainer and under the sampler. All [tokens].

    Args:
      trainer: under the policy in training, nats.
      sampler: as the sampler gave them, nats.
      position: place of each token in its completion, from 0.
      token: its id.
    """

    trainer: Tensor
    sampler: Tensor
    position: Tensor
    token: Tensor


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

    def add(self, inputs: Mapping[str, Any], batch: TokenBatch) -> None:
        """Add one micro-batch.

        Args:
          inputs: TRL's dictionary, with ``generated``, ``sample_index`` and ``completion_ids``.
          batch: the tokens; nothing is added where it has no ``logp_rollout``.
        """
        if batch.logp_rollout is None:
            return
        shape = batch.logp.shape
        position = torch.arange(shape[1], device=batch.logp.device)
        # [batch, time] each; float64 holds every token id exactly.
        columns = (
            *(inputs[name][:, None].expand(shape) for name in ("generated", "sample_index")),
            *(position.expand(shape), inputs["completion_ids"]),
            *(batch.logp.detach(), batch.logp_old, batch.logp_rollout),
        )
        given = has_rollout(batch)
        rows = torch.stack([c[given].double() for c in columns], dim=1)  # [tokens, columns]
        # All are kept only for a listener: of an update of millions of tokens, ten are recorded.
        self._rows.append(_farthest(rows) if self.listener is None else rows)

    def read(
        self,
        gather: Callable[[Tensor], Any] = lambda x: x,
        decode: Callable[[list[int]], str] = str,
    ) -> dict[str, list[dict[str, Any]]]:
        """The `WORST` tokens since the last call by the distance of proximal policy and sampler.

        Args:
          gather: joins a tensor's rows over ranks; called once, on every rank alike.
          decode: text of token ids.

        Returns:
          ``worst``, the worst first; nothing where the sampler gave no log-probabilities.
        """
        if not self._rows:
            return {}
        own, self._rows = torch.cat(self._rows), []
        if self.listener is not None and len(own):
            _, _, position, token, _, old, rollout = own.T
            self.listener(Pairs(old, rollout, position.long(), token.long()))
            self.listener = None
        own = _farthest(own)
        rows = gather(F.pad(own, (0, 0, 0, WORST - len(own)), value=torch.nan))  # alike on ranks
        found = _farthest(rows[~rows.isnan().any(dim=1)]).tolist()
        split = len(_PLACES)
        worst = [
            {
                **dict(zip(_PLACES, map(int, row[:split]), strict=True)),
                **dict(zip(_LOGPS, (round(x, 6) for x in row[split:]), strict=True)),
            }
            for row in found
        ]
        return {"worst": [{**token, "text": decode([token["token"]])} for token in worst]}


def _farthest(rows: Tensor) -> Tensor:
    distance = (rows[:, -2] - rows[:, -1]).abs()
    return rows[distance.topk(min(WORST, len(rows))).indices]
