"""The model card: what a trained model is, from the files of its run alone.

Its text is the template ``card.md.j2``, which escapes every value that is no `_Markdown`: no name,
path or text of a user or a data set becomes Markdown or HTML, and the settings are in a code block
that nothing in them can close. Secrets are replaced.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trustclip.constraints.base import methods
from trustclip.constraints.registry import interval
from trustclip.logs.identity import with_method
from trustclip.logs.run import cached_id
from trustclip.logs.summary import read_summary
from trustclip.support.inside import refuse_links
from trustclip.support.jsonl import read_mapping, write_text
from trustclip.support.secrets import redact, redacted_argv
from trustclip.support.text import duration, interval_text, markdown_table, markdown_text
from trustclip.train.problems.hub import hub_source
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.pretrained import PRETRAINED

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


class _Markdown(str):
    """A text that is Markdown already; every other text of the card is escaped."""


def write_card(run_folder: Path) -> Path:
    """Write the model card ``final/README.md`` of a run directory; returns its path."""
    from jinja2 import Environment, PackageLoader

    refuse_links(run_folder)
    path = run_folder / "config.yaml"
    if not path.is_file():
        raise ValueError(f"{str(run_folder)!r} is not a run directory: it has no config.yaml.")
    templates = Environment(
        loader=PackageLoader("trustclip.train.runs", ""),
        trim_blocks=True,
        finalize=lambda value: value if isinstance(value, _Markdown) else markdown_text(value),
    )
    card = run_folder / "final" / "README.md"
    card.parent.mkdir(exist_ok=True)
    text = templates.get_template("card.md.j2").render(_content(run_folder))
    write_text(card, text.strip("\n") + "\n")
    return card


def _content(run_folder: Path) -> dict[str, Any]:
    """What the template says of a run."""
    stored = redact(dict(read_mapping(run_folder / "config.yaml")))
    config = with_method(stored)
    summary = read_summary(run_folder / "summary.json")
    environment = read_mapping(run_folder / "environment.json")
    rl, sft = _stage(config, "rl"), _stage(config, "sft")
    before = summary.get("initial") or summary.get("before")
    after = summary.get("final") or summary.get("after")
    best = (summary.get("best") or {}).get("average", {})
    model = config.get("model", "tiny")
    chosen = dict(summary.get("method") or rl.get("method") or {})
    name = chosen.pop("name", None)
    listed = {label: rl[key] for key, label in SHOWN.items() if rl.get(key) is not None}
    config_text = yaml.safe_dump(stored, sort_keys=False, allow_unicode=True)
    return {
        "config": config,
        "summary": summary,
        "rl": rl,
        "sft": sft,
        "front": _front_matter(config),
        "nameless": Path(str(model)).is_dir() and base_model(model) is None,
        "code": _code(rl, run_folder / "final" / "prompt.json"),
        "method": name,
        "does": _does(name, chosen),
        "arguments": _table(["setting", "value"], [*chosen.items(), *listed.items()]),
        "after": after,
        "scores": after and _scores(before, after),
        "best": list(best.items())[:1],
        "interval_text": interval_text,
        "settings": fenced(config_text, "yaml"),
        "machine": _machine(environment, summary),
        "version": (environment.get("versions") or {}).get("trustclip", ""),
        "command": _command(config, environment),
    }


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
    body = re.sub(r"[^\S\n ]|[\x00-\x09\x0b-\x1f\x7f-\x9f]", " ", text).strip("\n")
    return _Markdown(f"{fence}{language}\n{body}\n{fence}")


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
    return _Markdown(yaml.safe_dump(kept, sort_keys=False))


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


def _code(rl: Mapped, prompt: Path) -> str:
    """Code that asks the model with the prompt of its training; empty where that is not known."""
    if not prompt.is_file():
        return ""
    settings = read_mapping(prompt)
    before, _, after = str(settings.get("template") or "{problem}").partition("{problem}")
    content = f"{before!r} + problem + {after!r}" if before or after else "problem"
    turns = [f'{{"role": "user", "content": {content}}}']
    if settings.get("system"):
        turns.insert(0, f'{{"role": "system", "content": {settings["system"]!r}}}')
    length = rl.get("max_completion_length", 256)
    tokens = length if isinstance(length, int) else 256
    return fenced(_CODE.format(messages=", ".join(turns), tokens=tokens), "python")


def _does(name: object, arguments: Mapped) -> str:
    """A method in one line, and its bounds; of a built-in one alone, so that no other code runs."""
    cls = methods().get(str(name))
    if cls is None:
        return _Markdown(f"{markdown_text(name)} (not part of trustclip).")
    does = (cls.__doc__ or "").strip().splitlines()[0]
    try:
        low, high = interval(cls(**arguments))
    except (ValueError, TypeError) as error:
        bounds = "It does not bound the ratio new/old of a token."
        if "p_old" in str(error):
            bounds = "Its bounds on the ratio new/old depend on the token's old probability."
    else:
        bounds = (
            "Its gate is open while the ratio new/old of a token's probability is in "
            f"[{low:.6f}, {high:.6f}]."
        )
    return _Markdown(f"{does} {bounds}")


def _scores(before: Mapped | None, after: Mapped) -> str:
    """A table of Mean@K and Pass@K before and after, task by task."""
    tasks = list(after.get("tasks", {}))
    rows = []
    for task in tasks if len(tasks) == 1 else [*tasks, "average"]:
        old, new = _of(before, task), _of(after, task)
        for name, value in new.items():
            if "@" in name:
                first = interval_text(old[name]) if name in old else "-"
                rows.append((task, new.get("problems", "-"), name, first, interval_text(value)))
    return _table(["task", "problems", "score", "before, %", "after, %"], rows)


def _of(scores: Mapped | None, task: str) -> Mapped:
    """Scores of a task; those of the demo are an average without tasks."""
    if not scores:
        return {}
    return scores.get("tasks", {}).get(task) or scores.get("average") or scores


def _machine(environment: Mapped, summary: Mapped) -> str:
    """A table of versions and machine; empty where nothing is known of them."""
    rows: list[tuple[object, object]] = list((environment.get("versions") or {}).items())
    rows += [(key, environment[key]) for key in ("platform", "processors") if key in environment]
    if git := environment.get("git"):
        suffix = ", with uncommitted changes" if git.get("changed") else ""
        rows.append(("code", f"{git.get('commit')}{suffix}"))
    if "seconds" in summary:
        rows.append(("time", duration(summary["seconds"])))
    return _table(["item", "value"], rows) if rows else ""


def _command(config: Mapped, environment: Mapped) -> str:
    """What makes the model again."""
    if config.get("command") == "run":
        return fenced("trustclip run config.yaml", "bash")
    argv = redacted_argv([str(argument) for argument in environment.get("argv") or ["--help"]])
    return fenced(shlex.join(["trustclip", *argv]), "bash")


def _table(header: Sequence[str], rows: Sequence[tuple[object, ...]]) -> str:
    cells = [[markdown_text(cell) for cell in row] for row in rows]
    return _Markdown(markdown_table(header, cells))


#: Files of text, in which a secret could stand; a tokenizer's vocabulary is the base model's.
_TEXT = {".json", ".md", ".html", ".jinja", ".txt", ".yaml"}


_VOCABULARY = {"tokenizer.json", "vocab.json", "vocab.txt", "merges.txt"}


def to_push(run: Path, repo: str, page: Path | None = None) -> dict[str, Path]:
    """The files that a repository ``owner/name`` of the hub gets, by their names in it.

    They are all of a finished run's ``final/``, with its card, and a page of the run where given.
    """
    from huggingface_hub.utils import validate_repo_id

    if repo.count("/") != 1:
        raise ValueError(f"{repo!r} is no repository: give its owner, too, as in owner/{run.name}.")
    validate_repo_id(repo)
    final = run / "final"
    if not any(final.glob("*.safetensors")):
        where = f"trustclip resume {run}" if (run / "config.yaml").is_file() else "name its folder"
        raise ValueError(f"{final} holds no model: the run is not finished ({where}).")
    refuse_links(run)
    if not (final / "README.md").is_file():
        write_card(run)
    paths = sorted(path for path in final.rglob("*") if path.is_file() and path.name[0] != ".")
    files = {path.relative_to(final).as_posix(): path for path in paths}
    for path in paths:  # the page is written without secrets
        _refuse_secrets(path)
        if path.name == "adapter_config.json":
            _refuse_local_base(path)
    return files | ({page.name: page} if page else {})


def _refuse_secrets(path: Path) -> None:
    if path.suffix not in _TEXT or path.name in _VOCABULARY:
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    pairs = zip(text.splitlines(), redact(text).splitlines(), strict=False)
    for number, (line, clean) in enumerate(pairs, start=1):
        if line != clean:
            raise ValueError(
                f"line {number} of {path} holds what looks like a token, key or password: take it "
                "out, and withdraw it if anybody else has this file."
            )


def _refuse_local_base(path: Path) -> None:
    base = str(read_mapping(path).get("base_model_name_or_path") or "")
    if not base or Path(base).exists() or base.count("/") > 1:
        raise ValueError(
            f"{path} names its base model by a folder of this machine, {base!r}, where nobody else "
            "finds it: write the model's hub id there (base_model_name_or_path)."
        )


def push(files: Mapping[str, Path], repo: str, *, public: bool) -> str:
    """Commit files to a repository of the hub, all at once or none; returns the commit's address.

    The repository is created if there is none.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token

    if get_token() is None:
        raise ValueError(
            "no token of the hub: log in with `hf auth login`, or set HF_TOKEN to one that may "
            "write."
        )
    api = HfApi(library_name="trustclip")
    try:
        api.create_repo(repo, private=not public, exist_ok=True)
        is_public = not api.model_info(repo).private
        if not is_public or public:
            operations = [CommitOperationAdd(name, str(path)) for name, path in files.items()]
            message = "Model and card of a run of trustclip"
            return str(api.create_commit(repo, operations, commit_message=message).commit_url)
    except Exception as error:  # of the hub's client and of what it connects with
        text = redact(" ".join(str(error).split())[:300])
        raise ValueError(f"nothing was pushed to {repo}: {text or type(error).__name__}") from error
    raise ValueError(f"nothing was pushed: {repo} is public already; give --public to add to it.")
