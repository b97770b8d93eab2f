"""What makes two runs the same run: which settings results depend on, and which they do not."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Self

from trustclip.logs.forms import MARKED
from trustclip.support.inside import Inside
from trustclip.support.jsonl import read_mapping
from trustclip.support.marks import Extends, Neutral, marked, sections
from trustclip.support.schemas import conform

MARKS = "marks.json"
#: What no result depends on in a run without marks, and why.
_OF_NO_RESULT = {"name": "for people", "output_dir": "where it is written"}


@dataclass(frozen=True)
class Marks:
    """What a run directory says of its settings besides their values, by their paths.

    Args:
      neutral: the settings that no result depends on, and why; its name and folder by default.
      extends: the number of updates, of which a run that has begun may get more; or empty.
    """

    neutral: Mapping[str, str] = field(default_factory=_OF_NO_RESULT.copy)
    extends: str = ""

    @classmethod
    def of(cls, kind: type, settings: Mapping[str, Any], at: str = "") -> Self:
        """The marks beside the types of a class (`trustclip.support.marks`), for plain values.

        Example:
          >>> from typing import Annotated
          >>> @dataclass
          ... class Settings:
          ...     title: Annotated[str, Neutral("for people")]
          ...     replay: bool = True
          >>> Marks.of(Settings, {"title": "a", "replay": True})
          Marks(neutral={'title': 'for people'}, extends='')
        """
        if not is_dataclass(kind):
            return cls()
        neutral = {at + n: m.why for n, m in marked(kind, Neutral).items() if n in settings}
        extends = "".join(at + name for name in marked(kind, Extends))
        for name, stage in sections(kind).items():
            if isinstance(settings.get(name), Mapping):
                inner = cls.of(stage, settings[name], f"{at}{name}.")
                neutral = {**neutral, **inner.neutral}
                extends = inner.extends or extends  # of several stages, the last
        return cls(neutral, extends)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The marks in a run directory; in one without them, of its name and folder.

        Raises:
          ValueError: the file is damaged.
        """
        path = Inside(folder).file(MARKS)
        if not (content := read_mapping(path)):
            return cls()
        conform(content, MARKED, str(path))
        return cls(**{field.name: content[field.name] for field in fields(cls)})


def essential(config: Mapping[str, Any], marks: Marks, at: str = "") -> dict[str, Any]:
    """A run's settings without those that no result depends on.

    A method's ``name`` is no title.

    Example:
      >>> essential({"name": "a", "rl": {"method": {"name": "atr"}}}, Marks({"name": "a title"}))
      {'rl': {'method': {'name': 'atr'}}}
      >>> essential({"rl": {"report_to": "wandb"}}, Marks({"rl.report_to": "a log"}))
      {'rl': {}}
    """
    return {
        key: essential(value, marks, f"{path}.") if isinstance(value, Mapping) else value
        for key, value in config.items()
        if (path := f"{at}{key}") not in marks.neutral
    }


def flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their paths; an empty mapping is a value.

    Example:
      >>> flat({"rl": {"method": {"name": "atr"}, "trl": {}}})
      {'rl.method.name': 'atr', 'rl.trl': {}}
    """
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        path = f"{prefix}{key}"
        nested = isinstance(value, Mapping) and value
        values |= flat(value, f"{path}.") if nested else {path: value}
    return values
