"""How far sampler and trainer are apart with a real model: precisions, rounding, stale weights.

``python benchmarks/sampler_pairs.py MODEL FOLDER [PROMPTS]`` samples completions of small sums with
Transformers' `generate` as a sampler would (its precision, its weights), scores them in one pass as
a trainer would, writes each pair to ``FOLDER`` for ``trustclip doctor --sampler`` and prints a
table.
"""

import copy
import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trustclip.constraints.sampler import Pairs
from trustclip.engines.trl.sampling.sampled import with_logps
from trustclip.engines.trl.scoring.floor import floor_of
from trustclip.findings.mismatch.agreement import TITLES, compare
from trustclip.logs.pairs import read_pairs as read

PROMPTS, TOKENS, ROWS = 48, 80, 16
#: An engine that loses its cache keeps so many tokens of context, in blocks of so many.
CONTEXT, BLOCK = 64, 16


def prompts(tokenizer: Any, number: int) -> list[str]:
    """Chats that ask for sums, as text."""
    r = random.Random(3)
    questions = [
        f"{r.choice(['What is', 'Compute', 'Tell me'])} {r.randint(2, 99)} {r.choice('+-*')} "
        f"{r.randint(2, 99)}? Explain each step."
        for _ in range(number)
    ]
    chats = [[{"role": "user", "content": text}] for text in questions]
    return [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        for chat in chats
    ]


@torch.no_grad()
def sample(
    model: Any, tokenizer: Any, number: int, **options: Any
) -> list[tuple[list[int], list[int], Any]]:
    """(prompt, completion, log-probabilities) of each."""
    torch.manual_seed(0)
    samples = []
    texts = prompts(tokenizer, number)
    for first in range(0, len(texts), ROWS):
        batch = tokenizer(texts[first : first + ROWS], return_tensors="pt", padding=True)
        settings = copy.deepcopy(model.generation_config)
        settings.update(do_sample=True, max_new_tokens=TOKENS, temperature=1.0, top_k=0, top_p=1.0)
        settings.update(**options)

        def completions(
            batch: Any = batch, settings: Any = settings
        ) -> tuple[list[list[int]], None]:
            ids = model.generate(**batch, generation_config=settings)
            rows, ends = ids[:, batch["input_ids"].shape[1] :].tolist(), tokenizer.eos_token_id
            return [row[: row.index(ends) + 1] if ends in row else row for row in rows], None

        rows, logps, _ = with_logps(model, completions)
        whole = zip(batch["input_ids"], batch["attention_mask"], strict=True)
        starts = [ids[mask.bool()].tolist() for ids, mask in whole]
        samples += zip(starts, rows, logps, strict=True)
    return samples


@torch.no_grad()
def score(model: Any, samples: list[Any], file: Path, temperature: float = 1.0) -> None:
    """Write a pair: the sampler's log-probabilities beside the model's, and its entropy."""
    floor = noise_floor(model, samples, temperature)
    with file.open("w") as out:
        for i, (prompt, completion, logps) in enumerate(samples):
            z = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
            logp = (z.float() / temperature).log_softmax(-1)  # [time, vocabulary]
            own = logp.gather(1, torch.tensor(completion)[:, None])[:, 0]
            entropy = -(logp.exp() * logp).sum(-1)
            row = {"logp_old": own, "logp_rollout": logps, "entropy": entropy, "tokens": completion}
            row |= {f"floor_{way}": d[i] for way, d in floor.items()}
            plain = {n: v.tolist() if torch.is_tensor(v) else v for n, v in row.items()}
            out.write(json.dumps(plain) + "\n")


def noise_floor(model: Any, samples: list[Any], temperature: float) -> dict[str, list[Any]]:
    """The noise floor, by completion; None for tokens without a measurement."""
    lengths = [len(completion) for _, completion, _ in samples]
    tokens = sum(lengths)
    pairs = Pairs(
        torch.zeros(tokens),
        torch.zeros(tokens),
        position=torch.cat([torch.arange(n) for n in lengths]),
        completion=torch.arange(len(samples)).repeat_interleave(torch.tensor(lengths)),
        sequences=[(prompt, completion) for prompt, completion, _ in samples],
    )
    floor = floor_of(model, pairs, temperature)
    return {
        way: [[x if math.isfinite(x) else None for x in part.tolist()] for part in d.split(lengths)]
        for way, d in floor.items()
    }


def quantise(model: Any, bits: int) -> Any:
    """Weights rounded to ``2^bits - 1`` levels, each row with its own scale."""
    quantised, most = copy.deepcopy(model), 2 ** (bits - 1) - 1
    with torch.no_grad():
        for p in quantised.parameters():
            if p.dim() == 2:
                scale = p.abs().amax(1, keepdim=True).clamp(min=1e-9) / most
                p.copy_((p / scale).round() * scale)
    return quantised


