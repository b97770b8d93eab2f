"""The time of a training step on 1 to 512 H100s, from a cost model: nothing is run.

    python lab/benchmarks/scale.py --model 8b --gpus 64 --tokens 8192 --longest 32768 --tuning lora

Prints the tables of docs/lab/scale.md, for all models or one step; ``--markdown`` prints them in
Markdown.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from step_model import MODELS, Cost, Shape, Work, cost, fits
from step_rates import RATES

from trustclip.cli.arguments import parse
from trustclip.support.names import unknown
from trustclip_lab.bench.table import Cell, Table

GPUS = (1, 8, 16, 64, 512)
#: GPUs of the table that compares steps of different kinds.
COMPARED = 64
#: Rows of an update in the table of memory.
ROWS = 16_384

#: Published steps of NeMo RL 0.4, synchronous, bfloat16: GPUs, mean tokens of a text, seconds.
PUBLISHED = (
    (Shape("Llama-3.1-8B", 32, 4096, 32, 8, 14336, vocabulary=128_256), 16, 1060, 97.7),
    (MODELS["32b"], 32, 3206, 393.0),
    (MODELS["30b-a3b"], 32, 3154, 225.0),
)
#: Tokens of a prompt, which the publication does not state.
PUBLISHED_PROMPT = 100


@dataclass(frozen=True)
class ScaleOptions(Work):
    """The step to estimate."""

    model: str | None = None
    """1.7b, 8b, 32b or 30b-a3b; all when unset."""
    gpus: int | None = None
    """H100s; 1, 8, 16, 64 and 512 when unset."""
    markdown: bool = False
    """Print the tables in Markdown."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None and self.model not in MODELS:
            raise ValueError(unknown("model", self.model, MODELS))
        if self.gpus is not None and self.gpus < 1:
            raise ValueError(f"--gpus must be at least 1, got {self.gpus}.")


def run(options: ScaleOptions) -> list[Table]:
    """All tables."""
    models = [MODELS[options.model]] if options.model else list(MODELS.values())
    counts = (options.gpus,) if options.gpus else GPUS
    compared = options.gpus or COMPARED
    return [
        _steps(models, counts, options),
        _kinds(models, compared, options),
        _memory(models, compared, options),
        _comparison(),
        _rates(),
    ]


def _title(work: Work) -> str:
    tuning = "all weights trained" if work.tuning == "full" else "LoRA, head frozen"
    passes = f", {work.epochs} passes" if work.epochs > 1 else ""
    zero = f", {work.zero_share:.0%} with zero advantage" if work.zero_share else ""
    return (
        f"{work.completions} completions of {work.tokens} tokens (longest {work.longest}) to "
        f"prompts of {work.prompt}, {work.updates} updates{passes}{zero}, {tuning}"
    )


