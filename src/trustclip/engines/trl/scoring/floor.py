"""The noise floor of a comparison: the trainer against itself on the same tokens.

A sampler cannot be closer to the trainer than that is to itself, and what another batch, another
order of the head's sums and half precision make differs from model to model by a factor of a
hundred. So all three are measured where the model is at hand, each by one more forward pass.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from trustclip.constraints.sampler import WAYS as WAYS
from trustclip.constraints.sampler import Pairs
from trustclip.engines.trl.scoring.hidden import captured, head_of, unusual
from trustclip.head import selected_logprobs

#: So many completions are scored again, and so many form a batch.
COMPLETIONS, BATCH = 16, 8


@torch.no_grad()
def floor_of(model: nn.Module, pairs: Pairs, temperature: float = 1.0) -> dict[str, Tensor]:
    """Differences of a model's log-probabilities from themselves, for the tokens of a comparison.

    Args:
      model: a causal language model of Hugging Face, in float32, bfloat16 or float16.
      pairs: the tokens, with ``completion``, ``position`` and ``sequences``.
      temperature: of the log-probabilities.

    Returns:
      Differences by the names of `WAYS`, nats; NaN for tokens that were not scored again, and no
      entry for a way that this model does not have. Each [tokens].
    """
    if pairs.sequences is None or pairs.completion is None or pairs.position is None:
        return {}
    samples, completion = pairs.sequences[:COMPLETIONS], pairs.completion.cpu()
    covered = completion < len(samples)  # [tokens]
    place = completion[covered], pairs.position.cpu()[covered]

    def apart(logps: list[Tensor]) -> Tensor:
        """Differences of the completions' values from their first ones, as values of the tokens."""
        difference = torch.full((len(pairs.trainer),), torch.nan, dtype=torch.float64)
        difference[covered] = (pad_sequence(logps, True, torch.nan) - first)[place]
        return difference

    was_training = model.training
    model.eval()
    try:
        own, chunked = _score(model, samples, temperature, BATCH, chunks=unusual(model) is None)
        first = pad_sequence(own, True, torch.nan)  # [completions, time]
        differences = {"batch": apart(_score(model, samples, temperature, 1)[0])}
        if chunked:
            differences["head"] = apart(chunked)
        with _in_other_precision(model) as cast:
            if cast:
                differences["precision"] = apart(_score(model, samples, temperature, BATCH)[0])
    finally:
        model.train(was_training)
    return {name: d for name, d in differences.items() if d.isfinite().any()}


def _score(
    model: Any,
    samples: Sequence[tuple[Sequence[int], Sequence[int]]],
    temperature: float,
    size: int,
    *,
    chunks: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probabilities of completions, and with ``chunks`` again by the chunked head."""
    device = next(model.parameters()).device
    plain: list[Tensor] = []
    chunked: list[Tensor] = []
    for first in range(0, len(samples), size):
        part = samples[first : first + size]
        rows = [torch.tensor([*prompt, *completion]) for prompt, completion in part]
        ids = pad_sequence(rows, batch_first=True).to(device)  # [B, T]
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(device)
        states: list[Tensor] = []
        with captured(model, states) if chunks else contextlib.nullcontext():
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits  # [B, T, V]
        for row, (prompt, completion) in enumerate(part):
            tokens = torch.tensor(list(completion), device=device)
            here = slice(len(prompt) - 1, len(prompt) - 1 + len(completion))
            z = logits[row, here].float() / temperature  # [completion, V]
            plain.append(z.log_softmax(-1).gather(1, tokens[:, None])[:, 0].double().cpu())
            if chunks:
                head = head_of(model, temperature)
                logp, _ = selected_logprobs(states[0][row, here], head, tokens, entropy=False)
                chunked.append(logp.double().cpu())
    return plain, chunked


@contextlib.contextmanager
def _in_other_precision(model: nn.Module) -> Iterator[bool]:
    """The model in float32 if any of it is in half precision, else in bfloat16.

    Its own weights are kept beside the cast ones; False where there is no memory for both.
    """
    halves = (torch.bfloat16, torch.float16)
    other = torch.float32 if any(p.dtype in halves for p in model.parameters()) else torch.bfloat16
    if not _fits(model, other):
        yield False
        return
    weights = {name: p.data for name, p in model.named_parameters()}
    try:
        for p in model.parameters():
            p.data = p.data.to(other) if p.is_floating_point() else p.data
        yield True
    finally:
        for name, p in model.named_parameters():
            p.data = weights[name]


def _fits(model: nn.Module, dtype: torch.dtype) -> bool:
    """Whether a copy of the weights in a precision takes at most half of the free memory."""
    size = sum(p.numel() for p in model.parameters()) * torch.finfo(dtype).bits // 8
    device = next(model.parameters()).device
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    elif device.type == "cpu":
        import psutil

        free = psutil.virtual_memory().available
    else:
        return False
    return size <= free / 2


def with_floor(pairs: Pairs, model: nn.Module, temperature: float = 1.0) -> Pairs:
    """The comparison with its noise floor, where that can be measured; see `floor_of`."""
    try:
        return replace(pairs, floor=floor_of(model, pairs, temperature) or None)
    except (RuntimeError, AttributeError):  # memory, or an odd architecture
        return pairs
