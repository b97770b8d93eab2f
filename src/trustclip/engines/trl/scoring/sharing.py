"""One pass over each prompt of a batch, however many completions it has, and none over padding.

All tokens stand in one row: first those of the distinct prompts, then those of the completions. All
layers but attention work token by token; in attention a completion sees its prompt and itself.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

#: The name under which Transformers finds `attention`.
ATTENTION = "trustclip_shared_prompts"


@dataclass(frozen=True)
class Packed:
    """Tokens of a batch in one row of N, what each of them attends to, and where it is read.

    Places are numbers of tokens in the row, 0 where there is none.
    """

    ids: Tensor  # [1, N]
    positions: Tensor  # of each token in its own sequence. [1, N]
    prompts: Tensor  # places of the distinct prompts' tokens, padded on the left. [P, S]
    in_prompts: Tensor  # True where there is one. [P, S]
    #: Places of each completion's prompt and own tokens, where states are read, too. [B, S + T]
    keys: Tensor
    in_completions: Tensor  # True where a completion has a token of its own. [B, T]
    sees: Tensor  # which of its keys each token of a completion attends to. [B, 1, T, S + T]

    @classmethod
    def of(cls, ids: Tensor, mask: Tensor, labels: Tensor) -> "Packed | None":
        """Pack a batch; None where nothing is scored or some row has no prompt.

        All are [B, L]: mask 1 for tokens and 0 for padding, labels -100 where nothing is scored.
        """
        scored = labels != -100
        start = int(scored.any(dim=0).float().argmax())  # column of the first completion token
        mask = mask.bool()
        if not start or not scored.any() or not mask[:, :start].any(dim=1).all():
            return None
        whole = torch.where(mask[:, :start], ids[:, :start], -1)  # [B, S]
        prompts, prompt_of = whole.unique(dim=0, return_inverse=True)  # [P, S], [B]
        in_prompts = prompts >= 0
        # The last token of a completion predicts nothing: its state is not needed.
        later = scored[:, 1:].flip(1).cummax(dim=1).values.flip(1)[:, start:]
        own = mask[:, start:-1] & later  # [B, T]
        first = _number_places(in_prompts, 0)  # [P, S]
        second = _number_places(own, int(in_prompts.sum()))  # [B, T]
        keys = torch.cat([first[prompt_of], second], dim=1)  # [B, S + T]
        valid = torch.cat([in_prompts[prompt_of], own], dim=1)  # [B, S + T]
        place = valid.cumsum(dim=1) - 1
        column = torch.arange(keys.shape[1], device=ids.device)
        causal = column[start:, None] >= column  # [T, S + T]
        # Padding sees itself: a softmax over an empty row would be NaN.
        sees = (valid[:, None] & causal) | (column[start:, None] == column)  # [B, T, S + T]
        in_row = torch.cat([prompts[in_prompts], ids[:, start:-1][own]])  # [N]
        positions = (in_prompts.cumsum(dim=1) - 1)[in_prompts], place[:, start:][own]
        return cls(
            ids=in_row[None],
            positions=torch.cat(positions)[None],
            prompts=first,
            in_prompts=in_prompts,
            keys=keys,
            in_completions=own,
            sees=sees[:, None],
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """Attention of every token, all in one row; [heads, N, width] to [N, heads, width]."""
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # [N, heads, width]
        start = self.prompts.shape[1]
        causal = torch.ones(start, start, dtype=torch.bool, device=q.device).tril()
        sees = (self.in_prompts[:, None] & causal) | causal.diagonal().diag()
        of_prompts = _attend(q, k, v, self.prompts, self.prompts, sees[:, None], scale)
        own = self.keys[:, start:]
        of_completions = _attend(q, k, v, own, self.keys, self.sees, scale)
        return torch.cat([of_prompts[self.in_prompts], of_completions[self.in_completions]])


def _number_places(there: Tensor, first: int) -> Tensor:
    """Number the tokens from ``first`` on, row by row; 0 where there is none."""
    numbers = there.flatten().cumsum(dim=0).view(there.shape) - 1 + first
    return torch.where(there, numbers, 0)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor, sees: Tensor, scale: Any
) -> Tensor:
    """Attention of the tokens at ``queries`` to those at ``keys``. [rows, time, heads, width]."""

    def at(x: Tensor, places: Tensor) -> Tensor:  # [rows, heads, time, width]
        return x.index_select(0, places.flatten()).unflatten(0, places.shape).transpose(1, 2)

    qkv = (at(q, queries), at(k, keys), at(v, keys))
    y = F.scaled_dot_product_attention(*qkv, sees, scale=scale, enable_gqa=True)
    return y.transpose(1, 2)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    packed: Packed | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """SDPA as Transformers calls it; with ``packed``, of a row that holds a whole batch."""
    if packed is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    return packed.attend(query[0], key[0], value[0], scaling)[None], None


def regroup(parts: list[dict[str, Any]], window: int) -> list[dict[str, Any]]:
    """Micro-batches with the completions of a prompt together, prompts as they first come.

    ``window`` of them share their completions anew: those of an update, or all of a generation.

    Raises:
      ValueError: a tensor that has not one row for each completion, such as patches of images.
    """
    batches = []
    for start in range(0, len(parts), window):
        rows = parts[start : start + window]
        prompts = torch.cat([part["prompt_ids"] for part in rows])
        same = prompts.unique(dim=0, return_inverse=True)[1]
        order = (same[:, None] == same).int().argmax(dim=1).argsort(stable=True)
        size = len(order) // len(rows)
        for name, value in chain.from_iterable(part.items() for part in rows):
            if isinstance(value, Tensor) and value.dim() and len(value) != size:
                raise ValueError(
                    f"completions cannot be regrouped by prompt: {name!r} has {len(value)} rows "
                    f"for {size} completions. Set whole_groups and share_prompts to False."
                )
        for place, part in enumerate(rows):
            own = order[place * size : (place + 1) * size]
            batches.append({name: _take_rows([p[name] for p in rows], own) for name in part})
    return batches


def _take_rows(values: list[Any], rows: Tensor) -> Any:
    """Rows of a field of several micro-batches; a field without rows is the same in all."""
    if isinstance(values[0], Tensor) and values[0].dim():
        return torch.cat(values)[rows]
    if isinstance(values[0], list):
        items = [*chain.from_iterable(values)]
        return [items[row] for row in rows.tolist()]
    return values[0]


def share_prompts(inner: Any) -> None:
    """Make a model of Transformers take ``packed`` in its forward pass."""
    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    inner.config._attn_implementation = ATTENTION


def states(inner: Any, packed: Packed) -> Tensor:
    """Last hidden states of every position but the last. Shape [B, L - 1, hidden].

    Where no later position is scored, they are those of an arbitrary token.
    """
    output = inner.base_model(
        input_ids=packed.ids, position_ids=packed.positions, use_cache=False, packed=packed
    )
    of_tokens = output.last_hidden_state[0]  # [N, hidden]
    return of_tokens.index_select(0, packed.keys.flatten()).unflatten(0, packed.keys.shape)
