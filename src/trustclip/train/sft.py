"""Supervised fine-tuning on worked solutions, by TRL's `SFTTrainer`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from trustclip.support.marks import Trl, marked
from trustclip.support.terminal import announce
from trustclip.train.checks import refuse
from trustclip.train.data import (
    exclude_tests,
    further_tests,
    overlap_text,
    record,
    show,
    training_problems,
    unlike,
)
from trustclip.train.durable.ranks import by_first
from trustclip.train.durable.rollcall import Interrupted
from trustclip.train.equipment import open_run
from trustclip.train.files import Source, build, preset
from trustclip.train.models import load_model, lora_config, save_model
from trustclip.train.problems.hub import hub_source, named_after, select_for_sft
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.prompts import completion, messages, tokens_of
from trustclip.train.runs.card import conclude
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.runs.progress import Stage
from trustclip.train.settings.stages import SFTSettings
from trustclip.train.watch.callbacks import Recorder, silence


def sft(
    settings: SFTSettings, console: Console, problems: Sequence[Problem] | None = None
) -> RunDirectory:
    """Run `trustclip sft`: load, train, save to ``final/``; resumes an unfinished run.

    Without ``problems``, which have solutions, those of ``settings.dataset`` are learned from.

    Returns:
      The run; its summary is not ``finished`` when SIGTERM or Ctrl-C stopped it: everything is
      saved, and the same call continues.

    Raises:
      ValueError: a model, data set or run directory that cannot be used, or another process uses
        the run directory.
    """
    run = run_sft(settings, console, problems)
    if not run.summary.get("finished"):
        console.print(f"stopped; the same command continues {run.path}.", highlight=False)
    return run


def run_sft(
    settings: SFTSettings, console: Console, problems: Sequence[Problem] | None = None
) -> RunDirectory:
    """`sft` as a part of another command, which reports an interruption itself."""
    refuse(settings)
    with open_run("sft", settings, console) as (run, finished):
        if not finished:
            _sft(settings, run, console, problems)
        return run


def _sft(
    settings: SFTSettings,
    run: RunDirectory,
    console: Console,
    problems: Sequence[Problem] | None,
) -> None:
    counts: dict[str, Any] = {}
    if problems is None:
        loaded = training_problems(settings, run, settings.seed, solutions=True)
        problems, overlap = exclude_tests(loaded, further_tests(settings, run), settings)
        counts = {"overlap": {"sft": overlap}}
        for line in overlap_text(counts["overlap"]):
            console.print(line, highlight=False, markup=False)
        announce(console, f"sft: {settings.model} on {len(problems)} solutions, in {run.path}")
    show(console, unlike(settings.model, settings.style))
    model, tokenizer = load_model(settings.model, settings.style, settings.seed, settings.dtype)
    problems = format_examples(problems, tokenizer, settings)
    metrics = fine_tune(model, tokenizer, problems, settings, run, console)
    if metrics is None:
        return
    counts |= {"problems": len(problems), "finished": True}
    by_first(lambda: conclude(run, {"command": "sft", **counts, **metrics}))
    console.print(f"model in {run.final}", highlight=False)


def prime(folder: Path, model: str, seed: int, console: Console, *, steps: int = 60) -> Path:
    """Make a built-in model and teach it the answer format, from mostly terse and wrong solutions.

    A finished run in ``folder`` is reused. ``steps`` are updates of 32 solutions: after
    320, 97 % of tiny's worked chains are right. Returns the model's folder.
    """
    changes = {"model": model, "output_dir": folder, "seed": seed, "max_steps": steps}
    settings = build(SFTSettings, preset("sft", "tiny"), Source(changes=changes))
    if not (run := run_sft(settings, console)).summary.get("finished"):
        raise Interrupted
    return run.final


def format_examples(
    problems: Sequence[Problem], tokenizer: Any, settings: SFTSettings
) -> Sequence[Problem]:
    """Select the problems to learn a format from.

    Of a set of reasoning traces (OpenMathReasoning, or a file named after it) only short ones with
    a numeric answer, as in the public notebook; of any other set all. Then the first ``limit``.
    """
    source = named_after(Path(settings.dataset).stem) or hub_source(settings.dataset)
    if source is not None and source.kind == "sft":
        count = partial(tokens_of, tokenizer, style=settings.style, solved=True)
        problems = select_for_sft(problems, max_seq_length=settings.max_length, count_tokens=count)
    if not problems:
        raise ValueError(
            f"{settings.dataset}: no solution with a numeric answer fits into half of max_length "
            f"= {settings.max_length} tokens."
        )
    return problems[: settings.limit]


def fine_tune(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    settings: SFTSettings,
    run: RunDirectory,
    console: Console,
) -> dict[str, float] | None:
    """Train ``model`` in place on the problems' solutions and save it; returns the last metrics.

    None when SIGTERM or Ctrl-C stopped it; everything is saved, and the same call continues.
    """
    from datasets import Dataset

    from trustclip.train.trainers import DurableSFTTrainer

    run.start_over()
    rows = [
        {
            "prompt": messages(problem.problem, settings.style),
            "completion": [{"role": "assistant", "content": completion(problem, settings.style)}],
        }
        for problem in problems
    ]
    trainer = DurableSFTTrainer(
        model=model,
        args=_arguments(settings, run),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora_config(settings.lora_r, settings.lora_alpha, settings.lora),
    )
    trainer.journal = run
    silence(trainer)
    with Stage(console, "sft", _steps(settings, len(rows))) as stage:
        trainer.add_callback(Recorder(run, stage, "sft"))
        if not trainer.train_durably():
            return None
    prompt = record(settings.style, tokenizer, problems[0].problem)
    save_model(trainer.model, tokenizer, run.final, prompt, settings.save)
    lines = [line for line in trainer.state.log_history if "loss" in line]
    return {name: lines[-1][name] for name in ("loss", "mean_token_accuracy") if lines}


def _arguments(settings: SFTSettings, run: RunDirectory) -> Any:
    import torch

    from trustclip.engines.trl.upstream import SFTConfig

    cuda = torch.cuda.is_available()
    return SFTConfig(
        output_dir=str(run.checkpoints),
        save_strategy="steps" if settings.save_steps else "no",
        save_steps=settings.save_steps or 500,
        seed=settings.seed,
        report_to="none",
        disable_tqdm=True,
        dataset_num_proc=None,
        bf16=cuda,
        use_cpu=not cuda,
        gradient_checkpointing=False,
        **{name: getattr(settings, name) for name in marked(type(settings), Trl)},
    )


def _steps(settings: SFTSettings, rows: int) -> int:
    """Optimizer updates of the run, for the progress bar."""
    if settings.max_steps > 0:
        return settings.max_steps
    batch = settings.per_device_train_batch_size * settings.gradient_accumulation_steps
    return max(1, round(settings.num_train_epochs * -(-rows // batch)))
