"""Sampling and updates of a real language model: stock TRL and each fast path of this engine.

    python benchmarks/smollm2_step.py MODEL            # a folder of the Llama family
    python benchmarks/smollm2_step.py MODEL --prompts 2 --updates 2 --full
    python benchmarks/smollm2_step.py MODEL --readme   # README's own snippet, and the same in TRL

Each line is a process of its own on one thread: CPU seconds of a run's second generation (sampling,
old log-probabilities, rewards) and of the updates on it, tokens per CPU second, the share of the
first line's time, and the peak memory of both, as Linux counts it. The first generation and its
updates come before, and what they take longer is the column "once": the optimizer's state, the
comparison of decoder and model, first calls. No checkpoint is saved. The floor is the time,
measured in the same process after it, of the matrix products that a line cannot do without: every
linear layer on each new token of the sampler, at the width of its batch, and on the distinct tokens
of an update, forward and backward.
"""

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

#: What each line switches on, beside the defaults of the engine; None for stock TRL.
_PLAIN: dict[str, Any] = {"decoder": "transformers", "head": "trl", "skip_zero_advantage": False}
_UNSHARED: dict[str, Any] = {"skip_zero_advantage": False, "share_prompts": False}
_SHARED = {"share_prompts": True, "whole_groups": True}
ARMS: dict[str, dict[str, Any] | None] = {
    "stock TRL": None,
    "stock TRL, bf16": None,
    "ours, no fast path": {**_PLAIN, "share_prompts": False},
    "head": {**_PLAIN, "head": "auto", "share_prompts": False},
    "head, decoder": _UNSHARED,
    "as installed": {"skip_zero_advantage": False},
    "as installed, bf16": {"skip_zero_advantage": False, "bf16": True},
    "all": {"skip_zero_advantage": False, **_SHARED},
    "all but the decoder": {"skip_zero_advantage": False, **_SHARED, "decoder": "transformers"},
    "all, bf16": {"skip_zero_advantage": False, **_SHARED, "bf16": True},
    "vLLM, sampling alone": {},
    "vLLM, bf16, sampling alone": {},
}

#: Without vLLM, which has an environment of its own.
_TRAINED = [arm for arm in ARMS if not arm.startswith("vLLM")]


