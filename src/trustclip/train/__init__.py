"""Fine-tuning, reinforcement learning and evaluation from one file.

`load_model` gives a model and its tokenizer: a small one that is made here (``"tiny"``), SmolLM2
(``"smollm2"``), or one of the hub.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trustclip.train.models import load_model as load_model


def __getattr__(name: str) -> Any:
    # Lazily: the model libraries take seconds, and every command imports this package.
    if name == "load_model":
        from trustclip.train.models import load_model

        return load_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
