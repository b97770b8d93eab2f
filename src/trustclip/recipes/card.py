"""The model card: what a trained model is, from the files of its run alone.

Everything that a user or a data set may have written is escaped: no name, path or text becomes
Markdown or HTML, and the settings stand in a fence that nothing in them can close.
"""

import html
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trustclip.method import interval, methods
from trustclip.recipes.records import write_text
from trustclip.tasks.hub import hub_source

Mapped = Mapping[str, Any]

#: Settings of reinforcement learning that a reader wants in words, and their units.
SHOWN = {
    "learning_rate": "learning rate (AdamW)",
    "lr_scheduler_type": "schedule of the learning rate",
    "max_steps": "updates",
    "num_generations": "answers per problem",
    "per_device_train_batch_size": "sequences per micro-batch and device",
    "gradient_accumulation_steps": "micro-batches per update",
    "steps_per_generation": "micro-batches per generation",
    "num_iterations": "passes over a generation",
    "max_completion_length": "longest completion, tokens",
    "temperature": "sampling temperature",
    "loss_type": "aggregation of the loss",
    "scale_rewards": "advantages divided by the deviation of",
    "beta": "weight of the KL to the start",
    "lora_r": "rank of LoRA adapters (0: all weights)",
}


def write_card(run_folder: Path) -> Path:
    """Write the model card ``final/README.md`` of a run directory.

    Args:
      run_folder: folder of a run of ``run``, ``rl``, ``sft`` or ``demo``.

    Returns:
      Path of the card.

    Raises:
      ValueError: the folder holds no run.
    """
    path = run_folder / "config.yaml"
    if not path.is_file():
        raise ValueError(f"{str(run_folder)!r} holds no run: it has no config.yaml.")
    text = path.read_text(encoding="utf-8")
    config = yaml.safe_load(text) or {}
    summary, environment = (
        _json(run_folder / "summary.json"),
        _json(run_folder / "environment.json"),
    )
    parts = [
        _front_matter(config),
        f"# {plain(summary.get('name') or config.get('name') or 'Model')}",
        _opening(config),
        *_method(config, summary),
        *_scores(summary),
        "## Settings\n\nAll of them, as the run resolved them (`config.yaml`):",
        fenced(text, "yaml"),
        *_environment(environment, summary),
        _reproduction(config, environment),
        _limitations(config, summary),
    ]
    card = run_folder / "final" / "README.md"
    card.parent.mkdir(exist_ok=True)
    write_text(card, "\n\n".join(part.strip("\n") for part in parts) + "\n")
    return card


def plain(value: object) -> str:
    r"""A value as text that Markdown and HTML leave alone, in one line.

    Example:
      >>> print(plain("a|b <script>[x](y)\n# no title"))
      a\|b &lt;script&gt;\[x\]\(y\) \# no title
    """
    line = " ".join(re.sub(r"[^\S ]|[\x00-\x1f\x7f-\x9f]", " ", str(value)).split())
    return html.escape(re.sub(r"([\\`*_{}\[\]()#+!|~:@$])", r"\\\1", line), quote=False)


def fenced(text: str, language: str = "") -> str:
    """A code block that holds any text: its fence is longer than every run of backticks in it.

    Example:
      >>> print(fenced("a ```` b", "text"))
      `````text
      a ```` b
      `````
    """
    runs = re.findall(r"`+", text)
    fence = "`" * max(3, 1 + max(map(len, runs), default=0))
    shown = re.sub(r"[^\S\n ]|[\x00-\x09\x0b-\x1f\x7f-\x9f]", " ", text).strip("\n")
    return f"{fence}{language}\n{shown}\n{fence}"


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _stage(config: Mapped, name: str) -> Mapped:
    """Settings of a stage, in a recipe or as a command's own; empty where it had none."""
    command = config.get("command")
    own = command == name or (command == "demo" and name == "rl")
    return config if own else config.get(name) or {}


def _hub_id(name: object) -> str | None:
    """The hub id of a model or data set; None for files, folders and generated problems."""
    if not isinstance(name, str) or Path(name).exists() or name.count("/") > 1:
        return None
    if Path(name).suffix in (".jsonl", ".json", ".csv", ".parquet"):
        return None
    source = hub_source(name)
    return source.path if source else None


def _front_matter(config: Mapped) -> str:
    method = _stage(config, "rl").get("method")
    tags = ["trustclip", "reinforcement-learning" if method else "sft"]
    tags += ["grpo", method] if method in methods() else []
    data = [_hub_id(_stage(config, stage).get("dataset")) for stage in ("sft", "rl")]
    fields = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "base_model": _hub_id(config.get("model")),
        "datasets": sorted({name for name in data if name}),
        "tags": tags,
    }
    kept = {name: value for name, value in fields.items() if value}
    return "---\n" + yaml.safe_dump(kept, sort_keys=False) + "---"


def _opening(config: Mapped) -> str:
    rl, sft = _stage(config, "rl"), _stage(config, "sft")
    model, data = config.get("model", "tiny"), rl.get("dataset", "arithmetic")
    steps = [f"fine-tuned on {plain(sft['dataset'])}"] if sft.get("dataset") else []
    if rl:
        constraint = plain(rl.get("method", "?"))
        steps.append(
            f"trained with verified rewards on {plain(data)} under the policy-divergence "
            f"constraint {constraint}"
        )
    history = ", then ".join(steps) or "as it was"
    return (
        f"The model {plain(model)}, {history}, by trustclip. This card was written from the files "
        "of the run; no person has edited it."
    )


