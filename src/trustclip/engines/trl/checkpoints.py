"""What a checkpoint of Transformers lacks of this engine, in a file beside its own.

A ``checkpoint-N`` of Transformers' `Trainer` has weights, optimizer, scheduler and random states.
Added are the thresholds of a method that adapts, and the counters behind warnings. As in TRL, what
is left of a half-used generation and of metrics not yet logged is not stored: they begin anew.
"""

import json
import warnings
from pathlib import Path
from typing import Any

from trustclip.constraints import adaptive
from trustclip.support import schemas

_NUMBERS = "trustclip.json"

_STATE = schemas.mapping(
    "EngineState",
    {
        "method": dict[str, Any],  # whose thresholds they are
        "thresholds": schemas.Numbers,
        "last_closed": int,
        "recorded_tokens": int,
    },
    more=True,
)


def save(trainer: Any, folder: Path) -> None:
    """Write the engine's state into a checkpoint."""
    state = {
        "method": _named(trainer),
        "thresholds": adaptive.state(trainer.method),
        "last_closed": trainer._last_closed,
        "recorded_tokens": trainer._recorded_tokens,
    }
    (folder / _NUMBERS).write_text(json.dumps(state), encoding="utf-8")


def restore(trainer: Any, folder: Path) -> None:
    """Continue from a checkpoint; what it does not hold begins anew, with a warning.

    Raises:
      ValueError: its files hold what no trainer of this engine writes.
    """
    file, stored = folder / _NUMBERS, {}
    trainer._last_closed = trainer.state.global_step
    if file.exists():
        stored = schemas.read_json(file)
        schemas.conform(stored, _STATE, str(file))
        trainer._last_closed = stored["last_closed"]
        trainer._recorded_tokens = stored["recorded_tokens"]
    if own := adaptive.state(trainer.method):
        if stored.get("method") == _named(trainer):
            schemas.alike(stored["thresholds"], own, f"{file}: thresholds")
            trainer.method = adaptive.restored(trainer.method, stored["thresholds"])
        else:
            name = trainer.method.name
            warnings.warn(
                f"{folder} lacks the thresholds of {name!r}: they begin anew.", stacklevel=2
            )


def _named(trainer: Any) -> dict[str, Any]:
    """The method as JSON has it, without what `after` has changed."""
    return json.loads(json.dumps(trainer.args.constraint().to_dict(), default=str))
