"""Settings of the recipes: what a user may say, checked before anything heavy is imported.

One frozen dataclass per stage; that of a command adds model, run directory and seed, which a recipe
says once for all its stages. The command line (tyro) and files (pydantic) fill the same classes, so
a value is allowed in both or in neither. Option names that TRL has are TRL's.
"""

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from pydantic import Field

from trustclip.checked import checked

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Style = Literal["solution", "boxed", "answer", "plain"]
Schedule = Literal["linear", "cosine", "constant", "constant_with_warmup"]

#: Hyper-parameters of a method; the command line has a way of its own for them.
Arguments = Annotated[dict[str, Any], tyro.conf.Suppress]

#: In place of a model's path: the tiny Qwen3 of the demo, made and primed on the spot.
TINY = "tiny"
#: In place of a dataset: generated chain arithmetic, without end.
ARITHMETIC = "arithmetic"
#: The same for SFT, its solutions mostly terse and wrong: something for RL to improve on.
PRIMER = "arithmetic-primer"


#: Any other field of TRL's GRPOConfig, by its name.
Passthrough = Annotated[dict[str, Any], tyro.conf.Suppress]


@checked
class SFTStage:
    """Supervised fine-tuning on worked solutions."""

    dataset: str
    """Problems with solutions: .jsonl, .parquet or .csv file, hub id, or "arithmetic"."""
    prompt_style: Style = "solution"
    """How a problem is put to the model."""
    limit: Count | None = None
    """Use only the first this many problems."""
    max_bad_rows: Whole = 100
    """Give up when more rows than this are unreadable; each goes to quarantine.jsonl."""
    learning_rate: Positive = 2e-4
    """Peak learning rate of AdamW."""
    num_train_epochs: Positive = 2.0
    """Passes over the data, unless max-steps says otherwise."""
    max_steps: int = -1
    """Optimizer updates; -1 for as many as the epochs make."""
    per_device_train_batch_size: Count = 8
    """Sequences per micro-batch and device."""
    gradient_accumulation_steps: Count = 1
    """Micro-batches per update."""
    max_length: Count = 2048
    """Longest prompt plus solution, tokens; the rest is cut."""
    lr_scheduler_type: Schedule = "linear"
    """Course of the learning rate."""
    warmup_steps: NonNegative = 5
    """Updates until the peak learning rate (a fraction below 1 counts as a share of all)."""
    weight_decay: NonNegative = 1e-3
    """Weight decay of AdamW."""
    lora_r: Whole = 0
    """Rank of LoRA adapters on every linear layer; 0 trains all weights."""
    lora_alpha: Count = 64
    """Scale of the adapters."""
    logging_steps: Count = 1
    """Updates between lines of metrics.jsonl."""
    save_steps: Whole = 0
    """Updates between checkpoints; 0 for none but that of an interruption."""
    save_total_limit: Count | None = 2
    """Checkpoints to keep, the newest ones."""


@checked
class SFTSettings(SFTStage):
    """Supervised fine-tuning on worked solutions: teaches the answer format before RL."""

    model: str
    """Folder or hub id of the model, or "tiny"."""
    output_dir: Path
    """Run directory; the trained model goes to its folder "final"."""
    seed: int = 3407
    """Seed of everything random."""