def _steps(models: list[Shape], counts: tuple[int, ...], work: Work) -> Table:
    columns = (
        "model", "H100", "rollout s", "old log-probs s", "update s", "weights to sampler s",
        "step s", "head, % of step", "exact KL s", "% of step", "% of step without rollout",
        "other gates ms",
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for model in models:
        for gpus in counts:
            cells = _cells(cost(model, gpus, work)) if fits(model, gpus, work.tuning) else ()
            rows.append([model.name, gpus, *(cells or [None] * (len(columns) - 2))])
    return Table(
        f"A step: {_title(work)}",
        columns,
        rows,
        [
            "Derived. Sampling and training share the GPUs and alternate. Head: part of the old "
            "log-probs and the update. Exact KL, and the memory traffic of any other gate, are in "
            "addition to the step. –: weights, gradients and optimizer, or one copy for sampling, "
            "do not fit."
        ],
    )


def _cells(seconds: Cost) -> list[Cell]:
    return [
        *seconds[:4],
        seconds.step,
        100 * seconds.head / seconds.step,
        seconds.exact_kl,
        100 * seconds.exact_kl / seconds.step,
        100 * seconds.exact_kl / seconds.training,
        1e3 * seconds.gate,
    ]


def _kinds(models: list[Shape], gpus: int, work: Work) -> Table:
    """Share of exact KL in steps of other kinds."""
    short = {"tokens": 256, "longest": 512}
    kinds: list[tuple[str, Work, bool]] = [
        ("as above", work, False),
        ("LoRA, head frozen: stored scores are reused", replace(work, tuning="lora"), False),
        ("63 % of completions with zero advantage", replace(work, zero_share=0.63), False),
        ("completions of 256 tokens, longest 512", replace(work, **short), False),
        ("4 passes over a generation", replace(work, epochs=4), False),
        ("sampling on its own GPUs", work, True),
        ("the last three at once", replace(work, epochs=4, **short), True),
        ("the last three at once, LoRA", replace(work, epochs=4, **short, tuning="lora"), True),
    ]
    rows = [
        [name, *(_share(model, gpus, kind, alone) for model in models)]
        for name, kind, alone in kinds
    ]
    return Table(
        f"Exact KL, % of a step on {gpus} H100",
        ("step", *(model.name for model in models)),
        rows,
        [
            "Derived. With sampling on its own GPUs: % of the rest of the step, which then sets "
            "the pace."
        ],
    )


def _share(model: Shape, gpus: int, work: Work, alone: bool) -> float | None:
    if not fits(model, gpus, work.tuning):
        return None
    seconds = cost(model, gpus, work)
    return 100 * seconds.exact_kl / (seconds.training if alone else seconds.step)


def _memory(models: list[Shape], gpus: int, work: Work) -> Table:
    tokens = work.completions * work.tokens
    return Table(
        f"Memory of the old policy, bfloat16, {ROWS} tokens or a generation of {tokens}",
        (
            "model", "hidden states MB", "a generation GB", f"of it per GPU of {gpus}, GB",
            "old head GB", "top-20 MB", "logits avoided GB",
        ),
        [
            [
                model.name,
                2e-6 * ROWS * model.hidden,
                2e-9 * tokens * model.hidden,
                2e-9 * tokens * model.hidden / gpus,
                1e-9 * model.product,
                6e-6 * ROWS * 20,
                1e-9 * ROWS * model.product / model.hidden,
            ]
            for model in models
        ],
        [
            "Derived. With a frozen head, the mean of its rows is stored with each hidden state, "
            "which doubles the size; the old head is stored only if the head is trained."
        ],
    )  # fmt: skip


def _comparison() -> Table:
    rows: list[list[Cell]] = []
    for model, gpus, length, seconds in PUBLISHED:
        work = Work(prompt=PUBLISHED_PROMPT, tokens=length - PUBLISHED_PROMPT)
        estimate = cost(model, gpus, work)
        rows.append([model.name, gpus, length, seconds, estimate.step, estimate.step / seconds])
    return Table(
        "The model compared with published steps",
        ("model", "H100", "mean tokens", "published s", "model s", "model ÷ published"),
        rows,
        [
            "Published: NeMo RL 0.4, on-policy GRPO, 2048 texts of at most 4096 tokens, 512 per "
            "update. Where the model is faster than the published step, it overstates the share "
            "of a constraint."
        ],
    )


def _rates() -> Table:
    return Table(
        "Rates",
        ("meaning", "value", "unit", "mark", "source"),
        [[r.meaning, f"{r.value:.3g}", r.unit, r.mark, r.source] for r in RATES.values()],
        [
            "Published rates were reached by others with their own code; none was measured here on "
            "a GPU."
        ],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and print the tables; returns the exit status."""
    try:
        options = parse(ScaleOptions, sys.argv[1:] if argv is None else argv, "scale")
    except ValueError as error:
        print(f"scale: {error}", file=sys.stderr)
        return 2
    for table in run(options):
        if options.markdown:
            print(table.markdown(), end="\n\n")
        else:
            table.print(Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
