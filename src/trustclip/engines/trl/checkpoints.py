"""What a checkpoint of Transformers lacks of this engine, in two files beside its own.

A ``checkpoint-N`` of Transformers' `Trainer` has weights, optimizer, scheduler and random states.
Added are the thresholds of a method that adapts, the averaged weights that it may be anchored at,
and the counters behind warnings. As in TRL, what is left of a half-used generation and of metrics
not yet logged is not stored: they begin anew.
"""

import json
import warnings
from pathlib import Path
from typing import Annotated, Any

from pydantic import Strict
from safetensors.torch import load_file, save_file

from trustclip.constraints import adaptive
from trustclip.support import schemas

_NUMBERS, _TENSORS = "trustclip.json", "trustclip.safetensors"

_STATE = schemas.mapping(
    "EngineState",
    {
        "method": dict[str, Any],  # whose thresholds they are
        "thresholds": schemas.Numbers,
        "last_closed": int,
        "recorded_tokens": int,
        # Its last update, and its sum of weights; JSON has lists.
        "average": Annotated[tuple[int, float], Strict(False)],
    },
)


def save(trainer: Any, folder: Path) -> None:
    """Write the engine's state into a checkpoint."""
    step, total, averaged = trainer._average.state() if trainer._average else (0, 0.0, [])
    state = {
        "method": _named(trainer),
        "thresholds": adaptive.state(trainer.method),
        "last_closed": trainer._last_closed,
        "recorded_tokens": trainer._recorded_tokens,
        "average": [step, total],
    }
    (folder / _NUMBERS).write_text(json.dumps(state), encoding="utf-8")
    tensors = {f"average/{i}": weight for i, weight in enumerate(averaged)}
    if tensors:
        save_file({name: x.contiguous() for name, x in tensors.items()}, folder / _TENSORS)


def restore(trainer: Any, folder: Path) -> None:
    """Continue from a checkpoint; what it does not hold begins anew, with a warning.

    Raises:
      ValueError: its files hold what no trainer of this engine writes.
    """
    file, stored, tensors = folder / _NUMBERS, {}, {}
    trainer._last_closed = trainer.state.global_step
    if file.exists():
        stored = schemas.read_json(file)
        schemas.conform(stored, _STATE, str(file))
        trainer._last_closed = stored["last_closed"]
        trainer._recorded_tokens = stored["recorded_tokens"]
    if (folder / _TENSORS).exists():
        tensors = load_file(folder / _TENSORS)
    lost = []
    if own := adaptive.state(trainer.method):
        if stored.get("method") == _named(trainer):
            schemas.alike(stored["thresholds"], own, f"{file}: thresholds")
            trainer.method = adaptive.restored(trainer.method, stored["thresholds"])
        else:
            lost.append(f"the thresholds of {trainer.method.name!r}")
    if trainer._average:
        if tensors:
            averaged = [tensors[f"average/{i}"] for i in range(len(tensors))]
            trainer._average.restore([*stored["average"], averaged])
        else:
            lost.append("the averaged weights")
    if lost:
        warnings.warn(f"{folder} lacks {', '.join(lost)}: begun anew.", stacklevel=2)


def _named(trainer: Any) -> dict[str, Any]:
    """The method as JSON has it, without what `after` has changed."""
    return json.loads(json.dumps(trainer.args.constraint().to_dict(), default=str))