@torch.no_grad()
def short_of_context(model: Any, samples: list[Any]) -> list[Any]:
    """The samples as an engine reports them whose cache has lost all but the last few tokens."""
    reports = []
    for prompt, completion, _ in samples:
        ids, logps = prompt + completion, []
        for start in range(len(prompt), len(ids), BLOCK):
            first = max(start - CONTEXT, 0)
            z = model(torch.tensor([ids[first : start + BLOCK]])).logits[0, start - first - 1 : -1]
            part = torch.tensor(ids[start : start + BLOCK])
            logps += z.float().log_softmax(-1).gather(1, part[:, None])[:, 0].tolist()
        reports.append((prompt, completion, logps))
    return reports


def other_prompt(samples: list[Any], tokenizer: Any) -> list[Any]:
    """The samples, whose prompts the trainer reads without the system message."""
    turn = tokenizer.convert_tokens_to_ids("<|im_start|>")
    others = []
    for prompt, completion, reported in samples:
        second = [i for i, token in enumerate(prompt) if token == turn][1]
        others.append((prompt[second:], completion, reported))
    return others


def train(model: Any, samples: list[Any], updates: int, rate: float) -> Any:
    """The weights after updates of AdamW that make some of the samples likelier, others less."""
    policy = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=rate, weight_decay=0.0)
    for update in range(updates):
        for i in range(8):
            prompt, completion, _ = samples[(8 * update + i) % len(samples)]
            ids = torch.tensor([prompt + completion])
            logp = policy(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            own = logp.gather(1, torch.tensor(completion)[:, None]).mean()
            (own if i % 2 else -own).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return policy


def line(name: str, file: Path) -> str:
    """The row of the table."""
    pairs = read(file)
    d = (pairs.trainer - pairs.sampler).double()
    size = d.abs()
    q = size.quantile(torch.tensor([0.5, 0.95, 0.99], dtype=torch.float64)).tolist()
    outside = ((d.exp() < 0.9) | (d.exp() > 1.1)).double().mean().item()
    verdict = compare(pairs)
    numbers = [size.mean(), d.mean(), d.std(), *q, size.max()]
    cells = [f"{float(x):.2g}" for x in numbers]
    cells += [
        f"{100 * outside:.1f} %",
        f"{TITLES[verdict.name]}; {'stop' if verdict.troubles else 'go on'}",
    ]
    return f"| {name} | {len(d):,} | " + " | ".join(cells) + " |"


def main(path: str, folder: Path, number: int = PROMPTS) -> None:
    """Make the missing pairs, and print all."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    full = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    half = copy.deepcopy(full).to(torch.bfloat16)  # type: ignore[arg-type]
    cache: dict[str, Any] = {}

    def samples(name: str, model: Callable[[], Any], **options: Any) -> Any:
        if name not in cache:
            cache[name] = sample(model(), tokenizer, number, **options)
        return cache[name]

    def of_full() -> Any:
        return samples("full", lambda: full)

    def of_half() -> Any:
        return samples("half", lambda: half)

    def stale(updates: int, rate: float) -> Callable[[Path], None]:
        return lambda file: score(train(full, of_full(), updates, rate), of_full(), file)

    def other(model: Callable[[], Any], **options: Any) -> Callable[[Path], None]:
        return lambda file: score(full, sample(model(), tokenizer, number, **options), file)

    plan: dict[str, Callable[[Path], None]] = {
        "float32 / float32": lambda file: score(full, of_full(), file),
        "bfloat16 / float32": lambda file: score(full, of_half(), file),
        "bfloat16 / bfloat16": lambda file: score(half, of_half(), file),
        "float32 / bfloat16": lambda file: score(half, of_full(), file),
        "8-bit weights / float32": other(lambda: quantise(full, 8)),
        "1 update at 1e-6 older": stale(1, 1e-6),
        "4 updates at 1e-6 older": stale(4, 1e-6),
        "4 updates at 1e-5 older": stale(4, 1e-5),
        "16 updates at 1e-5 older": stale(16, 1e-5),
        "4-bit weights / float32": other(lambda: quantise(full, 4)),
        "bfloat16, top-p 0.9": other(lambda: half, top_p=0.9),
        "bfloat16, cache of 64 tokens": lambda file: score(
            full, short_of_context(half, of_half()), file
        ),
        "bfloat16, another prompt": lambda file: score(
            full, other_prompt(of_half(), tokenizer), file
        ),
        "bfloat16, temperature 0.8": other(lambda: half, temperature=0.8),
    }
    print("| sampler / trainer | tokens | mean abs d | mean d | sd | median | p95 | p99 | largest |"
          " outside [0.9, 1.1] | doctor |")  # fmt: skip
    print("|---|" + "---:|" * 9 + "---|")
    for name, make in plan.items():
        file = folder / (name.translate(str.maketrans({"/": "-", " ": "_"})) + ".jsonl")
        if not file.exists():
            make(file)
        print(line(name, file), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
