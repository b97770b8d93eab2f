"""Methods x environments x seeds in PPO, resumable, as a table: ``trustclip control``."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from rich.console import Console
from rich.table import Table

from trustclip.stats import Difference, Interval, RunSummary, holm
from trustclip.support.checked import Count, Positive, checked
from trustclip.support.jsonl import write_json
from trustclip.support.marks import Also
from trustclip.support.terminal import print_table
from trustclip_lab.stats.aggregates import interquartile_interval
from trustclip_lab.stats.equivalence import (
    UNCONSTRAINED,
    conclude,
    equivalence_p,
    paired_runs,
    parse_method,
)

#: Difference that would matter, a share of the reference's return.
MARGIN = 0.1
#: Corrected p at which a difference is found.
ALPHA = 0.05
#: Error for a missing package.
_EXTRA = "this needs the extra `control`: pip install 'trustclip[control]' ({error})."


@checked
class ControlSettings:
    """Environments, methods and PPO settings; the latter are the same for every method."""

    envs: Annotated[tuple[str, ...], Also(("--env",))] = ("CartPole-v1",)
    """Gymnasium environments with discrete or box actions."""
    methods: Annotated[tuple[str, ...], Also(("--method",))] = ("clip", "atr")
    """Methods: a name, or "{name: atr, delta: 0.05}"; "none" is a gate that never closes."""
    reference: str | None = None
    """Method that the others are compared with; by default clip if listed, else the first."""
    seeds: Annotated[int, Field(ge=2)] = 5
    """Training seeds per method and environment."""
    steps: Count = 16384
    """Environment steps per run."""
    n_envs: Count = 8
    """Parallel copies of the environment."""
    n_steps: Count = 128
    """Steps of each copy per generation."""
    n_epochs: Count = 10
    """Passes over a generation; the first update of each generation is at ratio 1."""
    batch_size: Annotated[int, Field(ge=2)] = 256
    """States per update."""
    learning_rate: Positive = 1e-3
    """Learning rate of Adam."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the policy; for networks this small a CPU is the faster one."""
    output_dir: Path = Path("runs/control")
    """Folder with one file per run; runs that have a file are skipped."""

    def __post_init__(self) -> None:
        for name in ("envs", "methods"):
            if not getattr(self, name):
                raise ValueError(f"`{name}` needs at least one name.")
        for text in self.methods:
            parse_method(text)
        if self.reference not in (None, *self.methods):
            raise ValueError(f"`reference` must be one of the methods, got {self.reference!r}.")

    @property
    def base(self) -> str:
        """The method that the others are compared with."""
        return self.reference or ("clip" if "clip" in self.methods else self.methods[0])


