"""Sinks: experiment trackers that get the metrics; the only module that imports their packages.

``metrics.jsonl`` holds everything. A sink is a view of it: numbers only, offline unless the user's
environment configures otherwise, inside the run directory, and its failure never stops a run.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import io
import json
import math
import os
import shlex
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from trustclip.logs.identity import flat
from trustclip.support.inside import refuse_links
from trustclip.support.jsonl import read_mapping, scan
from trustclip.support.secrets import redact
from trustclip.support.text import one_line

SinkName = Literal["none", "trackio", "tensorboard", "wandb", "mlflow"]

Row = Mapping[str, Any]


class Sink:
    """A receiver of the rows of ``metrics.jsonl``; this one keeps nothing."""

    def log(self, row: Row) -> None:
        """Log one row."""

    def close(self) -> None:
        """Flush and close; no row follows."""


def open_sink(name: SinkName, run_name: str, config: Mapping[str, Any], folder: Path) -> Sink:
    """Open the sink with a given name.

    A later failure of its package is reported once, as a warning, and stops only the sink. Files go
    to a subfolder of the run directory with the sink's name.

    Raises:
      ValueError: its package is missing or cannot start.

    Example:
      >>> open_sink("none", "tiny", {}, Path("runs/tiny")).log({"stage": "rl", "step": 1})
    """
    if name == "none":
        return Sink()
    return _FailSafe(name, start_sink(name, run_name, config, folder))


def start_sink(name: SinkName, run_name: str, config: Mapping[str, Any], folder: Path) -> Sink:
    """The same, of a sink that is not none, whose failures are errors."""
    sinks: dict[str, Callable[..., Sink]] = {
        "trackio": _Trackio,
        "tensorboard": _TensorBoard,
        "wandb": _Wandb,
        "mlflow": _MLflow,
    }
    try:
        plain = json.loads(json.dumps(config, default=str))
        return sinks[name](run_name, plain, folder / name)
    except ImportError as error:
        raise ValueError(_cannot_import(name, str(error))) from None
    except Exception as error:
        raise ValueError(f"the sink {name!r} cannot start: {_describe(error)}") from error


def missing(name: SinkName) -> str | None:
    """Why a sink cannot be used here, None if its package is installed.

    Example:
      >>> missing("none") is None
      True
    """
    if name == "none":
        return None
    try:
        installed = importlib.util.find_spec(name) is not None
    except ValueError:  # already imported, as a module object made by hand that has no spec
        installed = True
    return None if installed else _cannot_import(name, "it is not installed")


def viewer(name: SinkName, folder: Path) -> str | None:
    """The command that shows what a sink holds; None for no sink.

    Example:
      >>> viewer("tensorboard", Path("runs/tiny"))
      'tensorboard --logdir runs/tiny/tensorboard'
    """
    own = shlex.quote(str(folder / name))
    database = shlex.quote(os.environ.get("TRACKIO_DIR") or str(folder / name))
    commands = {
        "trackio": f"TRACKIO_DIR={database} trackio show --project trustclip",
        "tensorboard": f"tensorboard --logdir {own}",
        "wandb": f"wandb sync {own}/wandb/offline-run-*",
        "mlflow": "mlflow ui --backend-store-uri "
        + shlex.quote(os.environ.get("MLFLOW_TRACKING_URI") or _database(folder / name)),
    }
    return commands.get(name)


def _database(folder: Path) -> str:
    return f"sqlite:///{folder.resolve()}/mlflow.db"


def _cannot_import(name: str, reason: str) -> str:
    return (
        f"the sink {name!r} cannot be used: {reason}; pip install {name}, or set the sink to "
        "'none': metrics.jsonl has every number."
    )


def numbers(row: Row) -> dict[str, float]:
    """The finite numbers of a row, each under a name that stage and task make unique.

    Example:
      >>> numbers({"stage": "eval", "step": 32, "task": "aime24", "mean@8": 0.125})
      {'eval/aime24/mean@8': 0.125}
    """
    place = "/".join(str(row[key]) for key in ("stage", "task") if row.get(key) is not None)
    prefix = place + "/" if place else ""
    return {
        prefix + name: value
        for name, value in row.items()
        if name != "step" and isinstance(value, int | float) and math.isfinite(value)
    }


class _FailSafe(Sink):
    """A sink that is dropped, with a warning, when it fails."""

    def __init__(self, name: str, sink: Sink) -> None:
        self._name, self._sink = name, sink

    def log(self, row: Row) -> None:
        self._try(lambda sink: sink.log(row))

    def close(self) -> None:
        self._try(lambda sink: sink.close())
        self._sink = Sink()

    def _try(self, action: Callable[[Sink], None]) -> None:
        try:
            action(self._sink)
        except Exception as error:
            self._sink = Sink()
            warnings.warn(
                f"the sink {self._name!r} failed and gets no more rows ({_describe(error)}); "
                "training goes on and metrics.jsonl has everything.",
                stacklevel=4,
            )


def _describe(error: Exception) -> str:
    return one_line(redact(f"{type(error).__name__}: {error}"))


def _import(module: str, environment: Mapping[str, str]) -> ModuleType:
    """Import a package with environment variables set, unless the user has set them."""
    for key, value in environment.items():
        os.environ.setdefault(key, value)
    return importlib.import_module(module)


class _Trackio(Sink):
    """Trackio, in a local database; see https://github.com/gradio-app/trackio."""

    def __init__(self, run_name: str, config: Mapping[str, Any], folder: Path) -> None:
        # Without a Space id or server address it is local; it reads its folder once, at import.
        local = {"TRACKIO_DIR": str(folder), "HF_HUB_DISABLE_TELEMETRY": "1"}
        self._trackio: Any = _import("trackio", local)
        with contextlib.redirect_stdout(io.StringIO()):  # its banner would break the progress bar
            self._run = self._trackio.init(
                project="trustclip", name=run_name, config=config, resume="allow",
                auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip

    def log(self, row: Row) -> None:
        if values := numbers(row):
            self._run.log(values, step=row.get("step"))

    def close(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._trackio.finish()


class _Wandb(Sink):
    """Weights & Biases, offline; ``wandb sync`` uploads the folder later, if wanted."""

    def __init__(self, run_name: str, config: Mapping[str, Any], folder: Path) -> None:
        self._wandb: Any = _import(
            "wandb", {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
        )
        folder.mkdir(parents=True, exist_ok=True)
        self._run = self._wandb.init(
            project="trustclip", name=run_name, config=config, dir=str(folder),
            mode=os.environ["WANDB_MODE"],  # an earlier import may have read another
            # A resumed run keeps its id, so that its parts are one run when uploaded.
            id=hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16], resume="allow",
            settings=self._wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False,
                disable_code=True, x_disable_machine_info=True, x_disable_stats=True,
            ),
        )  # fmt: skip
        # Its own step may never decrease, and trustclip's restarts with every stage.
        for stage in ("sft", "rl", "eval"):
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")

    def log(self, row: Row) -> None:
        if values := numbers(row):
            self._run.log({**values, f"{row.get('stage')}/step": row.get("step")})

    def close(self) -> None:
        self._run.finish()


class _TensorBoard(Sink):
    """TensorBoard event files, by PyTorch's writer."""

    def __init__(self, run_name: str, config: Mapping[str, Any], folder: Path) -> None:
        tensorboard: Any = _import("torch.utils.tensorboard", {})
        self._writer = tensorboard.SummaryWriter(str(folder))
        text = json.dumps(config, indent=2)
        # Indented by four spaces, Markdown shows any content as code.
        self._writer.add_text(run_name, "\n".join("    " + line for line in text.splitlines()))

    def log(self, row: Row) -> None:
        for name, value in numbers(row).items():
            self._writer.add_scalar(name, value, row.get("step"))

    def close(self) -> None:
        self._writer.close()


class _MLflow(Sink):
    """MLflow, in a local database unless ``MLFLOW_TRACKING_URI`` names a server."""

    def __init__(self, run_name: str, config: Mapping[str, Any], folder: Path) -> None:
        quiet = {
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_LOGGING_LEVEL": "WARNING",
            "GIT_PYTHON_REFRESH": "quiet",
        }
        self._entities: Any = _import("mlflow.entities", quiet)
        folder.mkdir(parents=True, exist_ok=True)
        address = os.environ.get("MLFLOW_TRACKING_URI") or _database(folder)
        self._client: Any = importlib.import_module("mlflow").MlflowClient(address)
        entry = self._client.get_experiment_by_name("trustclip")
        experiment = entry.experiment_id if entry else self._client.create_experiment("trustclip")
        identity = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        # A resumed run goes on in the run that it began.
        runs = self._client.search_runs([experiment], f"tags.`trustclip.run` = '{identity}'")
        if runs:
            self._run = runs[0].info.run_id
            return
        tags = {"trustclip.run": identity}
        self._run = self._client.create_run(experiment, tags=tags, run_name=run_name).info.run_id
        settings = [
            self._entities.Param(name, str(value)[:500]) for name, value in flat(config).items()
        ]
        for first in range(0, len(settings), 100):  # MLflow's most in one call
            self._client.log_batch(self._run, params=settings[first : first + 100])

    def log(self, row: Row) -> None:
        now = int(1000 * time.time())
        # MLflow takes no @ in a name.
        values = [
            self._entities.Metric(name.replace("@", "-at-"), value, now, row.get("step") or 0)
            for name, value in numbers(row).items()
        ]
        self._client.log_batch(self._run, metrics=values)

    def close(self) -> None:
        self._client.set_terminated(self._run)


def send(run: Path, sink: SinkName) -> int:
    """Send the metrics of a run directory to a tracker, in the order in which they were logged.

    Its files go to a subfolder of the tracker's name. Returns the number of rows sent.

    Raises:
      ValueError: no run, nothing logged, a tracker that already has it, or whose package is
        missing or fails.
    """
    if not (run / "config.yaml").is_file():
        raise ValueError(f"{run} is not a run directory: it has no config.yaml.")
    refuse_links(run)
    metrics, folder = run / "metrics.jsonl", run / sink
    rows = (line.row for line in scan(metrics)) if metrics.is_file() else ()
    logged = [row for row in rows if row is not None]
    if not logged:
        raise ValueError(f"{run} has logged nothing yet: there is no row in {metrics.name}.")
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(
            f"{folder} exists: this run has been sent to {sink}, or logged to it while it trained. "
            "Move the folder away to send it again."
        )
    tracker = start_sink(
        sink, run.resolve().name, redact(dict(read_mapping(run / "config.yaml"))), run
    )
    try:
        for row in logged:
            tracker.log(row)
    except Exception as error:
        raise ValueError(f"{sink} failed after part of the rows: {error}.") from error
    finally:
        tracker.close()
    return len(logged)
