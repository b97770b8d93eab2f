"""The model card: what a trained model is, from the files of its run alone.

Everything that a user or a data set may have written is escaped: no name, path or text becomes
Markdown or HTML, and the settings are in a code block that nothing in them can close. Secrets are
replaced.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trustclip.constraints.base import methods
from trustclip.constraints.registry import interval
from trustclip.runs.directory import RunDirectory
from trustclip.runs.identity import with_method
from trustclip.runs.run import cached_id
from trustclip.runs.summary import read_summary
from trustclip.settings.pretrained import PRETRAINED
from trustclip.support.inside import refuse_links
from trustclip.support.jsonl import read_mapping, write_text
from trustclip.support.secrets import redacted, redacted_argv
from trustclip.support.text import duration, interval_text, markdown_table, markdown_text
from trustclip.tasks.hub import hub_source

Mapped = Mapping[str, Any]

#: Settings of reinforcement learning that the card lists, with their names and units.
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


def conclude(run: RunDirectory, summary: Mapped) -> None:
    """Write the summary of a finished run, and the card of its model."""
    run.summarize(summary)
    write_card(run.path)


def write_card(run_folder: Path) -> Path:
    """Write the model card ``final/README.md`` of a run directory; returns its path."""
    refuse_links(run_folder)
    path = run_folder / "config.yaml"
    if not path.is_file():
        raise ValueError(f"{str(run_folder)!r} is not a run directory: it has no config.yaml.")
    stored = redacted(dict(read_mapping(path)))
    config = with_method(stored)
    summary = read_summary(run_folder / "summary.json")
    environment = read_mapping(run_folder / "environment.json")
    parts = [
        _front_matter(config),
        f"# {markdown_text(summary.get('name') or config.get('name') or 'Model')}",
        _opening(config),
        *_use(config, run_folder / "final" / "prompt.json"),
        *_method(config, summary),
        *_scores(summary),
        "## Settings\n\nAll of them, as the run resolved them (`config.yaml`):",
        fenced(yaml.safe_dump(stored, sort_keys=False, allow_unicode=True), "yaml"),
        *_environment(environment, summary),
        _reproduction(config, environment),
        _limitations(config, summary),
    ]
    card = run_folder / "final" / "README.md"
    card.parent.mkdir(exist_ok=True)
    write_text(card, "\n\n".join(part.strip("\n") for part in parts) + "\n")
    return card


def fenced(text: str, language: str = "") -> str:
    """A code block for any text: its fence is longer than every run of backticks in it.

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


def _stage(config: Mapped, name: str) -> Mapped:
    """Settings of a stage, from a recipe or the command of that name; empty without the stage."""
    command = config.get("command")
    own = command == name or (command == "demo" and name == "rl")
    return config if own else config.get(name) or {}


def _hub_id(name: object) -> str | None:
    """Hub id of a model or data set; None for files, folders and generated problems."""
    if not isinstance(name, str) or Path(name).exists() or name.count("/") > 1:
        return None
    if Path(name).suffix in (".jsonl", ".json", ".csv", ".parquet"):
        return None
    source = hub_source(name)
    return source.path if source else None


def base_model(name: object) -> str | None:
    """Hub id of the model that training began with; None where its folder does not tell.

    The name is a hub id, a folder, or ``ADAPTER+BASE``. A folder tells it as part of the hub's
    cache, as the end of another run, or in the name that its own settings have.

    Example:
      >>> base_model("Qwen/Qwen3-8B"), base_model("tiny"), base_model("smollm2")
      ('Qwen/Qwen3-8B', None, 'HuggingFaceTB/SmolLM2-135M-Instruct')
    """
    if not isinstance(name, str):
        return None
    if name in PRETRAINED and not Path(name).is_dir():
        return PRETRAINED[name].hub
    folder = Path(name.rpartition("+")[2])
    if cached := cached_id(folder):
        return cached
    if not folder.is_dir():
        return _hub_id(str(folder))
    # The end of another run, fine-tuned perhaps from a third; a run's folder is no hub id.
    if folder.name == "final" and (folder.parent / "config.yaml").is_file():
        begun = read_mapping(folder.parent / "config.yaml").get("model")
        return base_model(begun) if begun != name else None
    return _hub_id(read_mapping(folder / "config.json").get("_name_or_path"))