@checked
class RLStage:
    """Reinforcement learning with verified rewards.

    Defaults are those of the ATR-GRPO paper (its Table 4) where it states them.
    """

    dataset: str
    """Problems with answers: .jsonl, .parquet or .csv file, hub id, or "arithmetic"."""
    method: str = "atr"
    """One of `trustclip methods`, or "package.module:Class"; --method.NAME sets its parameters."""
    method_args: Arguments = field(default_factory=dict)
    """Its hyper-parameters; on the command line as --method.NAME VALUE."""
    prompt_style: Style = "solution"
    """How a problem is put to the model."""
    limit: Count | None = None
    """Use only the first this many problems."""
    max_bad_rows: Whole = 100
    """Give up when more rows than this are unreadable; each goes to quarantine.jsonl."""
    reward: Literal["correct", "notebook"] = "correct"
    """1 for a right final answer and 0 otherwise, or the shaped rewards of the public notebook."""
    reward_noise: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Share of the answer rewards to turn round, the same ones whenever the run is repeated."""
    overlong_cache: Whole = 0
    """Add DAPO's soft penalty over this many last tokens of the longest completion; 0 for none."""
    max_prompt_length: Count | None = None
    """Leave out problems whose prompt is longer, tokens."""
    max_completion_length: Count = 1846
    """Longest completion, tokens."""
    num_generations: Annotated[int, Field(ge=2)] = 8
    """Answers per problem: the group that advantages are relative to."""
    per_device_train_batch_size: Count = 8
    """Completions per micro-batch and device."""
    gradient_accumulation_steps: Count = 4
    """Micro-batches per update."""
    steps_per_generation: Count | None = None
    """Micro-batches per generation of samples; as many as an update has when unset."""
    num_iterations: Count = 2
    """Passes over each generation. At 1 with the default above the ratio is always 1: inert."""
    allow_inert: bool = False
    """Train although no constraint can act."""
    max_steps: Count = 1000
    """Optimizer updates."""
    learning_rate: Positive = 5e-6
    """Peak learning rate of AdamW."""
    lr_scheduler_type: Schedule = "linear"
    """Course of the learning rate."""
    warmup_steps: NonNegative = 0.1
    """Updates until the peak learning rate (a fraction below 1 counts as a share of all)."""
    weight_decay: NonNegative = 1e-3
    """Weight decay of AdamW."""
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo", "luspo"] = "dr_grpo"
    """Aggregation of the loss, under TRL's name for it."""
    scale_rewards: Literal["none", "group", "batch"] = "none"
    """Divide advantages by a standard deviation: of the group, of the batch, or not (Dr. GRPO)."""
    beta: NonNegative = 0.0
    """Weight of the KL divergence to the starting policy."""
    temperature: Positive = 1.0
    """Sampling temperature."""
    top_p: Fraction = 1.0
    """Nucleus sampling; below 1 the samples are not those of the policy in the ratio."""
    mask_truncated_completions: bool = False
    """Leave completions that reached the length limit out of the loss."""
    lora_r: Whole = 32
    """Rank of LoRA adapters on every linear layer; 0 trains all weights."""
    lora_alpha: Count = 64
    """Scale of the adapters."""
    use_vllm: bool = False
    """Generate with vLLM."""
    gradient_checkpointing: bool = False
    """Trade compute for memory in the backward pass."""
    logging_steps: Count = 1
    """Updates between lines of metrics.jsonl."""
    save_steps: Whole = 0
    """Updates between checkpoints; 0 for none but that of an interruption."""
    save_total_limit: Count | None = 2
    """Checkpoints to keep, the newest ones."""
    sink: Literal["none", "trackio", "wandb", "tensorboard"] = "none"
    """Where metrics go besides metrics.jsonl."""
    trl: Passthrough = field(default_factory=dict)
    """Any other field of TRL's GRPOConfig; on the command line as --trl.NAME VALUE."""


@checked
class RLSettings(RLStage):
    """Reinforcement learning with verified rewards under a policy-divergence constraint.

    Defaults are those of the ATR-GRPO paper (its Table 4) where it states them.
    """

    model: str
    """Folder or hub id of the model, or "tiny"."""
    output_dir: Path
    """Run directory; the trained model goes to its folder "final"."""
    seed: int = 0
    """Seed of everything random."""


