"""Fields of TRL's GRPOConfig that a recipe passes through, checked against the real class."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from trustclip.checked import explain
from trustclip.engines.trl import ConstrainedGRPOConfig
from trustclip.engines.trl_config import too_small
from trustclip.names import unknown

#: Fields that a run sets for all its parts to agree.
RESERVED = {"output_dir", "seed", "report_to", "disable_tqdm", "reward_weights", "top_k", "use_cpu"}


def complaints(given: Mapping[str, Any], own: Collection[str]) -> Iterator[tuple[str, str]]:
    """What is wrong with fields to pass through.

    Args:
      given: value by field.
      own: names of settings that we have ourselves: those are said there.

    Yields:
      Field, and what is wrong with it.
    """
    fields = {f.name for f in dataclasses.fields(ConstrainedGRPOConfig) if f.init}
    hints = get_type_hints(ConstrainedGRPOConfig)
    for name, value in given.items():
        if name in own:
            yield name, f"`trl.{name}` is a setting of ours: say it as `rl.{name}`."
        elif name in RESERVED:
            yield name, f"`trl.{name}` is set by the run itself."
        elif name not in fields:
            yield name, unknown("field of GRPOConfig", name, fields - RESERVED - set(own))
        else:
            wrong = list(_wrong(hints[name], value))
            yield from ((name, f"`trl.{name}`: {text}.") for text in wrong)
            if not wrong:
                yield from ((name, f"`trl.{name}` {text}") for _, text in too_small({name: value}))


def _wrong(hint: Any, value: Any) -> Iterator[str]:
    try:
        TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        yield explain(error)
    except (PydanticSchemaGenerationError, PydanticUserError):
        return  # a type of theirs that only their own constructor knows