def measured(arm: str, args: argparse.Namespace) -> dict[str, float]:
    """One generation and its updates in this process."""
    if arm.startswith("vLLM"):
        return sampled(args, "bfloat16" if "bf16" in arm else "float32")
    import torch
    from datasets import Dataset
    from peft import LoraConfig

    torch.set_num_threads(1)
    rows = [
        {"prompt": [{"role": "user", "content": _problem(number)}]}
        for number in range(args.prompts)
    ]
    samples = args.prompts * args.completions
    settings: dict[str, Any] = dict(
        per_device_train_batch_size=samples // args.parts, num_generations=args.completions,
        steps_per_generation=args.parts, num_iterations=args.updates // args.parts,
        max_completion_length=args.length, learning_rate=1e-5,
        logging_steps=1, use_cpu=True, bf16=arm.endswith("bf16"), report_to=[], beta=0.0,
        save_strategy="no", gradient_checkpointing=False, seed=0, loss_type="dr_grpo",
        scale_rewards="none", disable_tqdm=True, model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    lora = None if args.full else LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    if ARMS[arm] is None:
        from trl.trainer.grpo_config import GRPOConfig as Config
        from trl.trainer.grpo_trainer import GRPOTrainer as Trainer
    else:
        from trustclip.engines.trl import ConstrainedGRPOConfig as Config
        from trustclip.engines.trl import ConstrainedGRPOTrainer as Trainer

        settings |= {"method": "atr", "allow_inert": True, **(ARMS[arm] or {})}
    with tempfile.TemporaryDirectory() as folder:
        if args.readme:
            return trained(_of_readme(arm, args.model, folder), args.updates)
        trainer: Any = Trainer(
            args.model, cast("Any", _reward), args=Config(folder, **settings),
            train_dataset=Dataset.from_list(rows), peft_config=lora,
        )  # fmt: skip
        return trained(trainer, args.updates)


def trained(trainer: Any, updates: int) -> dict[str, float]:
    """Train on two generations, and measure the second, its updates and their floor."""
    generate, trainer.args.max_steps = trainer._generate_and_score_completions, 2 * updates
    began: list[float] = []
    spent: list[float] = []
    peaks: list[float] = []
    samples: list[Any] = []

    def timed(*given: Any, **named: Any) -> Any:
        began.append(time.process_time())
        peak(reset=True)
        samples.append(generate(*given, **named))
        peaks.append(peak(reset=True))
        spent.append(time.process_time() - began[-1])
        return samples[-1]

    trainer._generate_and_score_completions = timed
    trainer.train()
    ended, most = time.process_time(), peak()
    whole, first = ended - began[1], began[1] - began[0]
    return {"sampling": spent[1], "tokens": samples[1]["completion_mask"].sum().item(),
            "updates": whole - spent[1], "once": first - whole,
            "peak_sampling": peaks[1], "peak_updates": most,
            "floor": floor(trainer, samples[1], updates)}  # fmt: skip


def floor(trainer: Any, made: Any, updates: int) -> float:
    """CPU seconds of the products of a generation and of its updates, each once over its tokens.

    Of an update the distinct tokens of its share of the completions, forward and backward; the
    weights' own gradient only where they are trained.
    """
    import torch

    prompts, own = made["prompt_mask"], made["completion_mask"]
    alike = made["prompt_ids"].unique(dim=0, return_inverse=True)[1]
    first = [int((alike == place).nonzero()[0]) for place in range(int(alike.max()) + 1)]
    read, written = int(prompts[first].sum()), int(own.sum())
    steps, parts = own.shape[1], int(trainer.args.steps_per_generation)
    dtype = torch.bfloat16 if trainer.args.bf16 else torch.float32
    model = trainer.accelerator.unwrap_model(trainer.model)
    head = model.get_output_embeddings()
    total, timed = 0.0, {}
    for name, layer in model.named_modules():
        if type(layer) is not torch.nn.Linear or "lora_" in name:
            continue
        trains = layer.weight.requires_grad
        scored = written if layer is head else read + written
        passes = [
            (len(own), steps, False), (len(first) if layer is head else read, 1, False),
            (max(1, scored // parts), updates, True),
        ]  # fmt: skip
        for tokens, times, back in passes:
            key = (tokens, *layer.weight.shape, back, trains)
            if key not in timed:
                out, into = layer.weight.shape
                timed[key] = _products(tokens, out, into, dtype, 1 + back + back * trains)
            total += times * timed[key]
    return total


def _products(tokens: int, out: int, into: int, dtype: Any, count: int) -> float:
    """Least CPU seconds of a layer's products: forward, for its input, for its weight."""
    import torch

    x, w, g = (torch.randn(s, dtype=dtype) for s in ((tokens, into), (out, into), (tokens, out)))
    products = (lambda: x @ w.T, lambda: g @ w, lambda: g.T @ x)[:count]

    def once() -> float:
        began = time.process_time()
        for product in products:
            product()
        return time.process_time() - began

    return min(once() for _ in range(4))


def _of_readme(arm: str, model: str, folder: str) -> Any:
    """The trainer of README's snippet, or of the same lines with TRL's own classes.

    The model and the reward are replaced: with none that is right every advantage would be 0. So
    are the problems: an answer to these is cut at its greatest length, whoever samples it, so that
    every line has the same number of tokens.
    """
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    code = next(b for b in re.findall(r"```python\n(.*?)```", text, re.S) if "GRPOTrainer" in b)
    code = code.replace("trainer.train()", "").replace('"out"', f'{folder!r}, save_strategy="no"')
    code = code.replace("{a} + 2 - 1 + {b} - 2 + 1", "Tell a story of {a} ducks and {b} geese.")
    code = code.replace('"runs/demo-atr-seed0/final"', repr(model)).replace("=reward", "=_reward")
    if ARMS[arm] is None:
        code = re.sub(r"from trustclip\.engines\.trl .*", "from trl import GRPOConfig, GRPOTrainer",
                      re.sub(r"method=\{.*?\}, ", "", code)).replace("Constrained", "")  # fmt: skip
    if arm.endswith("bf16"):
        code = code.replace("bf16=False", "bf16=True")
    scope: dict[str, Any] = {"_reward": _reward}
    exec(code, scope)
    return scope["trainer"]


def sampled(args: argparse.Namespace, dtype: str) -> dict[str, float]:
    """The same completions by vLLM's build for CPUs, in this process on one thread."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
                   "VLLM_CPU_OMP_THREADS_BIND": "nobind"}  # fmt: skip
    vllm: Any = importlib.import_module("vllm")
    engine = vllm.LLM(args.model, dtype=dtype, enforce_eager=True, max_model_len=512, seed=0)
    wanted = vllm.SamplingParams(
        n=args.completions, temperature=1.0, max_tokens=args.length, logprobs=0
    )
    prompts = [[{"role": "user", "content": _problem(n)}] for n in range(args.prompts)]
    engine.chat(prompts[:1], vllm.SamplingParams(max_tokens=2), use_tqdm=False)
    peak(reset=True)
    began = time.process_time()
    made = engine.chat(prompts, wanted, use_tqdm=False)
    spent = time.process_time() - began
    tokens = sum(len(one.token_ids) for request in made for one in request.outputs)
    return {"sampling": spent, "tokens": tokens, "updates": 0.0, "floor": 0.0, "once": 0.0,
            "peak_sampling": peak(), "peak_updates": 0.0}  # fmt: skip


def peak(reset: bool = False) -> float:
    """Peak memory of this process since the last reset, GiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    if reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return int(line.split()[1]) / 2**20


def _problem(number: int) -> str:
    a, b = 17 + 7 * number, 3 + number
    return f"Zoe has {a} marbles and gives {b} of them away. How many marbles has she now?"


def _reward(completions: list[Any], **_: Any) -> list[float]:
    """Different within a group, so that every completion has an advantage."""
    return [float(sum(map(ord, c[0]["content"])) % 7) for c in completions]


def main() -> None:
    """Measure the arms one after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--completions", type=int, default=8)
    parser.add_argument("--parts", type=int, default=1, help="micro-batches of a generation")
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--full", action="store_true", help="full fine-tuning; LoRA r = 16 without")
    parser.add_argument("--readme", action="store_true", help="README's snippet")
    parser.add_argument("--arms", nargs="*", default=_TRAINED, choices=list(ARMS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.readme:
        args.updates = 2
        if args.arms == _TRAINED:
            args.arms = ["stock TRL", "as installed", "stock TRL, bf16", "as installed, bf16"]
    if args.one:
        print(json.dumps(measured(args.one, args)))
        return
    print("| | tokens | sampling, CPU s | tokens/s | an update, CPU s | all, CPU s | × the first "
          "| floor, CPU s | × the floor | once, CPU s | peak of sampling, GiB "
          "| of updates |")  # fmt: skip
    print("|---|" + "---:|" * 11)
    first = None
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    for arm in args.arms:
        done = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--one", arm],
            env={**os.environ, **quiet}, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{arm}: {done.stderr.strip().splitlines()[-1]}")
        got = json.loads(done.stdout.strip().splitlines()[-1])
        whole = got["sampling"] + got["updates"]
        first = first or whole
        print(
            f"| {arm} | {got['tokens']:.0f} | {got['sampling']:.1f} "
            f"| {got['tokens'] / got['sampling']:.0f} "
            f"| {got['updates'] / args.updates:.2f} | {whole:.1f} | {whole / first:.2f} "
            f"| {got['floor']:.1f} | {whole / got['floor'] if got['floor'] else 0:.2f} "
            f"| {got['once']:.1f} | {got['peak_sampling']:.2f} | {got['peak_updates']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
