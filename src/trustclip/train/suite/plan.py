"""Expansion of a suite file into runs, with all errors found before anything starts."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from trustclip.constraints.base import Method
from trustclip.logs.identity import Marks, essential, flat
from trustclip.logs.reader import in_words, setting_of
from trustclip.support.consent import consent
from trustclip.support.jsonl import plain, read_mapping
from trustclip.support.names import unknown
from trustclip.support.secrets import redact
from trustclip.support.settings import Complaint, Rules, Source, refuse, validated
from trustclip.train.files import load_yaml, read_recipe
from trustclip.train.settings.stages import NOTHING, Recipe, SFTSettings
from trustclip.train.shipped import locate
from trustclip.train.suite.settings import (
    Scalar,
    SuiteSettings,
    combinations,
    complaints,
    labelled_methods,
    suffix,
)


@dataclass(frozen=True)
class Job:
    """One process of a suite: a run, or the SFT that several runs start from."""

    path: Path
    settings: Mapping[str, Any]  # plain values of its recipe, or of the command ``sft``
    label: str  # of the method; ``"sft"`` for an SFT
    model: str  # named by the recipe, before any SFT
    seed: int
    method: Method | None = None
    needs: Path | None = None  # run directory of the SFT that must be finished first
    #: Values of the settings that the suite sweeps, or their labels, by their paths.
    swept: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def setting(self) -> str:
        """Model and swept values as text; methods are compared within one setting."""
        return setting_of(self.model, self.swept)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def updates(self) -> int:
        """Optimizer updates; 0 if only the run itself knows them."""
        return max(self.settings.get("rl", self.settings)["max_steps"], 0)

    @property
    def summary(self) -> Mapping[str, Any] | None:
        """Its ``summary.json`` once it is finished; None before, or where the file is damaged."""
        try:
            summary = read_mapping(self.path / "summary.json")
        except ValueError:
            return None
        return summary if summary.get("finished") is True else None


@dataclass(frozen=True)
class Plan:
    """A suite expanded into its runs."""

    file: Path
    settings: SuiteSettings
    methods: Mapping[str, Method]
    jobs: tuple[Job, ...]

    @property
    def out(self) -> Path:
        return self.settings.output_dir

    @property
    def reference(self) -> str:
        """Label that the others are compared with."""
        return self.settings.reference or next(iter(self.methods))

    @cached_property
    def runs(self) -> tuple[Job, ...]:
        """The jobs that are not an SFT."""
        return tuple(job for job in self.jobs if job.method is not None)

    def resolved(self) -> dict[str, Any]:
        """Contents of ``suite.yaml``: the settings and, by folder, the runs; without secrets."""
        settings = {**plain(self.settings), "reference": self.reference}
        runs = {
            job.name: {
                "label": job.label,
                "model": job.model,
                "seed": job.seed,
                "method": job.method.to_dict() if job.method else None,
                "starts_from": job.needs.name if job.needs else None,
                **({"swept": dict(job.swept)} if job.swept else {}),
            }
            for job in self.jobs
        }
        return redact({**settings, "runs": runs})


def plan(file: Path) -> Plan:
    """Read a suite's file and expand it into runs.

    It and its recipes may name modules to import within `consent` alone. A ValueError has all
    errors in it and its recipes, and their places.
    """
    document, lines = load_yaml(file)
    if not isinstance(document, dict):
        raise ValueError(f"{file} is not a suite: it holds no keys.")
    if "rl" in document and "recipe" not in document:
        raise ValueError(f"{file} is a recipe, not a suite: trustclip run {file}")
    settings, errors = validated(SuiteSettings, document, Rules(complaints))
    methods: dict[str, Method] = {}
    jobs: list[Job] = []
    with consent():
        if settings is not None:
            methods = labelled_methods(settings.methods, errors)
            if methods and settings.reference not in (None, *methods):
                text = unknown("label", settings.reference, methods)
                errors.append((("reference",), text))
            for label in settings.method_changes if methods else ():
                if label not in methods:
                    text = unknown("label", label, methods)
                    errors.append((("method_changes", label), text))
            conditions = list(_settings(file.parent, settings, methods, errors))
            if not errors:
                jobs = _jobs(settings, conditions, errors)
    refuse(errors, Source(str(file), lines), "suite")
    assert settings is not None  # or there were errors
    return Plan(file, settings, methods, tuple(jobs))


class _Setting(NamedTuple):
    """Swept values or their labels, and with them the recipe of each method's label."""

    swept: Mapping[str, Scalar]
    recipes: Mapping[str, Recipe]


def _recipe(folder: Path, relative: Path) -> Path:
    """A recipe of a suite: beside it, or else one that comes with the package."""
    beside, packaged = folder / relative, locate(relative)
    return packaged if packaged.is_file() and not beside.is_file() else beside


