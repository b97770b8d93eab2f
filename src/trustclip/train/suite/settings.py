"""Settings of a suite: methods, seeds, models and sweeps of one experiment, in one YAML file."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from trustclip.constraints.base import Method
from trustclip.constraints.registry import as_method
from trustclip.support.checked import checked
from trustclip.support.settings import Complaint

Scalar = bool | int | float | str


def _sequence(value: object) -> object:
    return [value] if isinstance(value, str | Path) else value


def _values(value: object) -> object:
    scalars = isinstance(value, list | tuple) and all(isinstance(v, Scalar) for v in value)
    labelled = isinstance(value, Mapping) and all(isinstance(label, str) for label in value)
    if not value or not (scalars or labelled):
        raise ValueError("must be a list of values, or labels with a value each")
    return dict(value) if isinstance(value, Mapping) else tuple(value)  # type: ignore[call-overload]


#: Settings to sweep, by path: a list of numbers and words, or a mapping from labels to values of
#: any kind, which the labels represent in names and tables.
Sweep = dict[str, Annotated[Any, AfterValidator(_values)]]


class Swept(NamedTuple):
    """One combination of swept settings."""

    shown: Mapping[str, Scalar]  # by path, the value, or its label
    changes: Mapping[str, Any]  # by path, the value itself


@checked
class SuiteSettings:
    """A suite: every method, from every seed, on every model, under every swept setting.

    Example:
      >>> suite = SuiteSettings(
      ...     name="delta", recipe="tiny.yaml", output_dir="runs/delta", seeds=[0, 1],
      ...     methods={"atr": {"name": "atr", "sweep": {"delta": [0.05, 0.07]}}},
      ... )
      >>> list(labelled_methods(suite.methods, []))
      ['atr-delta0.05', 'atr-delta0.07']
    """

    name: Annotated[str, Field(min_length=1)]
    """Name of the suite."""
    recipe: Annotated[tuple[Path, ...], BeforeValidator(_sequence), Field(min_length=1)]
    """Recipe that every run starts from, relative to this file; or several, one for each model."""
    output_dir: Path
    """Folder of the suite: a run directory for each run, the events and the table."""
    methods: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    """Methods by label: `name`, hyper-parameters, and `sweep`, with a label for each value."""
    reference: str | None = None
    """Label that the others are compared with; the first one when unset."""
    reaches: Annotated[float, Field(gt=0, le=1)] | None = None
    """Mean@K whose time is reported, a share of 1: 0.9, say; no time when unset."""
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)
    """Seeds of the runs."""
    models: tuple[str, ...] = ()
    """Folders or hub ids of models; the recipe's own when omitted."""
    sft_seed: int | Literal["run"] | None = None
    """Seed of the SFT shared by all runs: the recipe's when unset; "run": one SFT per run seed."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Changes to every run: dotted path in the recipe to value."""
    method_changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Changes to the runs of one method, by its label: a learning rate of its own, say."""
    sweep: Sweep = field(default_factory=dict)
    """Settings to sweep for every method: dotted path in the recipe to a list of values, or to a
    mapping from labels to values, for those that are no number or word: `rl.trl: {plain: {},
    penalised: {repetition_penalty: 1.1}}`."""


#: A label is part of a folder's name.
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")

#: Paths that the suite sets itself and `changes` and `sweep` may not set; but a sweep may set a
#: hyper-parameter that all its methods have (``rl.method.delta``).
OWN_PATHS = ("name", "output_dir", "seed", "model", "method", "rl.method")


def complaints(settings: SuiteSettings) -> Iterator[Complaint]:
    """Contradictions between the settings of a suite."""
    for name in ("seeds", "models", "recipe"):
        values = getattr(settings, name)
        if len(set(values)) < len(values):
            yield (name,), f"`{name}` has a duplicate: {', '.join(map(str, values))}."
    if settings.models and len(settings.recipe) > 1:
        text = "`models` cannot be combined with several recipes: each recipe has its own model."
        yield ("models",), text
    yield from _own_paths(settings)
    yield from _wrong_sweep(settings)


def _own_paths(settings: SuiteSettings) -> Iterator[Complaint]:
    places: list[tuple[Any, ...]] = [("changes", path) for path in settings.changes]
    places += [("sweep", path) for path in settings.sweep]
    places += [("method_changes", k, p) for k, own in settings.method_changes.items() for p in own]
    for where in places:
        name, path = where[0], where[-1]
        own = any(path == own or path.startswith(own + ".") for own in OWN_PATHS)
        if own and not (name == "sweep" and "method." in path):
            text = f"`{name}` may not set {path!r}: the suite has a key of its own for it."
            yield where, text
        if name == "method_changes" and path in settings.sweep:
            yield where, f"{path!r} is set in both `method_changes` and `sweep`."


def _wrong_sweep(settings: SuiteSettings) -> Iterator[Complaint]:
    for path, values in settings.sweep.items():
        if path in settings.changes:
            yield ("sweep", path), f"{path!r} is set in both `changes` and `sweep`."
        if len(set(values)) < len(values):
            text = f"`sweep.{path}` has a duplicate: {', '.join(map(str, values))}."
            yield ("sweep", path), text
        for value in values:  # of a mapping, its labels
            if not LABEL.fullmatch(suffix({path: value})[1:]):
                yield ("sweep", path), f"`sweep.{path}`: {value!r} cannot be part of a folder name."


def combinations(sweep: Mapping[str, Sequence[Scalar] | Mapping[str, Any]]) -> list[Swept]:
    """All combinations of swept settings; without a sweep, one that changes nothing.

    Example:
      >>> exact = {"exact_kl_every": 1}
      >>> swept = combinations({"rl.beta": [0.01], "rl.trl": {"plain": {}, "exact": exact}})
      >>> [dict(one.shown) for one in swept]
      [{'rl.beta': 0.01, 'rl.trl': 'plain'}, {'rl.beta': 0.01, 'rl.trl': 'exact'}]
      >>> swept[1].changes
      {'rl.beta': 0.01, 'rl.trl': {'exact_kl_every': 1}}
      >>> combinations({})
      [Swept(shown={}, changes={})]
    """
    pairs = [
        values.items() if isinstance(values, Mapping) else zip(values, values, strict=True)
        for values in sweep.values()
    ]
    return [
        Swept(
            dict(zip(sweep, [label for label, _ in chosen], strict=True)),
            dict(zip(sweep, [value for _, value in chosen], strict=True)),
        )
        for chosen in itertools.product(*map(list, pairs))
    ]


def suffix(swept: Mapping[str, Scalar]) -> str:
    """Suffix of a run's folder name for swept settings.

    Example:
      >>> suffix({"rl.reward_noise": 0.1, "rl.learning_rate": 1e-5})
      '-reward_noise0.1-learning_rate1e-05'
    """
    return "".join(f"-{path.rpartition('.')[2]}{_text(v)}" for path, v in swept.items())


def labelled_methods(
    methods: Mapping[str, Mapping[str, Any]], errors: list[Complaint]
) -> dict[str, Method]:
    """Methods by label, with sweeps expanded; errors in them are appended to ``errors``.

    ``{atr: {name: atr, sweep: {delta: [0.05, 0.07]}}}`` makes ``atr-delta0.05`` and
    ``atr-delta0.07``; of several swept hyper-parameters every combination is made.
    """
    by_label: dict[str, Method] = {}
    for label, spec in methods.items():
        where = ("methods", label)
        try:
            variants = _variants(spec)
        except ValueError as error:
            errors.append((where, f"{label}: {error}"))
            continue
        for swept, arguments in variants:
            try:
                method = as_method(arguments)
            except (ValueError, TypeError) as error:
                errors.append((where, f"{label}: {error}"))
                continue
            full = label + "".join(f"-{key}{_text(getattr(method, key))}" for key in swept)
            allowed = "use letters, digits and, not first, ._+-"
            if full in by_label:
                errors.append((where, f"a second method with the label {full!r}."))
            elif not LABEL.fullmatch(full):
                errors.append((where, f"the label {full!r} names a folder: {allowed}"))
            by_label[full] = method
    return by_label


def _variants(spec: Mapping[str, Any]) -> list[tuple[Sequence[str], dict[str, Any]]]:
    """(swept hyper-parameters, method as a mapping) for every method that ``spec`` describes."""
    fixed = {key: value for key, value in spec.items() if key != "sweep"}
    sweep = spec.get("sweep", {})
    if not isinstance(sweep, Mapping):
        raise ValueError(f"`sweep` maps hyper-parameters to lists of values, got {sweep!r}.")
    for key, values in sweep.items():
        if key in fixed:
            raise ValueError(f"{key!r} is both fixed and swept.")
        if not isinstance(values, list | tuple) or not values:
            raise ValueError(f"`sweep.{key}` needs a list of values, got {values!r}.")
    return [(list(sweep), {**fixed, **one.changes}) for one in combinations(sweep)]


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
