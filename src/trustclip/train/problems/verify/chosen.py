"""The rewards that a training chooses: built-in ones by name, and the user's own functions.

A user's reward is called as TRL calls one, with the keyword arguments that it names, plus
``texts``: ``docs/bring-your-own.md`` has them all. It returns one number for each completion, in
order, or None where it does not apply.
"""

import functools
import inspect
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trustclip.support.consent import import_object, names_code
from trustclip.support.names import nearest, unknown
from trustclip.train.problems.verify.extraction import Style
from trustclip.train.problems.verify.functions import (
    AnswerReward,
    FormatReward,
    SoftOverlong,
    text_of,
)

#: Name of the binary answer reward, which can be noisy.
CORRECT = "correct"
#: Built-in rewards, which take arguments.
BUILT_IN: Mapping[str, type] = {
    CORRECT: AnswerReward,
    "format": FormatReward,
    "soft_overlong": SoftOverlong,
}

#: Arguments that every reward gets; no column of the data may have such a name.
ARGUMENTS = ("prompts", "completions", "texts", "completion_ids")
_OF_TRL = ("trainer_state", "log_metric", "log_extra", "environments")
RESERVED = (*ARGUMENTS, *_OF_TRL, "prompt", "completion")

_OWN_KEYS = ("name", "weight", "label")
_LABEL = re.compile(r"[\w.-]+")


class RewardError(ValueError):
    """A reward failed, or returned something other than a number for each completion."""


@dataclass(frozen=True)
class RewardSpec:
    """One reward of a training.

    Args:
      name: built-in, or ``"file.py:name"`` or ``"package.module:name"``.
      weight: its factor in the total.
      label: the name under which it is logged.
      arguments: those of its class, or further ones for each call of the function.
    """

    name: str
    weight: float = 1.0
    label: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own(self) -> bool:
        """Whether it is imported."""
        return names_code(self.name)

    @property
    def reads_answer(self) -> bool:
        """Whether it is built in and reads the gold answer: a problem without one is useless."""
        return self.name == CORRECT


def read_rewards(setting: Any) -> tuple[RewardSpec, ...]:
    """Read the setting `reward`.

    Args:
      setting: a name, a mapping of ``name``, ``weight``, ``label`` and arguments, or a list.

    Raises:
      ValueError: an unknown name, a weight that is no finite number, or two rewards of one label.

    Example:
      >>> both = read_rewards(["correct", {"name": "format", "weight": 0.2}])
      >>> [(spec.label, spec.weight) for spec in both]
      [('correct', 1.0), ('format', 0.2)]
      >>> read_rewards("rewards.py:polite")[0].label
      'polite'
    """
    items = setting if isinstance(setting, list | tuple) else [setting]
    if not items:
        raise ValueError("a list of rewards needs at least one.")
    specs = tuple(map(_read, items))
    labels = [spec.label for spec in specs]
    if repeated := [label for label in labels if labels.count(label) > 1]:
        raise ValueError(
            f"two rewards would be logged as {repeated[0]!r}: give one of them a `label`."
        )
    return specs


def canonical(setting: Any) -> Any:
    """The setting in its plain form: a name where that says everything, else a list of mappings.

    Example:
      >>> canonical([{"name": "correct", "weight": 1}]), canonical({"name": "format", "weight": 2})
      ('correct', [{'name': 'format', 'weight': 2.0}])
    """
    specs = read_rewards(setting)
    plain = [
        {
            "name": spec.name,
            "weight": spec.weight,
            **({} if spec.label == _usual_label(spec.name) else {"label": spec.label}),
            **spec.arguments,
        }
        for spec in specs
    ]
    if len(plain) == 1 and plain[0] == {"name": specs[0].name, "weight": 1.0}:
        return specs[0].name
    return plain


