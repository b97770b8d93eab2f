"""Whether the decoder samples from the policy that the model computes: compared once a run.

The decoder knows an architecture and its weights. Hooks and modules that it does not know are seen
(`trustclip.engines.trl.additions`); a function that was replaced elsewhere shows only here.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from trustclip.engines.trl.sampling.decoding import Decoded

#: Rounding alone makes at most this mean difference of log-probabilities (nats a token).
_ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 0.1}

#: At most so many completions are compared.
_COMPARED = 4


@torch.no_grad()
def disagreement(
    trainer: Any, prompts: Sequence[Sequence[int]], decoded: Sequence[Decoded], dtype: torch.dtype
) -> str | None:
    """How a model's own pass differs from its decoder beyond rounding; None if it does not.

    A difference is warned of. Some completions are compared, in one pass of the model.
    Every rank must ask for it, and all get the same answer.
    """
    batch = min(trainer.args.per_device_train_batch_size, _COMPARED)
    prompts, decoded = prompts[:batch], decoded[:batch]
    length = max(len(one.tokens) for one in decoded)
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest + length, dtype=torch.long)
    mask, logps = torch.zeros_like(ids), torch.zeros(len(prompts), length)
    for row, (prompt, one) in enumerate(zip(prompts, decoded, strict=True)):
        place = slice(longest - len(prompt), longest + len(one.tokens))
        ids[row, place], mask[row, place] = torch.tensor([*prompt, *one.tokens]), 1
        logps[row, : len(one.tokens)] = torch.tensor(one.logps)
    scored, *_ = trainer._score(None, trainer.model, ids, mask, length, batch)
    apart = (scored.float() - logps).abs()[mask[:, longest:].bool()].mean()
    mean = trainer.accelerator.gather(apart).max().item()
    if mean <= _ROUNDING[dtype]:
        return None
    reason = f"its log-probabilities are {mean:.2g} nats a token from those of the model's own pass"
    warnings.warn(
        f"the decoder does not sample from this model: {reason}. So the model computes more than "
        "its weights say, and `generate` of Transformers samples from here on, as with "
        "decoder='transformers'.",
        stacklevel=3,
    )
    return reason
