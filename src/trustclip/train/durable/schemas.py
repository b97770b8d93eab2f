"""What the JSON files of a checkpoint may hold: names, and the type of each value.

A manifest's hashes find damage, not forgery. So before anything of a run is touched, its state is
checked against these types, and content that no trainer writes is one error with file and key.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict

from trustclip.support.schemas import OPEN, STRICT, Number, mapping

Count = Annotated[int, Field(ge=0)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Extent(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    bytes: Count
    sha256: Digest


class _Identity(TypedDict):
    __pydantic_config__ = OPEN  # type: ignore[misc]
    processes: Count


class Shared(TypedDict):
    """``shared.json``: the identity of the training, and the extents of its append-only files."""

    __pydantic_config__ = STRICT  # type: ignore[misc]
    identity: _Identity
    cursor: dict[str, Count | _Extent]


class _Exported(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    args: dict[str, Any]
    attributes: dict[str, Any]


class State(TypedDict):
    """``trainer_state.json``, of which Transformers writes more."""

    __pydantic_config__ = OPEN  # type: ignore[misc]
    global_step: Count
    max_steps: int
    epoch: float | None
    num_train_epochs: int
    logging_steps: float
    eval_steps: float
    save_steps: float
    train_batch_size: int | None
    num_input_tokens_seen: int
    total_flos: float
    log_history: list[dict[str, bool | int | float | str | None]]
    best_metric: NotRequired[float | None]
    best_global_step: NotRequired[int | None]
    best_model_checkpoint: NotRequired[None]
    trial_name: NotRequired[None]
    trial_params: NotRequired[None]
    stateful_callbacks: dict[str, list[_Exported]]


class _Random(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[Any, ...]
    torch: Tensor
    cuda: NotRequired[Tensor]


class _Loop(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    loss: Tensor
    logged: int
    order: int | None


#: Metrics not yet logged, by mode and name.
Metrics = dict[Literal["train", "eval"], dict[str, list[Number]]]


def rank_of(progress: Mapping[str, Any], carried: Mapping[str, Any]) -> Any:
    """The type of ``rank-N.json``, from those of what a trainer carries from update to update."""
    own = mapping("Carried", carried, total=False)  # earlier releases carried fewer
    inner = mapping("Progress", {"carried": own, **progress})
    return mapping("Rank", {"random": _Random, "loop": _Loop, "progress": inner})