def _read(item: Any) -> RewardSpec:
    item = {"name": item} if isinstance(item, str) else item
    if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
        raise ValueError(f"a reward is its name or a mapping with a `name`, got {item!r}.")
    name, weight = item["name"], item.get("weight", 1.0)
    if name not in BUILT_IN and not names_code(name):
        own = " Or one of your own: file.py:function or package.module:function."
        raise ValueError(unknown("reward", name, BUILT_IN) + own)
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not (number and math.isfinite(weight)):
        raise ValueError(
            f"`weight` of the reward {name!r} must be a finite number, got {weight!r}."
        )
    label = item.get("label", _usual_label(name))
    if not isinstance(label, str) or not _LABEL.fullmatch(label):
        raise ValueError(f"`label` of the reward {name!r} must be one word, got {label!r}.")
    arguments = {str(key): value for key, value in item.items() if key not in _OWN_KEYS}
    return RewardSpec(name, float(weight), label, arguments)


def _usual_label(name: str) -> str:
    return name.rpartition(":")[2]


def make_reward(spec: RewardSpec, style: Style = "any") -> "Reward":
    """The reward, ready to be called; its code is imported here, with the errors of `resolve`."""
    function, params = resolve(spec)
    arguments = dict(spec.arguments)
    if not spec.own and "style" in params:
        arguments.setdefault("style", style)
    if not isinstance(function, type):
        return _wrap(functools.partial(function, **arguments) if arguments else function, spec)
    try:
        return _wrap(function(**arguments), spec)
    except Exception as error:
        raise ValueError(f"cannot make the reward {spec.name!r}: {error}") from error


def resolve(spec: RewardSpec) -> tuple[Any, Mapping[str, inspect.Parameter]]:
    """The function or class of a reward, not called, and the parameters that it takes.

    Raises:
      ValueError: it cannot be imported, or does not take the arguments of the setting.
    """
    function = import_object(spec.name, "reward") if spec.own else BUILT_IN[spec.name]
    if not callable(function):
        raise ValueError(f"the reward {spec.name!r} is not a function, but {function!r:.80}.")
    params = _parameters(function)
    is_class = isinstance(function, type)
    takes_any = is_class and any(p.kind is p.VAR_KEYWORD for p in params.values())
    allowed = [
        k for k, p in params.items() if k not in (*RESERVED, "_") and p.kind != p.VAR_KEYWORD
    ]
    for key in spec.arguments:
        if key not in allowed and not takes_any:
            raise ValueError(unknown("argument", key, allowed, of=f"reward {spec.name}"))
    missing = [k for k in allowed if params[k].default is inspect.Parameter.empty]
    if is_class and (missing := [k for k in missing if k not in spec.arguments]):
        raise ValueError(f"the reward {spec.name!r} needs the argument {missing[0]!r}.")
    return function, params


def required_columns(spec: RewardSpec) -> list[str]:
    """Columns of the data that a reward names in its signature, without a default.

    Example:
      >>> required_columns(RewardSpec("correct"))
      ['answer']
    """
    function, _ = resolve(spec)
    call = function.__call__ if isinstance(function, type) else function
    parameters = [
        p
        for p in _parameters(call).values()
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    supplied = {*RESERVED, "_", "self", *spec.arguments}
    return [p.name for p in parameters if p.name not in supplied]


def _wrap(function: Any, spec: RewardSpec) -> "Reward":
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )
    return (AsyncReward if is_async else Reward)(function, spec.label, spec.name)


