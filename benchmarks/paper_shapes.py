"""The paper's recipe at its own shapes, with short completions: time and memory on this machine.

    python benchmarks/paper_shapes.py TOKENIZER             # a folder or name with a tokenizer
    python benchmarks/paper_shapes.py TOKENIZER --length 64

Qwen3-1.7B's configuration with random weights in bfloat16, an output head of 151,936 rows, and the
LoRA, batch and rates of the paper's Table 4: one generation of 32 completions of 4 prompts, and two
updates on it, on one thread. Random weights cost what trained ones cost; the lengths are shorter
than the paper's 2,048 tokens. Beside them stands what ``trustclip rl --dry-run`` says in advance.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from smollm2_step import _problem, _reward, peak

#: Qwen3-1.7B, as its configuration on the hub has it.
QWEN3 = dict(
    vocab_size=151_936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=28,
    num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
    rope_theta=1e6, max_position_embeddings=32_768, rms_norm_eps=1e-6,
)  # fmt: skip

#: Table 4, and the two updates per generation of `recipes/paper-qwen3-1.7b.yaml`.
TABLE_4 = dict(
    per_device_train_batch_size=8, gradient_accumulation_steps=4, steps_per_generation=4,
    num_generations=8, num_iterations=2, learning_rate=5e-6, weight_decay=1e-3, beta=0.0,
    temperature=1.0, loss_type="dr_grpo", scale_rewards="none",
)  # fmt: skip


def predicted(folder: str, length: int) -> str:
    """The sentence of a dry run about the longest batch."""
    flags = [f"--rl.{k.replace('_', '-')}={v}" for k, v in TABLE_4.items()]
    recipe = Path(folder) / "recipe.yaml"
    recipe.write_text(
        f"name: shapes\nmodel: {folder}\noutput_dir: {folder}/run\ndtype: bfloat16\n"
        "rl: {dataset: arithmetic, trl: {bf16: true}, lora_r: 32, lora_alpha: 64, max_steps: 2, "
        f"max_completion_length: {length}}}\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "trustclip", "run", str(recipe), "--dry-run"]
    done = subprocess.run(
        [*command, *flags], env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True
    )
    said = re.findall(r"longest batch:.*", done.stdout)
    return said[0] if said else (done.stdout + done.stderr).strip()[-500:]


def main() -> None:
    """Make the model, ask the dry run, train, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer")
    parser.add_argument("--length", type=int, default=16, help="tokens of a completion, at most")
    args = parser.parse_args()
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
        tokenizer.save_pretrained(folder)
        ids = dict(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
        config = Qwen3Config(**QWEN3, **ids, dtype="bfloat16")
        config.save_pretrained(folder)
        print(f"dry run: {predicted(folder, args.length)}", flush=True)
        torch.set_default_dtype(torch.bfloat16)
        model: Any = Qwen3ForCausalLM(config)
        torch.set_default_dtype(torch.float32)
        weights = sum(weight.numel() for weight in model.parameters())
        print(f"model: {weights:,} weights, {2 * weights / 2**30:.2f} GiB", flush=True)
        prompts = [{"prompt": [{"role": "user", "content": _problem(n)}]} for n in range(4)]
        settings: dict[str, Any] = {
            **TABLE_4, "method": {"name": "atr", "delta": 0.07}, "max_steps": 2, "bf16": True,
            "use_cpu": True, "max_completion_length": args.length, "logging_steps": 1,
            "save_strategy": "no", "report_to": [], "disable_tqdm": True,
        }  # fmt: skip
        trainer: Any = ConstrainedGRPOTrainer(
            model, _reward, args=ConstrainedGRPOConfig(folder, **settings),
            train_dataset=Dataset.from_list(prompts), processing_class=tokenizer,
            peft_config=LoraConfig(r=32, lora_alpha=64, target_modules="all-linear"),
        )  # fmt: skip
        print_measured(trainer)


def print_measured(trainer: Any) -> None:
    """Train, and print time and peak memory of the generation and of the updates."""
    generate, spent = trainer._generate_and_score_completions, []

    def timed(*given: Any, **named: Any) -> Any:
        began, clock = time.process_time(), time.monotonic()
        made = generate(*given, **named)
        spent.append((time.process_time() - began, time.monotonic() - clock, peak(reset=True)))
        shape = tuple(made["completion_ids"].shape)
        print(f"completions: {shape}, prompts {tuple(made['prompt_ids'].shape)}", flush=True)
        return made

    trainer._generate_and_score_completions = timed
    peak(reset=True)
    began, clock = time.process_time(), time.monotonic()
    trainer.train()
    whole = time.process_time() - began, time.monotonic() - clock
    ((cpu, wall, most),) = spent
    print(f"generation: {cpu:.0f} CPU s, {wall:.0f} s, peak {most:.1f} GiB")
    rest = whole[0] - cpu, whole[1] - wall
    print(f"two updates: {rest[0]:.0f} CPU s, {rest[1]:.0f} s, peak {peak():.1f} GiB")


if __name__ == "__main__":
    main()
