"""Made-up files of tokens: a clip that cuts some strings more than others."""

from pathlib import Path

import numpy as np
from synthetic_runs import HOSTILE

import trustclip as tc
from trustclip.logs.tokens import TokenRow, token_batch, write_tokens

CLIP = tc.method("clip", epsilon=0.1)
STRINGS = (
    " the",
    " so",
    "\n",
    "\t",
    "  ",
    "4",
    "<think>",
    "</script>",
    "",
    "\x1b[31m",
    *HOSTILE[:6],
)


def made(count: int = 24, seed: int = 0) -> list[TokenRow]:
    """Completions of three steps; the token ``<think>`` moves far, and so is cut often."""
    random = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        length = int(random.integers(20, 60))
        words = [STRINGS[i] for i in random.integers(0, len(STRINGS), size=length)]
        old = -random.exponential(size=length)
        moved = 0.05 * random.normal(size=length)
        moved += np.array([word == "<think>" for word in words]) * random.normal(size=length)
        row = {
            "logp": np.minimum(old + moved, -1e-4),
            "logp_old": old,
            "logp_rollout": np.where(random.random(length) < 0.1, np.nan, old + 0.01),
            "entropy": -old,
            "advantage": (-1.0) ** index * (0.5 + index / count),
            "mask": random.random(length) < 0.95,
            "token_id": [STRINGS.index(word) for word in words],
            "token": words,
            "step": 10 * (index % 3),
            "generated": 10 * (index % 3) - 1,
            "index": index,
            "reward": float(index % 2),
        }
        plain = TokenRow.of(row)
        batch = token_batch([plain])
        kept = CLIP.surrogate(batch).kept[0].numpy()
        c = tc.coefficient(CLIP, batch)[0].numpy()
        rows.append(TokenRow.of({**row, "coefficient": c, "kept": kept}))
    return rows


def write(path: Path, count: int = 24) -> Path:
    """Write made-up completions to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tokens(path, made(count))
    return path