def _method(config: Mapped, summary: Mapped) -> Iterator[str]:
    rl = _stage(config, "rl")
    if not rl:
        return
    chosen = dict(
        summary.get("method") or {"name": rl.get("method"), **(rl.get("method_args") or {})}
    )
    name = chosen.pop("name", None)
    yield "## Method"
    known = methods().get(str(name))
    does = (known.__doc__ or "").strip().splitlines()[0] if known else f"{plain(name)} (not ours)."
    yield f"{does} {_bounds(known, chosen)}".strip()
    rows = [(key, value) for key, value in chosen.items()]
    rows += [(label, rl[key]) for key, label in SHOWN.items() if rl.get(key) is not None]
    yield _table(["setting", "value"], rows)


def _bounds(cls: Any, arguments: Mapped) -> str:
    """What the constraint allows the ratio; only for a method of ours: no code of others runs."""
    if cls is None:
        return ""
    try:
        low, high = interval(cls(**arguments))
    except (ValueError, TypeError) as error:
        if "p_old" in str(error):
            return "Its bounds of the ratio new/old depend on the token's old probability."
        return "It has no bounds on the ratio new/old of a token."
    return (
        f"Its gate is open while the ratio new/old of a token's probability lies in "
        f"\\[{low:.6f}, {high:.6f}\\]."
    )


def _scores(summary: Mapped) -> Iterator[str]:
    """Tables of Mean@K and Pass@K before and after, task by task."""
    before = summary.get("initial") or summary.get("before")
    after = summary.get("final") or summary.get("after")
    if not after:
        return
    yield "## Scores"
    rows = [row for task in _tasks(after) for row in _rows(task, before, after)]
    yield _table(["task", "problems", "score", "before, %", "after, %"], rows)
    if best := summary.get("best"):
        name, value = next(iter(best["average"].items()))
        yield (
            f"Best of the evaluations on the way: {_interval(value)} % {plain(name)} after "
            f"{plain(best['step'])} updates. It was chosen by this very score, so it flatters."
        )
    yield (
        "Mean@K is the share of right answers among K samples of each problem, averaged over "
        "problems; Pass@K the share of problems with a right answer among K. In brackets 95 % "
        "intervals over the choice of problems. They say nothing about another seed of training: "
        "a difference between two such runs is evidence about these runs, not yet about methods."
    )


def _tasks(scores: Mapped) -> list[str]:
    tasks = list(scores.get("tasks", {}))
    return tasks if len(tasks) == 1 else [*tasks, "average"]


def _of(scores: Mapped | None, task: str) -> Mapped:
    """Scores of a task; the demo's are an average without tasks."""
    if not scores:
        return {}
    return scores.get("tasks", {}).get(task) or scores.get("average") or scores


def _rows(task: str, before: Mapped | None, after: Mapped) -> Iterator[tuple[object, ...]]:
    old, new = _of(before, task), _of(after, task)
    for name, value in new.items():
        if "@" in name:
            first = _interval(old[name]) if name in old else "-"
            yield task, new.get("problems", "-"), name, first, _interval(value)


def _interval(value: Mapped) -> str:
    share, low, high = (100 * value[key] for key in ("value", "low", "high"))
    return f"{share:.1f} [{low:.1f}, {high:.1f}]"


def _environment(environment: Mapped, summary: Mapped) -> Iterator[str]:
    rows: list[tuple[object, object]] = list((environment.get("versions") or {}).items())
    rows += [(key, environment[key]) for key in ("platform", "processors") if key in environment]
    if git := environment.get("git"):
        changed = ", with changes" if git.get("changed") else ""
        rows.append(("code", f"{git.get('commit')}{changed}"))
    if "seconds" in summary:
        rows.append(("time", f"{summary['seconds']:.0f} s"))
    if rows:
        yield "## Environment"
        yield _table(["what", "value"], rows)


def _reproduction(config: Mapped, environment: Mapped) -> str:
    version = (environment.get("versions") or {}).get("trustclip", "")
    if config.get("command") == "run":
        hint = "Save the settings above as `config.yaml`, then:"
        command = "trustclip run config.yaml"
    else:
        hint = "The command that was given:"
        command = shlex.join(["trustclip", *map(str, environment.get("argv") or ["--help"])])
    lines = f"pip install 'trustclip[train]=={version}'\n{command}"
    same = (
        "The same versions on the same hardware give the same model, bit for bit; others give "
        "another sample of the same process."
    )
    return "\n\n".join(["## How to reproduce", hint, fenced(lines, "bash"), same])


def _limitations(config: Mapped, summary: Mapped) -> str:
    points = [
        "One run from one seed: no estimate of how much another seed would differ.",
        "Trained on problems with short final answers that a program can check; nothing else, and "
        "no kind of safety, was trained or tested.",
        "Whether test problems stand in the training data of this or the base model is not known; "
        "`trustclip decontaminate` compares two sets.",
        "The licences of the base model and the data hold; this card grants none.",
    ]
    if not (summary.get("final") or summary.get("after")):
        points.insert(0, "It was not evaluated in this run.")
    if skipped := summary.get("skipped_steps"):
        points.append(f"{plain(skipped)} updates were skipped: their gradient was not finite.")
    for notice in summary.get("notices") or []:
        points.append(f"Noticed at update {plain(notice['step'])}: {plain(notice['text'])}")
    if _stage(config, "rl").get("top_p", 1) != 1:
        points.append("Samples were cut by nucleus sampling, so they are not the policy's own.")
    return "## Limitations\n\n" + "\n".join(f"- {point}" for point in points)


def _table(header: Sequence[str], rows: Sequence[tuple[object, ...]]) -> str:
    lines = [header, ["---"] * len(header), *([plain(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