#: Larger tables by name: minutes on one core.
PRESETS = {
    "small": ControlSettings(
        envs=("CartPole-v1", "InvertedPendulum-v5", "InvertedDoublePendulum-v5"),
        methods=(
            UNCONSTRAINED,
            "clip",
            "{name: clip, epsilon: 0.375}",  # as wide as atr: the mean of its two offsets
            "atr",
            "full_kl",
            "{name: truly_ppo, variant: truly}",
        ),
        steps=10240,
        learning_rate=3e-3,
    ),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run: environment, method, seed and result file."""

    env: str
    method: str
    seed: int
    path: Path
    settings: dict[str, Any]


def cells(settings: ControlSettings) -> Iterator[Cell]:
    """All runs in order of seed, so that complete comparisons remain after an interruption."""
    options = dataclasses.asdict(settings)  # type: ignore[call-overload]
    shared = {k: options[k] for k in _PPO}
    if settings.device != "cpu":  # so that the files of earlier releases keep their names
        shared["device"] = settings.device
    for seed in range(settings.seeds):
        for env in settings.envs:
            for text in settings.methods:
                run = {"env": env, "method": parse_method(text).to_dict(), "seed": seed, **shared}
                key = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:8]
                name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{env}-{text}").strip("-")
                path = settings.output_dir / f"{name}-seed{seed}-{key}.json"
                yield Cell(env, text, seed, path, run)


#: Settings of PPO, in its own names but for ``steps``.
_PPO = ("steps", "n_envs", "n_steps", "n_epochs", "batch_size", "learning_rate")


def train(cell: Cell) -> dict[str, Any]:
    """Train one run and evaluate it.

    Returns:
      ``final``, mean return of 16 episodes of the trained policy's likeliest actions;
      ``training``, that of all episodes of the training; the gate's means over it.

    Raises:
      ValueError: the extra is missing, or the environment or method cannot be used.
    """
    try:
        import gymnasium  # pyright: ignore[reportMissingImports]
        from stable_baselines3.common import (  # pyright: ignore[reportMissingImports]
            env_util,
            evaluation,
        )

        from trustclip_lab.control.sb3 import ConstrainedPPO
    except ImportError as error:
        raise ValueError(_EXTRA.format(error=error)) from error
    options, seed = cell.settings, cell.seed
    try:
        envs, held_out = (
            env_util.make_vec_env(cell.env, n_envs=options["n_envs"], seed=first)
            for first in (seed, seed + 10_000)
        )
    except (gymnasium.error.Error, ImportError) as error:
        raise ValueError(f"environment {cell.env!r}: {error}") from error
    settings = {name: options[name] for name in _PPO if name not in ("steps", "n_envs")}
    method = parse_method(cell.method)
    model = ConstrainedPPO(
        "MlpPolicy", envs, seed=seed, device=options.get("device", "cpu"), method=method, **settings
    ).learn(options["steps"])
    history = model.history
    episodes = [r for rewards in envs.env_method("get_episode_rewards") for r in rewards]
    final: Any = evaluation.evaluate_policy(model, held_out, n_eval_episodes=16)[0]
    gate = {name: sum(h[name] for h in history) / len(history) for name in ("gated", "k3", "ess")}
    return {"final": float(final), "training": sum(episodes) / max(len(episodes), 1), **gate}


def run_control(settings: ControlSettings, console: Console) -> list[dict[str, Any]]:
    """Run all missing runs, and print the table.

    Args:
      settings: see `ControlSettings`.
      console: gets progress and table.

    Returns:
      A row for each environment and method, as `rows` makes them.
    """
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    every = list(cells(settings))
    outcomes = {}
    for number, cell in enumerate(every, start=1):
        if not cell.path.exists():
            console.print(f"{number}/{len(every)} {cell.env} {cell.method} seed {cell.seed}")
            write_json(cell.path, {**cell.settings, "outcome": train(cell)})
        outcome = json.loads(cell.path.read_text(encoding="utf-8"))["outcome"]
        outcomes.setdefault((cell.env, cell.method), []).append(outcome)
    table_rows = rows(outcomes, settings.base)
    print_table(console, table(table_rows, settings))
    for method, one in middles(outcomes, settings.base).items():
        shares = f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]"
        console.print(f"{method}: {shares} of {settings.base}'s final return, middle half of runs")
    return table_rows


def middles(
    outcomes: dict[tuple[str, str], list[dict[str, float]]], reference: str
) -> dict[str, Interval]:
    """Method -> interquartile mean of final returns as shares of the reference's mean return.

    Over the runs of all environments; none where a reference's mean return is not above 0.

    Example:
      >>> runs = {("E", "clip"): [{"final": 1.0}, {"final": 3.0}]}
      >>> middles(runs | {("E", "atr"): [{"final": 4.0}] * 2}, "clip")["atr"].value
      2.0
    """
    shares: dict[str, list[Any]] = {}
    for (env, method), seeds in outcomes.items():
        base = RunSummary.of([o["final"] for o in outcomes[env, reference]]).mean
        if base <= 0:
            return {}
        own = np.array([[o["final"] / base] for o in seeds])
        shares.setdefault(method, []).append(own)
    return {method: interquartile_interval(own) for method, own in shares.items()}


def rows(
    outcomes: dict[tuple[str, str], list[dict[str, float]]], reference: str
) -> list[dict[str, Any]]:
    """Means with 95 % intervals over seeds, and differences from the reference, paired by seed.

    ``p_holm_final`` and ``p_holm_training``, of "no difference", are corrected for all comparisons
    of both returns in all environments, one family; so are ``p_same_final`` and
    ``p_same_training``, of "a difference of `MARGIN` of the reference's return or more".
    ``so_final`` and ``so_training`` are what both say.

    Args:
      outcomes: (environment, method) -> its runs, all with the same seeds in the same order.
      reference: method that the others are compared with.

    Example:
      >>> some = {"final": 1.0, "training": 1.0, "gated": 0.0, "k3": 0.0, "ess": 1.0}
      >>> two = [some, {**some, "final": 3.0}]
      >>> rows({("E", "clip"): two}, "clip")[0]["final"].value
      2.0
    """
    table_rows = []
    for (env, method), seeds in outcomes.items():
        row: dict[str, Any] = {"env": env, "method": method}
        base = outcomes[env, reference]
        for name in ("final", "training"):
            mine = RunSummary.of([o[name] for o in seeds])
            row[name] = mine.interval()
            if method != reference:
                pairs = zip(seeds, base, strict=True)
                gaps = RunSummary.of([own[name] - other[name] for own, other in pairs])
                row[f"less_{name}"] = paired_runs(gaps)
                level = sum(other[name] for other in base) / len(base)
                row[f"same_{name}"] = equivalence_p(gaps, MARGIN * abs(level) or MARGIN)
        means = {k: sum(o[k] for o in seeds) / len(seeds) for k in ("gated", "k3", "ess")}
        table_rows.append({**row, **means})
    tested = [(row, n) for row in table_rows for n in ("final", "training") if f"less_{n}" in row]
    corrected = holm([row[f"less_{name}"].p for row, name in tested]).tolist()
    same = holm([row[f"same_{name}"] for row, name in tested]).tolist()
    for (row, name), p, q in zip(tested, corrected, same, strict=True):
        row[f"p_holm_{name}"], row[f"p_same_{name}"] = p, q
        value = row[f"less_{name}"].value
        conclusion: str = conclude(value, p, q)
        if conclusion == "equivalent" and p <= ALPHA:
            conclusion = f"{conclude(value, p, 1.0)}, equivalent"
        row[f"so_{name}"] = conclusion
    return sorted(table_rows, key=lambda row: list(outcomes).index((row["env"], row["method"])))


def table(table_rows: Sequence[dict[str, Any]], settings: ControlSettings) -> Table:
    """The rows with headings, formatted for reading."""
    grid = Table(box=None, pad_edge=False)
    for title in COLUMNS:
        grid.add_column(title.format(reference=settings.base), overflow="fold")
    for line in lines(table_rows):
        grid.add_row(*line)
    return grid


#: Headings of `lines`.
COLUMNS = (
    "environment", "method", "final return", "minus {reference}", "p different", "p equivalent",
    "so", "return while training", "minus {reference}", "p different", "p equivalent", "so",
    "gated", "k3",
)  # fmt: skip


def lines(table_rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The rows as text."""
    for row in table_rows:
        yield (
            row["env"], row["method"],
            _interval(row["final"]), _less(row.get("less_final")), _p(row.get("p_holm_final")),
            _p(row.get("p_same_final")), row.get("so_final", "-"),
            _interval(row["training"]), _less(row.get("less_training")),
            _p(row.get("p_holm_training")), _p(row.get("p_same_training")),
            row.get("so_training", "-"),
            f"{row['gated']:.1%}", f"{row['k3']:.4f}",
        )  # fmt: skip


def _interval(one: Interval) -> str:
    return f"{one.value:.0f} [{one.low:.0f}, {one.high:.0f}]"


def _p(p: float | None) -> str:
    return "-" if p is None or p != p else f"{p:.2g}"


def _less(one: Difference | None) -> str:
    if one is None:
        return "-"
    return f"{one.value:+.0f} [{one.low:+.0f}, {one.high:+.0f}]"
