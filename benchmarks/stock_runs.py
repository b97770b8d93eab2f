"""Runs of stock trainers on a tiny model, whose logs `docs/logs.md` explains.

    .venv/bin/python benchmarks/stock_runs.py trl FOLDER --num-iterations 4
    .venv-verl/bin/python benchmarks/stock_runs.py verl FOLDER

Of trustclip only the tiny model and its arithmetic take part: the trainers and their losses are
their own.
"""

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = [f"{a}+{b}=" for a in range(8) for b in range(8)]


def even_digits(completions: list[str], **_: object) -> list[float | None]:
    """Share of even digits, and of letters up to h, in each completion."""
    return [sum(ch in "02468abcdefgh" for ch in text) / max(len(text), 1) for text in completions]


def run_trl(folder: Path, num_iterations: int, steps: int) -> None:
    """A stock `GRPOTrainer`; TensorBoard and wandb (offline) where they are installed."""
    os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_SILENT": "true"}
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / "events")
    from importlib.util import find_spec

    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from trustclip.train.tiny import tiny_model

    model, tokenizer = tiny_model(layers=1, hidden=64)
    args = GRPOConfig(
        output_dir=str(folder),
        num_iterations=num_iterations,
        max_steps=steps,
        per_device_train_batch_size=32,
        num_generations=8,
        max_completion_length=16,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="steps",
        save_steps=steps,
        save_only_model=True,
        report_to=[name for name in ("tensorboard", "wandb") if find_spec(name)] or "none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"prompt": PROMPTS})
    GRPOTrainer(
        model=model,
        reward_funcs=even_digits,
        args=args,
        train_dataset=data,
        processing_class=tokenizer,
    ).train()


def run_verl(folder: Path, steps: int) -> None:
    """verl's `main_ppo` with its own loss, on local Ray and two workers on a CPU."""
    sys.path[:0] = [str(ROOT / at) for at in ("tests", "tests/support", "src")]
    from engines.verl import processes
    from engines.verl import test_main_ppo as small

    folder.mkdir(parents=True, exist_ok=True)
    small.save_model(folder / "model")
    small.write_problems(folder / "problems.parquet")
    settings = [
        *small.SCHEDULE,
        *small.SMALL,
        *(setting for setting in small.TRAINER if not setting.startswith("trainer.logger")),
        "trainer.logger=[console,file,tensorboard]",
        "trainer.project_name=arithmetic",
        "trainer.experiment_name=stock",
        f"trainer.total_training_steps={steps}",
        "trainer.total_epochs=4",
        f"actor_rollout_ref.model.path={folder / 'model'}",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        "algorithm.rollout_correction.rollout_is=token",
        f"data.train_files={folder / 'problems.parquet'}",
        f"data.val_files={folder / 'problems.parquet'}",
    ]
    environment = processes.environment(ROOT / "src")
    command = ["-m", "verl.trainer.main_ppo", *settings]
    code, output = processes.run(command, environment, folder, timeout=900)
    (folder / "console.log").write_text(output, encoding="utf-8")
    if code:
        sys.exit(f"main_ppo ended with {code}; see {folder / 'console.log'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trainer", choices=("trl", "verl"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--num-iterations", type=int, default=1, help="of TRL")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.trainer == "trl":
        run_trl(folder, options.num_iterations, options.steps)
    else:
        run_verl(folder, options.steps)


if __name__ == "__main__":
    main()