def _settings(
    folder: Path,
    settings: SuiteSettings,
    methods: Mapping[str, Method],
    errors: list[Complaint],
) -> Iterator[_Setting]:
    """The settings that methods are compared in: every model with all swept values."""
    files = [_recipe(folder, relative) for relative in settings.recipe]
    own = settings.method_changes
    models = [{"model": model} for model in settings.models] or [{}]
    for file, model, swept in itertools.product(files, models, combinations(settings.sweep)):
        changes = {**settings.changes, **model, **swept.changes}
        try:
            if not methods:  # report the recipe's own errors all the same
                read_recipe(file, {k: v for k, v in changes.items() if "method" not in k})
            recipes = {
                label: read_recipe(file, {**changes, **own.get(label, {}), "rl.method": method})
                for label, method in methods.items()
            }
            errors += [wrong for recipe in recipes.values() for wrong in _secrets(file, recipe)][:1]
            yield _Setting(swept.shown, recipes)
        except ValueError as error:
            errors.append((("recipe",), str(error).replace("\n", "\n  ")))


def _jobs(
    settings: SuiteSettings, conditions: Sequence[_Setting], errors: list[Complaint]
) -> list[Job]:
    jobs: dict[Path, Job] = {}
    for seed in settings.seeds:
        for swept, recipes in conditions:
            for label, recipe in recipes.items():
                sft = _sft(settings, recipe, seed)
                if sft is not None:
                    jobs[sft.path] = sft
                run = _run(settings, recipe, (label, swept), seed, sft)
                if run.path in jobs:
                    text = f"two recipes give the same run {run.name} of {run.model}."
                    errors.append((("recipe",), text))
                jobs[run.path] = run
    return list(jobs.values())


def _sft(settings: SuiteSettings, recipe: Recipe, seed: int) -> Job | None:
    """The SFT that a run from ``seed`` starts from."""
    if recipe.sft is None:
        return None
    chosen = recipe.seed if settings.sft_seed is None else settings.sft_seed
    chosen = seed if chosen == "run" else int(chosen)
    own = {"model": recipe.model, "seed": chosen, "dtype": recipe.dtype}
    own |= {"changed_inputs": recipe.changed_inputs}
    content = {**own, **plain(recipe)["sft"]}
    if recipe.eval is not None and recipe.sft.exclude != NOTHING:
        # Those of the recipe by name: a separate SFT has none.
        content["exclude"] = ",".join([recipe.sft.exclude, *recipe.eval.names])
    path = settings.output_dir / f"sft-{digest(content, SFTSettings)}"
    return Job(path, content | {"output_dir": str(path)}, "sft", recipe.model, chosen)


def _secrets(path: Path, recipe: Recipe) -> Iterator[Complaint]:
    """The complaint about a secret, which every run's recipe would have to hold."""
    values = flat(plain(recipe))
    public = flat(redact(plain(recipe)))
    for key in values:
        if values[key] != public[key]:
            text = f"`{key}` holds a secret, and a suite writes down the settings of its runs: "
            yield ("recipe",), f"{path}: {text}leave it to the environment, such as HF_TOKEN."


def _run(
    settings: SuiteSettings,
    recipe: Recipe,
    entry: tuple[str, Mapping[str, Scalar]],
    seed: int,
    sft: Job | None,
) -> Job:
    label, swept = entry
    content = plain(recipe) | {"seed": seed}
    start = {} if sft is None else {"sft_seed": sft.seed}
    name = f"{label}{suffix(swept)}-seed{seed}-{digest(content | start)}"
    path = settings.output_dir / name
    title = ", ".join([label, *in_words(swept), f"seed {seed}"])
    content |= {"name": title, "output_dir": str(path)}
    if sft is not None:
        content |= {"model": str(sft.path / "final"), "sft": None}
    needs = sft.path if sft else None
    return Job(path, content, label, recipe.model, seed, recipe.rl.method, needs, swept)


def digest(recipe: Mapping[str, Any], kind: type = Recipe) -> str:
    """Eight hexadecimal digits that identify everything in a recipe that results depend on.

    SHA-256 of the canonical JSON of its `essential` settings. What they name is not read: a run
    that continues compares its own inputs, and nobody compares those of two runs, so give a data
    set that changes another name.

    Example:
      >>> digest({"seed": 0, "rl": {"save_steps": 4}}) == digest({"rl": {}, "name": "a", "seed": 0})
      True
      >>> digest({"seed": 1, "rl": {}}) == digest({"seed": 0, "rl": {}})
      False
    """
    settings = essential(recipe, Marks.of(kind, recipe))
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