class Reward:
    """A reward function whose result is checked, and whose failure is one sentence.

    TRL calls it with keyword arguments, and logs it under the label.
    """

    def __init__(self, function: Callable[..., Any], label: str, name: str) -> None:
        self._function, self.__name__, self._name = function, label, name
        parameters = _parameters(function).values()
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        self._names = None if takes_any else {p.name for p in parameters}

    def __call__(self, prompts: Any, completions: Sequence[Any], **columns: Any) -> list[Any]:
        """Rewards of the completions: a number each, or None where it does not apply.

        Raises:
          RewardError: the function failed, or returned something else.
        """
        try:
            values = self._function(**self._arguments(prompts, completions, columns))
        except Exception as error:
            raise self._failure(error, completions) from error
        return self._numbers(values, completions, columns)

    def __getattr__(self, name: str) -> Any:
        # `state_dict` of a reward with a state, `close`, and whatever else it offers.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._function, name)

    def close(self) -> None:
        """Release what the function holds, if it says how."""
        close = getattr(self._function, "close", None)
        if callable(close):
            close()

    def _arguments(
        self, prompts: Any, completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> dict[str, Any]:
        texts = [text_of(completion) for completion in completions]
        arguments = {"prompts": prompts, "completions": completions, "texts": texts, **columns}
        return {k: v for k, v in arguments.items() if self._names is None or k in self._names}

    def _failure(self, error: Exception, completions: Sequence[Any]) -> RewardError:
        at, where = error.__traceback__, ""
        while at is not None:
            where, at = f"{at.tb_frame.f_code.co_filename}, line {at.tb_lineno}", at.tb_next
        return RewardError(
            f"the reward {self._name!r} failed on {len(completions)} completions: "
            f"{type(error).__name__}: {error} ({where})."
        )

    def _numbers(
        self, result: Any, completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[Any]:
        try:
            values = list(result)
        except TypeError:
            values = None
        if values is None or isinstance(result, str | Mapping):
            raise RewardError(
                f"the reward {self._name!r} must return a list with a number for each completion, "
                f"got {result!r:.80}."
            )
        if len(values) != len(completions):
            raise RewardError(
                f"the reward {self._name!r} returned {len(values)} numbers for {len(completions)} "
                "completions: one each is needed, None where it does not apply."
            )
        ids = columns.get("id") or [None] * len(values)
        return [self._number(value, key) for value, key in zip(values, ids, strict=True)]

    def _number(self, value: Any, key: Any) -> float | None:
        if value is None:
            return None
        number = value.item() if callable(getattr(value, "item", None)) else value
        if isinstance(number, numbers.Real) and math.isfinite(number):
            return float(number)
        where = "" if key is None else f" for problem {key!r}"
        raise RewardError(
            f"the reward {self._name!r} returned {value!r:.80}{where}: a finite number is needed, "
            "or None where it does not apply."
        )


class AsyncReward(Reward):
    """A `Reward` whose function is ``async``; TRL awaits all of them at once.

    Example:
      >>> inspect.iscoroutinefunction(AsyncReward(lambda texts: texts, "a reward", "a"))
      True
    """

    async def __call__(  # type: ignore[override]
        self, prompts: Any, completions: Sequence[Any], **columns: Any
    ) -> list[Any]:
        """Rewards of the completions; see `Reward`."""
        try:
            values = await self._function(**self._arguments(prompts, completions, columns))
        except Exception as error:
            raise self._failure(error, completions) from error
        return self._numbers(values, completions, columns)

    # By these `inspect.iscoroutinefunction` knows it, which TRL asks before 1.14.
    __code__ = __call__.__code__
    __defaults__ = __kwdefaults__ = None


def check_columns(
    rewards: Iterable[RewardSpec],
    columns: Iterable[str],
    source: str,
    renamed: Mapping[str, str] | None = None,
) -> None:
    """Refuse data without a column that a reward names in its signature.

    ``renamed`` are the names that the user has given to columns, by part of a problem.

    Raises:
      ValueError: one is missing; the message has the nearest one.
    """
    present = sorted(set(columns) - {"prompt"})
    for spec in rewards:
        for name in required_columns(spec):
            if name not in present:
                near = nearest(name, present)
                for part, column in (renamed or {}).items():
                    if column == name:
                        raise ValueError(
                            f"the reward {spec.name!r} needs a column {name!r}, which `columns` "
                            f"takes as the {part}: rename the parameter of the reward to {part!r}."
                        )
                raise ValueError(
                    f"the reward {spec.name!r} needs a column {name!r}, which {source} does not "
                    f"have; columns: {', '.join(present)}. Map one with `columns`: "
                    f"{{{name}: {near or 'NAME'}}}, or give the parameter a default."
                )


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function of C; it gets every argument
        anything = inspect.Parameter("columns", inspect.Parameter.VAR_KEYWORD)
        return {"columns": anything}
