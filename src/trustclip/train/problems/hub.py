"""Known problem sets on the Hugging Face hub: their splits, rules and rows."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trustclip.train.problems.rows import Fields

Use = Literal["train", "test"]
_USES: Mapping[Use, str] = {"train": "train on", "test": "evaluate on"}


@dataclass(frozen=True)
class HubSource:
    """A data set on the Hugging Face hub, with the rules its rows obey.

    Args:
      path: hub id, ``owner/name``.
      train: split to train on, or None for a benchmark without one.
      test: split to evaluate on, or None for a training set without one.
      config: configuration name, or None for the default one.
      kind: ``"benchmark"`` (every row counts: none may be bad), ``"rl"`` (training problems), or
        ``"sft"`` (worked solutions: rows without a numeric gold are left out, and one problem may
        occur with several solutions).
      integer: every gold is an integer of at most 2^53 in size. Larger ones went through a
        float on their way and are wrong in their last digits.
    """

    path: str
    train: str | None = "train"
    test: str | None = "test"
    config: str | None = None
    fields: Fields = field(default_factory=Fields)
    kind: Literal["benchmark", "rl", "sft"] = "rl"
    integer: bool = False

    def split(self, use: Use) -> str:
        """The split for a use.

        Raises:
          ValueError: the set has none, and the source named none.

        Example:
          >>> hub_source("gsm8k").split("train"), hub_source("gsm8k@test").split("train")
          ('train', 'test')
        """
        split, other = (self.train, self.test) if use == "train" else (self.test, self.train)
        if split is None:
            raise ValueError(
                f"{self.path} has no {use} split. To {_USES[use]} another one, name it: "
                f"{self.path}@{other}"
            )
        return split


HUB_SOURCES: Mapping[str, HubSource] = {
    # The first two have only a split called "train": problems to evaluate on.
    # The `id` column of amc23 repeats (49 distinct values in 83 rows), hence row numbers as ids.
    "amc23": HubSource(
        "AI-MO/aimo-validation-amc",
        train=None,
        test="train",
        fields=Fields(id=()),
        kind="benchmark",
        integer=True,
    ),
    "aime24": HubSource(
        "HuggingFaceH4/aime_2024", train=None, test="train", kind="benchmark", integer=True
    ),
    "aime25": HubSource("math-ai/aime25", train=None, kind="benchmark", integer=True),
    "math500": HubSource("HuggingFaceH4/MATH-500", train=None, kind="benchmark"),
    "gsm8k": HubSource("openai/gsm8k", config="main", kind="benchmark", integer=True),
    # About 1.79 M rows: 17,917 problems, each about a hundred times.
    "dapo": HubSource("BytedTsinghua-SIA/DAPO-Math-17k", test=None, integer=True),
    "dapo_en": HubSource(
        "open-r1/DAPO-Math-17k-Processed",
        test=None,
        config="en",
        # Here `solution` holds the bare gold.
        fields=Fields(answer=("solution",), solution=()),
        integer=True,
    ),
    "openmath": HubSource("unsloth/OpenMathReasoning-mini", train="cot", test=None, kind="sft"),
}

#: Before a hub id, where a folder has the same name.
HUB = "hub:"
_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+(:[\w.-]+)?")
_SPLIT = re.compile(r"[\w.\[\]:%+-]+")  # also a slice, as in train[:1000]


def hub_source(source: str) -> HubSource | None:
    """The hub data set that a text names: ``name``, ``owner/name`` or ``owner/name:config``.

    An id may begin with ``hub:``, to distinguish it from a folder of that name. Each may end in
    ``@split``; that split then serves training and evaluation alike. An unknown id gets a plain
    entry; None for a text that is no id.

    Example:
      >>> hub_source("gsm8k").path, hub_source("owner/set:en").config, hub_source("gsm 8k")
      ('openai/gsm8k', 'en', None)
      >>> hub_source("owner/set@validation").split("test")
      'validation'
    """
    name, at, split = source.removeprefix(HUB).partition("@")
    if name in HUB_SOURCES:
        entry = HUB_SOURCES[name]
    elif _HUB_ID.fullmatch(name):
        path, _, config = name.partition(":")
        entry = next((e for e in HUB_SOURCES.values() if e.path == path), HubSource(path))
        entry = replace(entry, config=config) if config else entry
    else:
        return None
    if at and not _SPLIT.fullmatch(split):
        return None
    return replace(entry, train=split, test=split) if at else entry


def named_after(stem: str) -> HubSource | None:
    """The known data set a file is named after, whose rules then hold for the file.

    Its name is the file's stem, or begins it before ``_``, ``-`` or ``.``.

    Example:
      >>> named_after("dapo_math_17k").path, named_after("amc2023")
      ('BytedTsinghua-SIA/DAPO-Math-17k', None)
    """
    names = [name for name in HUB_SOURCES if re.match(rf"{name}($|[_.-])", stem)]
    return HUB_SOURCES[max(names, key=len)] if names else None


def hub_rows(source: HubSource, split: str) -> Iterator[Any]:
    """Rows of a hub data set, through ``datasets`` (imported here, downloads or uses its cache).

    Raises:
      ValueError: the data set, configuration or split cannot be loaded.
    """
    import datasets

    try:
        data: Any = datasets.load_dataset(source.path, name=source.config, split=split)
        for batch in data.iter(batch_size=1000):  # a tenth of the time of row by row
            rows = zip(*batch.values(), strict=True)
            yield from (dict(zip(batch, row, strict=True)) for row in rows)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"cannot load {source.path} (config {source.config or 'default'}, split {split}): "
            f"{str(error).removesuffix('.')}. Name another split as {source.path}@SPLIT; without "
            "network, use a file"
        ) from error
