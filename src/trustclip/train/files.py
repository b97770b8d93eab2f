"""Recipe files, presets and stored configurations: settings of the program from YAML and changes.

`build` adds to `trustclip.support.settings.build` what the program knows: its stages, what
conflicts in them, and the names of its recipes.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

from trustclip.support import yaml_files
from trustclip.support.consent import ALL, consent, names_in
from trustclip.support.names import nearest, unknown
from trustclip.support.settings import (
    PARTS,
    Rules,
    Source,
    apply_changes,
    path_of,
    refuse,
    validated,
)
from trustclip.support.yaml_files import Lines
from trustclip.train.checks import complaints, of_engine
from trustclip.train.settings.stages import (
    OF_COMMAND,
    SECTIONS,
    DemoSettings,
    Lora,
    Recipe,
    RLStage,
)
from trustclip.train.shipped import FOLDER, shipped

T = TypeVar("T")

#: Short forms of what is changed most often in a recipe.
ALIASES = {"method": "rl.method", "trl": "rl.trl", "max_steps": "rl.max_steps"}

#: The tiny experiment, from which recipe, demo and presets are made.
TINY_RECIPE = FOLDER / "tiny.yaml"

#: ``--preset tiny`` of each command: its section of the tiny recipe, shortened to seconds.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "sft": {"tiny": {"max_steps": 40, "save_steps": 0, "seed": 0}},
    "rl": {
        "tiny": {
            "limit": None,
            "steps_per_generation": 4,
            "max_steps": 16,
            "learning_rate": 3e-4,
            "save_steps": 0,
        }
    },
    "eval": {"tiny": {"limit": 32}},
}

#: Settings that complaints about the size of a generation, or an inert constraint, depend on.
_SCHEDULE = {
    "per_device_train_batch_size",
    "steps_per_generation",
    "num_iterations",
    "gradient_accumulation_steps",
    "method",
    "allow_inert",
}


def load_yaml(path: Path) -> tuple[Any, Lines]:
    """`yaml_files.load_yaml`, which for a missing file names the nearest that comes along."""

    def meant(name: str) -> str:
        near = nearest(name, shipped())
        says = f"; did you mean {near!r}, which comes with trustclip (trustclip recipes)?"
        return says if near else ""

    return yaml_files.load_yaml(path, meant)


def of_run(folder: Path) -> tuple[str, type, dict[str, Any]]:
    """Command, settings class and plain values of the run that a folder holds."""
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{folder} is not a run directory: it has no config.yaml.")
    content, _ = load_yaml(folder / "config.yaml")
    command = content.pop("command", None) if isinstance(content, dict) else None
    if command not in OF_COMMAND:
        raise ValueError(f"{folder}/config.yaml is of no run that can be continued: {command!r}.")
    kind = OF_COMMAND[command]
    return command, kind, content | {"output_dir": str(folder)}


def load_recipe(
    path: Path, changes: Mapping[str, Any] | None = None, *, allow_code: bool = False
) -> Recipe:
    """Read a recipe from a file and apply changes.

    A method called ``"package.module:Class"`` is imported where ``changes`` name it; where the
    file does, only with ``allow_code``.

    Args:
      path: a YAML file; see the recipes that come with the project.
      changes: values by dotted path, e.g. ``{"rl.learning_rate": 1e-5, "seed": 1}``; ``method``
        and ``method.NAME`` set the method and its hyper-parameters.
      allow_code: whether the file may name modules to import.

    Raises:
      ValueError: all errors, each with its line, what is allowed and the nearest valid name.
    """
    changes = changes or {}
    own = {path: value for path, value in changes.items() if PARTS & set(path.split("."))}
    with consent(*names_in(own), *([ALL] if allow_code else [])):
        return read_recipe(path, changes)


def read_recipe(path: Path, changes: Mapping[str, Any]) -> Recipe:
    """`load_recipe` within the caller's `consent`: changes are trusted no more than the file."""
    content, lines = load_yaml(path)
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path} is not a recipe: it holds no keys.")
    if "rl" not in content and {"recipe", "methods"} <= content.keys():
        raise ValueError(f"{path} is a suite, not a recipe: trustclip suite {path}")
    content.pop("command", None)  # config.yaml of a run directory is a recipe, too
    for stage in ("rl", "eval"):
        if isinstance(section := content.get(stage), dict):
            own = {key: beside(section[key], path.parent) for key in PARTS & section.keys()}
            content[stage] = {**section, **own}
    return build(Recipe, content, Source(str(path), lines, changes))


