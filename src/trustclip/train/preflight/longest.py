"""The longest batch that training can encounter, found in its data and run once."""

import gc
import math
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.console import Console

from trustclip.train.evaluation.backends.local import prompt_ids
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.prompts import PromptStyle, messages, tokens_of
from trustclip.train.settings.stages import Recipe, RLStage

#: On a CPU the longest batch is run only if it is expected to take less, in seconds.
PATIENCE = 120.0
#: Share of a bare product's rate that sampling and updates reach together, as measured with SmolLM2
#: (benchmarks/RESULTS.md): good to a factor of two, which tells minutes from hours.
_REACHED = 0.5


@dataclass(frozen=True)
class Longest:
    """Problems with the longest prompts of a data set, and the tokens of the longest one."""

    problems: tuple[Problem, ...]
    tokens: int


def longest(problems: Sequence[Problem], tokenizer: Any, settings: RLStage) -> Longest:
    """Find the problems with the longest prompts, as many as one generation takes."""
    count = max(1, settings.samples // settings.num_generations)

    # Only what is long in characters can be long in tokens; tokenising everything takes minutes.
    candidates = sorted(problems, key=lambda problem: -len(problem.problem))[: 4 * count + 64]
    lengths = [tokens_of(tokenizer, problem, settings.style) for problem in candidates]
    ranked = sorted(((length, n) for n, length in enumerate(lengths)), reverse=True)
    return Longest(tuple(candidates[n] for _, n in ranked[:count]), ranked[0][0])


@lru_cache(maxsize=2)
def model_shape(name: str, style: PromptStyle) -> tuple[Any, Any]:
    """Configuration and tokenizer of a model, without its weights; a dry run needs them often."""
    from trustclip.train.models import check_tokenizer, load_tokenizer, model_config

    config, tokenizer = model_config(name), load_tokenizer(name, style)
    check_tokenizer(tokenizer, config, name)
    return config, tokenizer


def run_longest(recipe: Recipe, console: Console, hardest: Longest) -> int:
    """Generate and train once on the longest possible batch, and report its peak memory.

    The longest prompts, every completion forced to its limit, two updates: the optimizer's moments
    exist from the second one on. With vLLM the completions are synthetic, and its own memory is
    not measured.

    Returns:
      0, or 1 when memory ran out.
    """
    import torch

    if not torch.cuda.is_available() and (reason := _too_much(recipe, hardest)):
        console.print(f"longest batch: not run. {reason}", highlight=False, markup=False)
        return 0
    start = time.monotonic()
    try:
        used = _peak_bytes(lambda: _train_once(recipe, hardest))
    except (torch.OutOfMemoryError, MemoryError) as error:
        reason = str(error).partition("\n")[0]
        console.print(f"longest batch: OUT OF MEMORY. {reason}", highlight=False, markup=False)
        return 1
    line = f"longest batch: {used / 2**30:.3g} GiB at the peak, two updates in"
    seconds = time.monotonic() - start
    console.print(f"{line} {seconds:.0f} s.", highlight=False, markup=False)
    if not torch.cuda.is_available():
        console.print(
            "On a CPU the peak is that of the whole process; libraries dominate small models."
        )
    return 0


def _too_much(recipe: Recipe, hardest: Longest) -> str | None:
    """Reason not to run the longest batch on this CPU; None to run it."""
    import psutil
    import torch

    from trustclip.train.models import precision

    config, _ = model_shape(recipe.model, recipe.rl.style)
    weights = weights_of(config)
    # The weights, and where all are trained their gradients and two moments.
    kind = precision(recipe.dtype)
    least = weights * kind.itemsize * (1 if recipe.rl.lora_r else 4)
    free = psutil.virtual_memory().available
    if least > free:
        return f"It needs more than {least / 2**30:.3g} GiB, and {free / 2**30:.3g} GiB are free."
    settings = recipe.rl
    length = hardest.tokens + settings.max_completion_length
    update = settings.per_device_train_batch_size * settings.gradient_accumulation_steps
    # Two operations per weight and token forward, four backward. Attention multiplies the states
    # of all earlier tokens, half the length on average, twice.
    tokens = (4 * settings.samples + 2 * 6 * update) * length
    states = length * config.hidden_size * config.num_hidden_layers
    product = torch.bfloat16 if settings.trl.get("bf16") else kind
    seconds = (weights + states) * tokens / (_REACHED * _rate(product, config.hidden_size))
    if seconds <= PATIENCE:
        return None
    return (
        f"On this CPU it would take about {seconds / 60:.0f} minutes and more than "
        f"{least / 2**30:.3g} GiB; run it on a GPU."
    )


def _rate(dtype: Any, width: int) -> float:
    """Operations per second of a matrix product of a model's width and precision, measured now."""
    import torch

    x, w = (torch.ones(n, width, dtype=dtype) for n in (256, width))
    best = math.inf
    for _ in range(3):
        start = time.perf_counter()
        torch.mm(x, w.T)
        best = min(best, time.perf_counter() - start)
    return 2 * 256 * width**2 / best


def weights_of(config: Any) -> int:
    """Number of weights of a causal language model, which is built without any memory for them."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"cannot build a model of type {config.model_type!r}: {error}") from error
    return sum(weight.numel() for weight in model.parameters())


def _train_once(recipe: Recipe, hardest: Longest) -> None:
    settings = recipe.rl
    full_length = {"min_new_tokens": settings.max_completion_length}
    trl = {name: value for name, value in settings.trl.items() if "vllm" not in name}
    trl["generation_kwargs"] = {**(trl.get("generation_kwargs") or {}), **full_length}
    once = replace(
        settings,
        max_steps=2,
        use_vllm=False,
        mask_truncated_completions=False,
        trl=trl,
    )
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*rollout_func")
        rollout = _synthetic_rollout if settings.use_vllm else None
        short = replace(recipe, rl=once)
        trial(short, hardest.problems, Path(folder), rollout_func=rollout).train()


def trial(recipe: Recipe, problems: Sequence[Problem], folder: Path, **options: Any) -> Any:
    """A trainer of a recipe that saves and logs nothing, on rewards that teach nothing.

    Both rewards occur in every group, so that no group is skipped for zero advantage. TRL wants a
    ``folder``; the ``options`` are further arguments of the trainer.
    """
    from datasets import Dataset

    from trustclip.train.configs import grpo_config, lora_config
    from trustclip.train.models import load_model
    from trustclip.train.trainers import DurableGRPOTrainer
    from trustclip.train.watch.callbacks import silence

    settings = recipe.rl
    model, tokenizer = load_model(recipe.model, settings.style, recipe.seed, recipe.dtype)
    silent = replace(settings, save_steps=0, logging_steps=1000, reward="correct")
    trainer = DurableGRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [float(i % 2) for i in range(len(completions))],
        args=grpo_config(silent, folder, recipe.seed),
        train_dataset=Dataset.from_list(
            [{"prompt": messages(p.problem, settings.style)} for p in problems]
        ),
        processing_class=tokenizer,
        peft_config=lora_config(settings.lora_r, settings.lora_alpha, settings.lora),
        **options,
    )
    silence(trainer)
    return trainer


def _synthetic_rollout(prompts: Sequence[Any], trainer: Any) -> Mapping[str, Any]:
    """Completions of full length, in place of vLLM's."""
    tokenizer, length = trainer.processing_class, trainer.max_completion_length
    token = next(n for n in range(len(tokenizer)) if n not in tokenizer.all_special_ids)
    return {
        "prompt_ids": prompt_ids(tokenizer, prompts),
        "completion_ids": [[token] * length for _ in prompts],
        "logprobs": None,
    }


def _peak_bytes(action: Callable[[], None]) -> int:
    """Peak bytes of an action, by CUDA's allocator or else by this process's memory."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        action()
        return torch.cuda.max_memory_reserved()
    import psutil

    # Imported first, so that the libraries' memory does not count.
    import trustclip.engines.trl  # noqa: F401

    gc.collect()
    before = psutil.Process().memory_info().rss
    action()
    kibibyte = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kibibyte - before
