"""The same updates by two commits: the first tensor that differs, or none.

    make compare-with COMMIT=v1.0            20 updates of a tiny model, on a CPU
    python benchmarks/compare_with.py COMMIT [--updates 20] [--method atr] [--settings JSON]

Each commit trains in a separate process, from the same weights and seed, and writes down the
SHA-256 of every tensor of every update: the inputs of each pass, then weights and optimizer states.
Exit status 0 if all are the same bit for bit, 1 if one differs, 2 if a commit cannot do it.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
PROMPTS = [f"{a}+{b}=" for a in range(4) for b in range(4)]


def main() -> int:
    parser = argparse.ArgumentParser(description="The same updates by two commits.")
    parser.add_argument("commit", help="a commit, branch or tag")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--method", default="atr")
    parser.add_argument("--settings", default="{}", help="JSON of ConstrainedGRPOConfig's fields")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.record:
        record(args)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "commit"
        worktree = git("worktree", "add", "--detach", str(other), args.commit)
        if worktree.returncode:
            print(f"no commit {args.commit!r} here: {worktree.stderr.strip().splitlines()[-1]}")
            return 2
        try:
            return compare(args, other, Path(folder))
        finally:
            git("worktree", "remove", "--force", str(other))


def git(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["git", "-C", str(HERE), *arguments], capture_output=True, text=True, check=False
    )


def compare(args: argparse.Namespace, other: Path, folder: Path) -> int:
    rows = []
    for name, tree in ((args.commit, other), ("this tree", HERE)):
        path = folder / f"{len(rows)}.jsonl"
        process = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--record", str(path)],
            env={**os.environ, "PYTHONPATH": str(tree / "src"), "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            last = (process.stderr.strip() or "no message").splitlines()[-1]
            print(f"{name} cannot train these updates: {last}")
            return 2
        rows.append([json.loads(line) for line in path.read_text().splitlines()])
    print(verdict(args.commit, *rows))
    return int(rows[0] != rows[1])


def verdict(commit: str, theirs: list[Any], ours: list[Any]) -> str:
    """What differs first, in words.

    Example:
      >>> verdict("v1", [[1, "logp", "a"]], [[1, "logp", "a"]])
      'none: 1 tensors of 1 updates are the same in v1 and here'
      >>> verdict("v1", [[1, "logp", "a"]], [[1, "logp", "b"]])
      'update 1: logp differs from v1; 0 tensors before it are the same'
    """
    for number, (their, our) in enumerate(zip(theirs, ours, strict=False)):
        if their[:2] != our[:2]:
            return f"update {our[0]}: {our[1]} here is {their[1]} of update {their[0]} in {commit}"
        if their != our:
            return (
                f"update {our[0]}: {our[1]} differs from {commit}; {number} tensors before it are "
                "the same"
            )
    if len(theirs) != len(ours):
        return f"{len(theirs)} tensors in {commit}, {len(ours)} here; those of both are the same"
    last = ours[-1][0] if ours else 0
    return f"none: {len(ours)} tensors of {last} updates are the same in {commit} and here"


def record(options: argparse.Namespace) -> None:
    """Train, and write ``[update, name, SHA-256]`` of every tensor in the order of computation."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback

    from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer

    try:
        from trustclip.train.tiny import tiny_model
    except ImportError:  # a commit of 0.2.0
        from trustclip.recipes.tiny import tiny_model  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    with options.record.open("w") as file, tempfile.TemporaryDirectory() as folder:

        def note(step: int, name: str, value: Any) -> None:
            if isinstance(value, torch.Tensor):
                bits = value.detach().cpu().contiguous().flatten().view(torch.uint8)
                digest = hashlib.sha256(bits.numpy().tobytes()).hexdigest()
                file.write(json.dumps([step, f"{name} {[*value.shape]}", digest]) + "\n")

        class RecordingTrainer(ConstrainedGRPOTrainer):
            def _compute_loss(self, model: Any, inputs: Any) -> torch.Tensor:
                step = self.state.global_step + 1
                for name in sorted(inputs):
                    note(step, name, inputs[name])
                loss = super()._compute_loss(model, inputs)
                note(step, "loss", loss)
                return loss

        class Watch(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                model, optimizer = kwargs["model"], kwargs["optimizer"]
                for name, parameter in model.named_parameters():
                    note(state.global_step, name, parameter)
                    for key, value in optimizer.state.get(parameter, {}).items():
                        note(state.global_step, f"{key} of {name}", value)

        model, tokenizer = tiny_model(seed=1, layers=1, hidden=64)
        settings = dict(
            method={"name": options.method}, per_device_train_batch_size=16, num_generations=4,
            num_iterations=2, max_completion_length=8, learning_rate=3e-3, logging_steps=1,
            max_steps=options.updates, loss_type="dr_grpo", scale_rewards="none", seed=5,
            save_strategy="no", report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
        )  # fmt: skip
        trainer = RecordingTrainer(
            model=model,
            reward_funcs=even_digits,
            args=ConstrainedGRPOConfig(folder, **{**settings, **json.loads(options.settings)}),
            train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
            processing_class=tokenizer,
        )
        trainer.add_callback(Watch())
        trainer.train()


def even_digits(completions: list[str], **_: Any) -> list[float]:
    """A dense reward: the share of characters that are even digits or early letters."""
    return [sum(c in "02468abcdefgh" for c in text) / max(len(text), 1) for text in completions]


if __name__ == "__main__":
    sys.exit(main())