def beside(value: Any, folder: Path) -> Any:
    """A value of a file in ``folder``, with the Python files that it names found beside it.

    A file that is not there stays relative to the working directory.
    """
    if isinstance(value, Mapping):
        return {key: beside(item, folder) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [beside(item, folder) for item in value]
    if not isinstance(value, str):
        return value
    where, colon, name = value.rpartition(":")
    path = folder / where
    return f"{path}{colon}{name}" if where.endswith(".py") and path.is_file() else value


def preset(command: str, name: str) -> dict[str, Any]:
    """Plain values of ``--preset NAME`` of a command.

    Example:
      >>> preset("rl", "tiny")["max_steps"]
      16
    """
    presets = PRESETS.get(command, {})
    if name not in presets:
        raise ValueError(unknown("preset", name, presets, of=command))
    recipe, _ = load_yaml(TINY_RECIPE)
    section = {key: value for key, value in recipe[command].items() if key != "every"}
    return {
        "model": recipe["model"],
        "output_dir": f"runs/{command}-{name}",
        **section,
        **presets[name],
    }


def demo_recipe(settings: DemoSettings, output_dir: Path) -> Recipe:
    """The demo as a recipe: its model's with these settings, evaluated before and after."""
    content, lines = load_yaml(FOLDER / f"{settings.model}.yaml")
    updates = content["rl"]["steps_per_generation"] * content["rl"]["num_iterations"]
    changes = {
        "name": "demo",
        "output_dir": output_dir,
        "seed": settings.seed,
        "rl.method": settings.method,
        "rl.max_steps": updates * (settings.generations or content["rl"]["max_steps"] // updates),
        "eval.limit": settings.test_problems or content["eval"]["limit"],
        "eval.every": 0,
        "sft.save_steps": 0,
        "rl.save_steps": 0,
    }
    return build(Recipe, content, Source("the demo", lines, changes))


def build(cls: type[T], content: dict[str, Any], source: Source) -> T:
    """Build a recipe, or a command's settings, from plain values and the changes of their source.

    ``content`` is changed in place.

    Raises:
      ValueError: all errors, each with its place.
    """
    whole = cls is Recipe
    source = source._replace(aliases=ALIASES) if whole else source
    apply_changes(cls, content, source)
    depends = {"num_iterations": _SCHEDULE, "num_generations": _SCHEDULE}
    rules = Rules(complaints, SECTIONS if whole else {}, depends, _proper_place)
    settings, errors = validated(cls, content, rules)
    model = content.get("model")
    if isinstance(model, str) and content.get("backend") != "openai":
        errors += [(("model",), text) for _, text in complaints(model)]
    if not errors:
        place, stage = (("rl",), settings.rl) if whole else ((), settings)
        errors += [((*place, *where), text) for where, text in of_engine(stage)]
    refuse(errors, source, "recipe")
    return cast(T, settings)


#: Files with the fields of TRL's GRPOConfig, its own and those that it inherits.
_CONFIG = (
    "trl/trainer/grpo_config.py",
    "trl/trainer/base_config.py",
    "transformers/training_args.py",
)


def _proper_place(name: str, own: Sequence[str]) -> str:
    """Where a key that is no setting here belongs; empty if nowhere."""
    if name == "split":
        return "it is a part of the data set's name: `dataset: NAME@SPLIT`."
    if name == "dry_run":
        return "it is an option of a command: trustclip run RECIPE --dry-run, or rl."
    if name.startswith("lora_") and "lora" in own:
        inner = name.removeprefix("lora_")
        options = [field.name for field in dataclasses.fields(Lora)]  # type: ignore[arg-type]
        if (near := nearest(inner, options)) is not None:
            return f"it is `lora: {{{near}: ...}}`, --lora.{near.replace('_', '-')}."
        return f"LoRA has `lora: {{...}}` with {', '.join(options)}."
    if "trl" in own and _is_of_trl(name):
        return f"a field of TRL's GRPOConfig is `trl: {{{name}: ...}}`, --trl.{name}."
    return ""


def _is_of_trl(name: str) -> bool:
    """Whether TRL's GRPOConfig has a field, by its source: its import takes seconds."""
    field = re.compile(rf"^    {re.escape(name)}: ", re.MULTILINE)
    specs = [(find_spec(file.partition("/")[0]), file) for file in _CONFIG]
    paths = [Path(spec.origin).parents[1] / file for spec, file in specs if spec and spec.origin]
    return any(field.search(path.read_text("utf-8")) for path in paths if path.is_file())


#: Most characters of a value in a folder's name.
LONG = 24


def with_folder(file: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes to a recipe, with a separate folder if they set another method or seed.

    A file states one ``output_dir``, and a folder holds one run: without this, every second method
    would be refused, or need a folder by hand.

    Returns:
      The changes; ``output_dir`` is added unless they set it, or method and seed are the file's.
    """
    content, _ = load_yaml(file)
    default = content.get("output_dir") if isinstance(content, dict) else None
    if "output_dir" in changes or not isinstance(default, str):
        return dict(changes)
    names = [*_differences(content, changes)]
    return {**changes, "output_dir": "-".join([default, *names])} if names else dict(changes)


def _differences(content: Mapping[str, Any], changes: Mapping[str, Any]) -> list[str]:
    """How method and seed differ from the file: ``["clip", "epsilon0.1", "seed1"]``."""
    section = content.get("rl")
    spec = section.get("method") if isinstance(section, Mapping) else None
    spec = spec or RLStage.__dataclass_fields__["method"].default
    old = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    values = {path_of(name, ALIASES): value for name, value in changes.items()}
    new_spec = values.get("rl.method", old)
    new = dict(new_spec) if isinstance(new_spec, Mapping) else {"name": new_spec}
    for path, value in values.items():
        if path.startswith("rl.method."):
            new[path.removeprefix("rl.method.")] = value
    name = str(new.pop("name", ""))
    same = name == old.get("name")
    differing = {k: v for k, v in new.items() if not same or old.get(k) != v}
    words = [name.rpartition(":")[2]] if not same or differing else []
    words += [f"{key}{value}" for key, value in differing.items()]
    if (seed := values.get("seed", content.get("seed", 0))) != content.get("seed", 0):
        words.append(f"seed{seed}")
    return [re.sub(r"[^\w.+]+", "_", word)[:LONG].strip("_") for word in words]
