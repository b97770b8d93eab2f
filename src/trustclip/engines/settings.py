"""The settings that this library adds to TRL's, declared once. Imports neither PyTorch nor TRL.

`ConstrainedGRPOConfig` has fields with these defaults and texts, and a stage of the training
program inherits them.
"""

from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field, PlainValidator

from trustclip.support.checked import Whole, checked
from trustclip.support.marks import Neutral, ToTrl, descriptions
from trustclip.support.yaml_files import yaml_list

if TYPE_CHECKING:
    from trustclip.constraints.base import Method as Part

    Parts = tuple[Part, ...]
else:

    def _method(value: object) -> Any:
        from trustclip.constraints.registry import as_method

        return as_method(value)

    def _methods(value: Any) -> Any:
        value = yaml_list(value) if isinstance(value, str) else value
        if not isinstance(value, list | tuple):
            raise ValueError(f"should be a list of methods, got {value!r}")
        return tuple(map(_method, value))

    #: `trustclip.constraints.registry.Part` without its import of PyTorch, which help waits for;
    #: to the command line it is text.
    Part = Annotated[str, PlainValidator(_method), Field(validate_default=True)]
    #: Several of them; to the command line, names separated by commas.
    Parts = Annotated[str, PlainValidator(_methods), Field(validate_default=True)]


@checked
class EngineSettings:
    """What this library adds to TRL's settings, as far as the training program has it too."""

    method: ToTrl[Part] = cast("Part", "atr")
    """The constraint: a name listed by `trustclip methods`, "package.module:Class", or a mapping of
    `name` and hyper-parameters, {name: atr, delta: 0.07}; --method.NAME VALUE sets a
    hyper-parameter. In Python also a `trustclip.Method`; it is built once, and `to_dict` has the
    mapping."""
    shadows: ToTrl[
        Annotated[
            Parts, Neutral("methods that only watch; the training is the same to the last bit")
        ]
    ] = cast("Parts", "")
    """Methods that only watch, such as "atr, {name: clip, epsilon: 0.1}". What each would have cut
    is in metrics.jsonl, `explain` and the report."""
    allow_inert: ToTrl[bool] = False
    """Train although the schedule keeps the ratio at 1, where no constraint acts."""
    replay: ToTrl[bool] = False
    """With top-p or top-k, compute each token's probability among the tokens that the sampler could
    draw there, so that trainer and sampler agree. `centered` then takes these tokens as its
    candidates. This needs trustclip's head."""
    candidates: ToTrl[Whole | None] = None
    """How many of the sampler's likeliest tokens to record at each position, for `centered` and
    drift/*; the policy in training models the others. When unset, 64 if the method needs them, else
    none; the vocabulary's size or more records all of it. This needs trustclip's head."""


def config_field(name: str, cls: type = EngineSettings) -> Any:
    """A field of a configuration of TRL's kind, with the default and the text of a setting.

    The text stands in the help of Transformers' HfArgumentParser.
    """
    default: Any = cls.__dataclass_fields__[name].default
    return field(default=default, metadata={"help": descriptions(cls)[name]})
