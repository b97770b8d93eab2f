"""Settings of a suite: methods, seeds, models and sweeps of one experiment, in one YAML file."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from trustclip.constraints.base import Method
from trustclip.constraints.checked import checked, rule
from trustclip.constraints.names import unknown
from trustclip.constraints.registry import as_method

#: Place in the file and what is wrong there.
Complaint = tuple[tuple[Any, ...], str]
Scalar = bool | int | float | str


def _sequence(value: object) -> object:
    return [value] if isinstance(value, str | Path) else value


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
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)
    """Seeds of the runs."""
    models: tuple[str, ...] = ()
    """Folders or hub ids of models; the recipe's own when omitted."""
    sft_seed: int | Literal["run"] | None = None
    """Seed of the SFT shared by all runs: the recipe's when unset; "run": one SFT per run seed."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Changes to every run: dotted path in the recipe to value."""
    sweep: dict[str, Annotated[tuple[Scalar, ...], Field(min_length=1)]] = field(
        default_factory=dict
    )
    """Settings to sweep for every method: dotted path in the recipe to a list of values."""


#: A label is part of a folder's name.
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")

#: Paths that the suite sets itself and `changes` and `sweep` may not set; but a sweep may set a
#: hyper-parameter that all its methods have (``rl.method.delta``).
OWN_PATHS = ("name", "output_dir", "seed", "model", "method", "rl.method", "rl.method_args")


def parse_settings(document: Mapping[str, Any], errors: list[Complaint]) -> SuiteSettings | None:
    """Read settings from a YAML mapping; errors in it are appended to ``errors``.

    Returns:
      The settings without their unknown keys, or None where a value is wrong.
    """
    known = [f.name for f in fields(SuiteSettings)]  # type: ignore[arg-type]
    errors += [((key,), unknown("key", key, known)) for key in document if key not in known]
    try:
        settings = TypeAdapter(SuiteSettings).validate_python(
            {key: value for key, value in document.items() if key in known}
        )
    except ValidationError as error:
        errors += [_complaint(item["loc"], item["msg"], item["input"]) for item in error.errors()]
        return None
    for name in ("seeds", "models", "recipe"):
        values = getattr(settings, name)
        if len(set(values)) < len(values):
            errors.append(((name,), f"`{name}` has a duplicate: {', '.join(map(str, values))}."))
    if settings.models and len(settings.recipe) > 1:
        text = "`models` cannot be combined with several recipes: each recipe has its own model."
        errors.append((("models",), text))
    for name in ("changes", "sweep"):
        for path in getattr(settings, name):
            own = any(path == own or path.startswith(own + ".") for own in OWN_PATHS)
            if own and not (name == "sweep" and "method." in path):
                text = f"`{name}` may not set {path!r}: the suite has a key of its own for it."
                errors.append(((name, path), text))
    errors += _wrong_sweep(settings)
    return settings


def _wrong_sweep(settings: SuiteSettings) -> Iterator[Complaint]:
    for path, values in settings.sweep.items():
        if path in settings.changes:
            yield ("sweep", path), f"{path!r} is set in both `changes` and `sweep`."
        if len(set(values)) < len(values):
            text = f"`sweep.{path}` has a duplicate: {', '.join(map(str, values))}."
            yield ("sweep", path), text
        for value in values:
            if not LABEL.fullmatch(suffix({path: value})[1:]):
                yield ("sweep", path), f"`sweep.{path}`: {value!r} cannot be part of a folder name."


def combinations(sweep: Mapping[str, Sequence[Scalar]]) -> list[dict[str, Scalar]]:
    """All combinations of swept settings; without a sweep, one that changes nothing.

    Example:
      >>> combinations({"rl.reward_noise": [0.0, 0.1], "rl.beta": [0.01]})
      [{'rl.reward_noise': 0.0, 'rl.beta': 0.01}, {'rl.reward_noise': 0.1, 'rl.beta': 0.01}]
      >>> combinations({})
      [{}]
    """
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def suffix(swept: Mapping[str, Scalar]) -> str:
    """Suffix of a run's folder name for swept settings.

    Example:
      >>> suffix({"rl.reward_noise": 0.1, "rl.learning_rate": 1e-5})
      '-reward_noise0.1-learning_rate1e-05'
    """
    return "".join(f"-{path.rpartition('.')[2]}{_text(v)}" for path, v in swept.items())


def _complaint(where: tuple[Any, ...], message: str, given: object) -> Complaint:
    dotted = ".".join(map(str, where))
    if message.startswith(("Missing", "Field required")):
        return where, f"`{dotted}` is missing."
    return where, f"`{dotted}` {rule(message)}, got {given!r}."


def labelled_methods(
    methods: Mapping[str, Mapping[str, Any]], errors: list[Complaint]
) -> dict[str, Method]:
    """Methods by label, with sweeps expanded; errors in them are appended to ``errors``.

    ``{atr: {name: atr, sweep: {delta: [0.05, 0.07]}}}`` makes ``atr-delta0.05`` and
    ``atr-delta0.07``; of several swept hyper-parameters every combination is made.
    """
    found: dict[str, Method] = {}
    for label, spec in methods.items():
        try:
            variants = list(_variants(spec))
        except ValueError as error:
            errors.append((("methods", label), f"{label}: {error}"))
            continue
        for swept, arguments in variants:
            try:
                method = as_method(arguments)
            except (ValueError, TypeError) as error:
                errors.append((("methods", label), f"{label}: {error}"))
                continue
            full = label + "".join(f"-{key}{_text(getattr(method, key))}" for key in swept)
            if full in found:
                errors.append((("methods", label), f"a second method with the label {full!r}."))
            elif not LABEL.fullmatch(full):
                text = (
                    f"the label {full!r} names a folder: use letters, digits and, not first, ._+-"
                )
                errors.append((("methods", label), text))
            found[full] = method
    return found


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
    return [
        (list(sweep), {**fixed, **dict(zip(sweep, values, strict=True))})
        for values in itertools.product(*sweep.values())
    ]


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
