"""What the JSON files of a checkpoint may hold: names, and the type of each value.

A manifest's hashes find damage, not forgery. So before anything of a run is touched, its state is
checked against these types, and content that no trainer writes is one error with file and key.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from torch import Tensor

from trustclip.support.schemas import Number, mapping

Count = Annotated[int, Field(ge=0)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


_IDENTITY = mapping("Identity", {"processes": Count}, more=True)
_EXTENT = mapping("Extent", {"bytes": Count, "sha256": Digest})
#: ``shared.json``: the identity of the training, and the extents of its append-only files.
SHARED = mapping("Shared", {"identity": _IDENTITY, "cursor": dict[str, Count | _EXTENT]})

_EXPORTED = mapping("Exported", {"args": dict[str, Any], "attributes": dict[str, Any]})
#: ``trainer_state.json``, of which Transformers writes more.
STATE = mapping(
    "State",
    {
        "global_step": Count,
        "max_steps": int,
        "epoch": float | None,
        "num_train_epochs": int,
        "logging_steps": float,
        "eval_steps": float,
        "save_steps": float,
        "train_batch_size": int | None,
        "num_input_tokens_seen": int,
        "total_flos": float,
        "log_history": list[dict[str, bool | int | float | str | None]],
        "best_metric": NotRequired[float | None],
        "best_global_step": NotRequired[int | None],
        "best_model_checkpoint": NotRequired[None],
        "trial_name": NotRequired[None],
        "trial_params": NotRequired[None],
        "stateful_callbacks": dict[str, list[_EXPORTED]],
    },
    more=True,
)

_RANDOM = mapping(
    "Random",
    {
        "python": tuple[int, tuple[int, ...], float | None],
        "numpy": tuple[Any, ...],
        "torch": Tensor,
        "cuda": NotRequired[Tensor],
    },
)
_LOOP = mapping("Loop", {"loss": Tensor, "logged": int, "order": int | None})

#: Metrics not yet logged, by mode and name.
Metrics = dict[Literal["train", "eval"], dict[str, list[Number]]]


def rank_of(progress: Mapping[str, Any], carried: Mapping[str, Any]) -> Any:
    """The type of ``rank-N.json``, from those of what a trainer carries from update to update."""
    own = mapping("Carried", carried, total=False)  # earlier releases carried fewer
    inner = mapping("Progress", {"carried": own, **progress})
    return mapping("Rank", {"random": _RANDOM, "loop": _LOOP, "progress": inner})