def _front_matter(config: Mapped) -> str:
    chosen = _stage(config, "rl").get("method")
    method = str(chosen.get("name")) if isinstance(chosen, Mapping) else None
    tags = ["trustclip", "reinforcement-learning" if method else "sft"]
    tags += ["grpo", method] if method in methods() else []
    data = [_hub_id(_stage(config, stage).get("dataset")) for stage in ("sft", "rl")]
    fields = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "base_model": base_model(config.get("model")),
        "datasets": sorted({name for name in data if name}),
        "tags": tags,
    }
    kept = {name: value for name, value in fields.items() if value}
    return "---\n" + yaml.safe_dump(kept, sort_keys=False) + "---"


def _opening(config: Mapped) -> str:
    rl, sft = _stage(config, "rl"), _stage(config, "sft")
    model, data = config.get("model", "tiny"), rl.get("dataset", "arithmetic")
    steps = [f"fine-tuned on {markdown_text(sft['dataset'])}"] if sft.get("dataset") else []
    if rl:
        constraint = markdown_text(rl.get("method", "?"))
        steps.append(
            f"trained with verified rewards on {markdown_text(data)} under the policy-divergence "
            f"constraint {constraint}"
        )
    history = ", then ".join(steps) or "unchanged"
    nameless = Path(str(model)).is_dir() and base_model(model) is None
    missing = (
        " Its base model is a local folder of no known origin: name its hub id as `base_model` at "
        "the top before you publish this."
    )
    return (
        f"The model {markdown_text(model)}, {history}, with trustclip. This card was generated "
        f"from the files of the run; nobody has edited it.{missing if nameless else ''}"
    )


#: Python that asks the model as it was trained to be asked; run in the card's folder.
_CODE = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

name = "."  # the folder of this card, or its id on the hub
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name)