@checked
class EvalStage:
    """Evaluation: Mean@K and Pass@K."""

    tasks: str
    """Comma list of problem sets: names (amc23, aime24, ...), .jsonl files, or "arithmetic"."""
    data_dir: Path | None = None
    """Folder with NAME*.jsonl files, looked into before the hub."""
    prompt_style: Style = "solution"
    """How a problem is put to the model."""
    k: Count = 8
    """Samples per problem."""
    temperature: NonNegative = 0.3
    """Sampling temperature; 0 for the likeliest token."""
    top_p: Fraction = 0.95
    """Nucleus sampling."""
    max_tokens: Count = 32768
    """Longest completion, tokens; never more than the model's context leaves."""
    batch_size: Count = 64
    """Completions generated at once."""
    limit: Count | None = None
    """Use only the first this many problems of each task."""
    max_bad_rows: Whole = 100
    """Give up when more rows than this are unreadable; each goes to quarantine.jsonl."""


@checked
class EvalSettings(EvalStage):
    """Evaluation: Mean@K and Pass@K with intervals clustered by problem."""

    model: str
    """Folder or hub id of the model, or "tiny"; with the openai backend the name served."""
    output_dir: Path
    """Run directory: samples.jsonl holds every completion, summary.json the scores."""
    seed: int = 0
    """Seed of the sampling; the same seed, problems and batch size give the same samples."""
    backend: Literal["transformers", "vllm", "openai"] = "transformers"
    """What runs the model: this process, vLLM in it, or an OpenAI-compatible server."""
    base_url: str = "http://127.0.0.1:8000/v1"
    """Address of the server (openai); its key comes from the environment's OPENAI_API_KEY."""
    concurrency: Count = 16
    """Requests under way at once (openai)."""


@checked
class RecipeEval(EvalStage):
    """Evaluation of a recipe: before, during and after training."""

    every: Whole = 0
    """Updates between evaluations; 0 for only before and after."""


@checked
class Recipe:
    """A whole experiment in one file: SFT, then RL with evaluations, from one seed."""

    name: str
    """What people call it."""
    model: str
    """Folder or hub id of the model, or "tiny"."""
    output_dir: Path
    """Run directory."""
    seed: int = 0
    """Seed of everything random."""
    sft: SFTStage | None = None
    """Fine-tuning before RL; none when left out."""
    rl: RLStage
    """Reinforcement learning."""
    eval: RecipeEval | None = None
    """Evaluations; none when left out."""


@checked
class DemoSettings:
    """A small policy learns under a constraint, from nothing, on a laptop CPU, in minutes."""

    method: str = "atr"
    """One of `trustclip methods`, or "package.module:Class"; --method.NAME sets its parameters."""
    method_args: Arguments = field(default_factory=dict)
    """Its hyper-parameters; on the command line as --method.NAME VALUE."""
    seed: int = 0
    """Seed of everything random."""
    output_dir: Path | None = None
    """Run directory; runs/demo-METHOD-seedSEED when unset."""
    generations: Count = 6
    """Generations of 256 samples to learn from, 16 updates each."""
    test_problems: Count = 128
    """Held-out problems evaluated before and after."""


#: Fast configurations of each command, for tests and first tries, as ``--preset tiny``.
PRESETS: dict[str, dict[str, Any]] = {
    "sft": {
        "tiny": SFTSettings(
            model=TINY,
            dataset=PRIMER,
            output_dir=Path("runs/sft-tiny"),
            prompt_style="plain",
            max_steps=40,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            lr_scheduler_type="cosine",
            warmup_steps=20,
            max_length=256,
            weight_decay=0.0,
            logging_steps=8,
            seed=0,
        )
    },
    "rl": {
        "tiny": RLSettings(
            model=TINY,
            dataset=ARITHMETIC,
            output_dir=Path("runs/rl-tiny"),
            prompt_style="plain",
            max_completion_length=32,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=1,
            steps_per_generation=4,
            num_iterations=1,
            max_steps=16,
            learning_rate=3e-4,
            lr_scheduler_type="constant",
            warmup_steps=0,
            weight_decay=0.0,
            lora_r=0,
        )
    },
    "eval": {
        "tiny": EvalSettings(
            model=TINY,
            tasks=ARITHMETIC,
            output_dir=Path("runs/eval-tiny"),
            prompt_style="plain",
            temperature=1.0,
            top_p=1.0,
            max_tokens=32,
            batch_size=256,
            limit=32,
        )
    },
}
