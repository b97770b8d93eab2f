"""Runs as Ray tasks."""

import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trustclip.train.suite.launchers.base import RemoteRun, Resources, attend, clear

#: Where Ray notes the cluster that this machine belongs to.
_CLUSTER = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray", "ray_current_cluster")
#: Whether this machine belongs to a cluster, or has the address of one.
JOINS = bool(os.environ.get("RAY_ADDRESS")) or _CLUSTER.exists()

# A Ray of our own listens on 127.0.0.1 alone, and who joins needs a token. Ray reads both when it
# is imported. It takes no such address from `ray.init`; on macOS and Windows that is what it does
# unless this variable says otherwise, and on Linux where it says so.
if not JOINS and "ray" not in sys.modules:
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

import ray as package  # noqa: E402  # pyright: ignore[reportMissingImports]  # an extra

#: A type checker finds this file under the name of the package.
ray: Any = package


class Ray:
    """One Ray task per run.

    Tasks run on the cluster that RAY_ADDRESS names or that this machine belongs to; where there is
    none, on a local Ray started for the purpose.
    """

    def __init__(self, resources: Resources) -> None:
        for name, amount in resources.extra.items():
            if not (isinstance(amount, int | float) and amount > 0):
                raise ValueError(
                    f"--extra {name} must be an amount of a Ray resource above 0, got {amount!r}."
                )
        self._own = not ray.is_initialized()
        if self._own:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            own = {} if JOINS else {"include_dashboard": False}
            ray.init(log_to_driver=False, logging_level="error", **own)
        request = {"CPU": resources.cpus, "GPU": resources.gpus, **resources.extra}
        try:
            _check(request)
        except ValueError:
            self.close()
            raise
        # A fresh worker for each run, like a process on one machine; and no automatic retry: the
        # suite's next call retries, and reports it.
        self._attend: Any = ray.remote(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            resources=dict(resources.extra),
            max_calls=1,
            max_retries=0,
        )(attend)
        self._threads = resources.cpus

    def start(self, folder: Path, command: Sequence[str], slot: int) -> RemoteRun:
        folder = folder.resolve()
        clear(folder)
        remote = self._attend.options(name=folder.name)
        return RemoteRun(
            folder, _Task(remote.remote(folder, list(command), Path.cwd(), self._threads))
        )

    def close(self) -> None:
        if self._own:
            ray.shutdown()


def _check(request: dict[str, Any]) -> None:
    """Refuse a task that no node can ever run: it would wait forever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(node.get(k, 0) >= n for k, n in request.items()) for node in nodes):
        return
    text = ", ".join(f"{k} {n:g}" for k, n in request.items() if n)
    offered = "; ".join(", ".join(f"{k} {node.get(k, 0):g}" for k in request) for node in nodes)
    raise ValueError(f"no node of the Ray cluster has {text}. Its nodes: {offered}.")


class _Task:
    def __init__(self, reference: Any) -> None:
        self._reference = reference
        self.name = f"task {reference.task_id().hex()}"

    def done(self) -> bool:
        return bool(ray.wait([self._reference], timeout=0)[0])

    def result(self) -> int | None:
        return ray.get(self._reference)

    def cancel(self) -> None:
        ray.cancel(self._reference)