problem = "Ada has 3 apples and buys 4 more. How many apples does Ada have?"
messages = [{messages}]
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
)
output = model.generate(**inputs, max_new_tokens={tokens}, do_sample=True, temperature=1.0, top_k=0)
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
"""


def _use(config: Mapped, prompt: Path) -> Iterator[str]:
    """Code that asks the model with the prompt of its training, where that is known."""
    if not prompt.is_file():
        return
    asked = read_mapping(prompt)
    before, _, after = str(asked.get("template") or "{problem}").partition("{problem}")
    words = [f"{text!r}" for text in (before, after)]
    content = f"{words[0]} + problem + {words[1]}" if before or after else "problem"
    turns = [f'{{"role": "user", "content": {content}}}']
    if asked.get("system"):
        turns.insert(0, f'{{"role": "system", "content": {asked["system"]!r}}}')
    length = _stage(config, "rl").get("max_completion_length", 256)
    tokens = length if isinstance(length, int) else 256
    yield "## How to use"
    yield "The model was trained with this prompt; with another it may answer worse."
    yield fenced(_CODE.format(messages=", ".join(turns), tokens=tokens), "python")


def _method(config: Mapped, summary: Mapped) -> Iterator[str]:
    rl = _stage(config, "rl")
    if not rl:
        return
    chosen = dict(summary.get("method") or rl.get("method") or {})
    name = chosen.pop("name", None)
    yield "## Method"
    known = methods().get(str(name))
    does = f"{markdown_text(name)} (not part of trustclip)."
    if known:
        does = (known.__doc__ or "").strip().splitlines()[0]
    yield f"{does} {_bounds(known, chosen)}".strip()
    rows = [(key, value) for key, value in chosen.items()]
    rows += [(label, rl[key]) for key, label in SHOWN.items() if rl.get(key) is not None]
    yield _table(["setting", "value"], rows)


def _bounds(cls: Any, arguments: Mapped) -> str:
    """Ratio bounds of the constraint; of built-in methods alone, so that no other code is run."""
    if cls is None:
        return ""
    try:
        low, high = interval(cls(**arguments))
    except (ValueError, TypeError) as error:
        if "p_old" in str(error):
            return "Its bounds on the ratio new/old depend on the token's old probability."
        return "It does not bound the ratio new/old of a token."
    return (
        "Its gate is open while the ratio new/old of a token's probability is in "
        f"[{low:.6f}, {high:.6f}]."
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
            f"Best evaluation during training: {interval_text(value)} % {markdown_text(name)} "
            f"after {markdown_text(best['step'])} updates. It was selected by this score, so it "
            "is optimistic."
        )
    yield (
        "Mean@K is the share of correct answers among K samples of each problem, averaged over "
        "problems; Pass@K is the share of problems with at least one correct answer among K "
        "samples. Brackets are 95 % intervals over the choice of problems. They do not include the "
        "variation between training seeds: a difference between two single runs is evidence about "
        "these runs, not about methods."
    )


def _tasks(scores: Mapped) -> list[str]:
    tasks = list(scores.get("tasks", {}))
    return tasks if len(tasks) == 1 else [*tasks, "average"]


def _of(scores: Mapped | None, task: str) -> Mapped:
    """Scores of a task; those of the demo are an average without tasks."""
    if not scores:
        return {}
    return scores.get("tasks", {}).get(task) or scores.get("average") or scores


def _rows(task: str, before: Mapped | None, after: Mapped) -> Iterator[tuple[object, ...]]:
    old, new = _of(before, task), _of(after, task)
    for name, value in new.items():
        if "@" in name:
            first = interval_text(old[name]) if name in old else "-"
            yield task, new.get("problems", "-"), name, first, interval_text(value)


def _environment(environment: Mapped, summary: Mapped) -> Iterator[str]:
    rows: list[tuple[object, object]] = list((environment.get("versions") or {}).items())
    rows += [(key, environment[key]) for key in ("platform", "processors") if key in environment]
    if git := environment.get("git"):
        changed = ", with uncommitted changes" if git.get("changed") else ""
        rows.append(("code", f"{git.get('commit')}{changed}"))
    if "seconds" in summary:
        rows.append(("time", duration(summary["seconds"])))
    if rows:
        yield "## Environment"
        yield _table(["item", "value"], rows)


def _reproduction(config: Mapped, environment: Mapped) -> str:
    version = (environment.get("versions") or {}).get("trustclip", "")
    if config.get("command") == "run":
        hint = "Save the settings above as `config.yaml`, then:"
        command = "trustclip run config.yaml"
    else:
        hint = "The command that was run:"
        argv = redacted_argv([str(argument) for argument in environment.get("argv") or ["--help"]])
        command = shlex.join(["trustclip", *argv])
    needed = f"With trustclip {markdown_text(version)} and its extra `train` installed."
    needed = needed.replace("  ", " ")  # the version of an old run is not known
    same = (
        "The same versions on the same hardware give the same model, bit for bit; other versions "
        "or hardware give a different one from the same distribution."
    )
    return "\n\n".join(["## How to reproduce", f"{needed} {hint}", fenced(command, "bash"), same])


def _limitations(config: Mapped, summary: Mapped) -> str:
    points = [
        "This is one run with one seed; how much another seed would differ is not known.",
        "It was trained on problems with short final answers that a program can check; nothing "
        "else, including safety, was trained or tested.",
        _overlap(summary),
        "The licences of the base model and the data apply; this card grants none.",
    ]
    if not (summary.get("final") or summary.get("after")):
        points.insert(0, "It was not evaluated in this run.")
    if skipped := summary.get("skipped_steps"):
        points += [f"{markdown_text(skipped)} updates were skipped: their gradient was not finite."]
    for notice in summary.get("notices") or []:
        step, text = markdown_text(notice["step"]), markdown_text(notice["text"])
        points.append(f"Warning at update {step}: {text}")
    if _stage(config, "rl").get("top_p", 1) != 1:
        points += ["Training used nucleus sampling, so its samples are not from the full policy."]
    return "## Limitations\n\n" + "\n".join(f"- {point}" for point in points)


def _overlap(summary: Mapped) -> str:
    if not (overlap := summary.get("overlap")):
        return (
            "Whether test problems stand in the training data of this or the base model is not "
            "known; `trustclip decontaminate` compares two sets."
        )
    stages = overlap.values()
    trained_on = sum(found["problems"] for found in stages if not found["excluded"])
    left_out = sum(found["problems"] for found in stages if found["excluded"])
    checked = (
        f"{trained_on} of its training problems are test problems, word for word or reworded, so "
        "its scores on them are no measure of what it learned."
        if trained_on
        else "Training problems that are test problems, word for word or reworded, were left out "
        f"({left_out}) as far as `trustclip decontaminate` finds them."
    )
    return f"{checked} What the base model was trained on is not known."


def _table(header: Sequence[str], rows: Sequence[tuple[object, ...]]) -> str:
    return markdown_table(header, [[markdown_text(cell) for cell in row] for row in rows])
