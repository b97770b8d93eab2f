"""A pytest plugin that puts the classes of trustclip in the place of other projects'.

``-p peers.plugin``, with ``PEERS=plain`` to run the tests on the projects' own classes. TRL's
``GRPOTrainer`` and ``GRPOConfig`` are replaced, with the method that a config's own clip settings
describe, and Stable-Baselines3's ``PPO``. The data sets that TRL's tests load are made in memory.
Token ids of a real vocabulary, which some tests state, are translated to those of the tiny models.
Tests that need a model which `peers.models` does not make are deselected in both runs, and listed
at the end.
"""

import functools
import importlib
import importlib.util
import inspect
import os
import re
from dataclasses import dataclass, field
from typing import Any

import datasets
import torch

from peers.models import OWNER, REAL_TOKENS, made, tokenizer_with

#: Few rows: most of the tests train for three epochs.
ZEN = [
    "Beautiful is better than ugly.", "Flat is better than nested.", "Readability counts.",
    "Errors should never pass silently.", "Now is better than never.",
    "Unless explicitly silenced.",
]  # fmt: skip


def zen(configuration: str) -> Any:
    """The subset of ``trl-internal-testing/zen`` with prompts in the form of its name."""
    prompts = [line.split(" ", 1) for line in ZEN]
    if configuration.startswith("conversational"):
        rows = [
            {
                "prompt": [{"role": "user", "content": start}],
                "completion": [{"role": "assistant", "content": end}],
            }
            for start, end in prompts
        ]
    else:
        rows = [{"prompt": start, "completion": " " + end} for start, end in prompts]
    if configuration.endswith("prompt_only"):
        rows = [{"prompt": row["prompt"]} for row in rows]
    return datasets.Dataset.from_list(rows)


def zen_image(several: bool) -> Any:
    """Prompts with one image each, or with none to two that the messages place themselves."""
    from PIL import Image

    rows = []
    for index, line in enumerate(ZEN):
        images = [Image.new("RGB", (40, 32), (40 * index, 80, 40 * i)) for i in range(index % 3)]
        if several:
            content = [{"type": "image", "text": None} for _ in images]
            content.append({"type": "text", "text": line})
            rows.append({"prompt": [{"role": "user", "content": content}], "images": images})
        else:
            image = Image.new("RGB", (40, 32), (40 * index, 80, 0))
            rows.append({"prompt": [{"role": "user", "content": line}], "image": image})
    return datasets.Dataset.from_list(rows)


SETS = {
    f"{OWNER}/zen": zen,
    f"{OWNER}/zen-image": lambda name: zen_image(several=False),
    f"{OWNER}/zen-multi-image": lambda name: zen_image(several=True),
}


def load_dataset(path: str, name: str = "", *args: Any, split: str = "", **options: Any) -> Any:
    """`datasets.load_dataset`, but for TRL's own small sets."""
    if path not in SETS:
        return _load_dataset(path, name, *args, split=split, **options)
    rows = SETS[path](name)
    whole: dict[Any, Any] = {"train": rows, "test": rows.select(range(2))}
    if options.get("streaming"):
        whole = {key: rows.to_iterable_dataset() for key, rows in whole.items()}
        return whole[split] if split else datasets.IterableDatasetDict(whole)
    return whole[split.split("[")[0]] if split else datasets.DatasetDict(whole)


_load_dataset = datasets.load_dataset
datasets.load_dataset = load_dataset


class Torch:
    """Stands for ``torch`` in a test module; `tensor` translates completions in Qwen's ids."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def tensor(data: Any, *args: Any, **options: Any) -> torch.Tensor:
        """`torch.tensor` of the same text in the tiny models' token ids."""
        if _is_qwen(data):
            data = [[_ours(number) for number in row] for row in data]
        return torch.tensor(data, *args, **options)


def _is_qwen(data: Any) -> bool:
    """Whether a value is a list of lists of ids, with some of Qwen's special tokens."""
    if not (isinstance(data, list) and data and all(isinstance(row, list) for row in data)):
        return False
    flat = [number for row in data for number in row]
    return all(type(number) is int for number in flat) and max(flat, default=0) > 100_000


@functools.cache
def _ours(number: int) -> int:
    text = REAL_TOKENS.get(number)
    if text is None:
        return number
    ids = _tokenizer().encode(text)
    assert len(ids) == 1, (number, text, ids)
    return ids[0]


@functools.cache
def _tokenizer() -> Any:
    return tokenizer_with("qwen3")


def missing(source: str) -> str:
    """The model that a test needs and that is not made here; "" for none."""
    own = {*made(), *(path.split("/")[1] for path in SETS)}
    for name in re.findall(rf"{OWNER}/([\w.-]+)(?![\w.{{-])", source):
        if name not in own:
            return name
    return ""


_left_out: list[tuple[str, str]] = []


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Deselect what cannot be run offline, before anything is loaded."""
    out = []
    for item in items:
        if vars(item.module).get("torch") is torch:
            item.module.torch = Torch()
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        reason = missing(_body(item.function) + " ".join(map(str, parameters.values())))
        if reason:
            out.append(item)
            _left_out.append((item.nodeid.split("::", 1)[-1], reason))
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


def _body(function: Any) -> str:
    """The source of a test, without decorators, which name the models of every parameter."""
    source = inspect.getsource(inspect.unwrap(function))
    return source[re.search(r"^\s*(async )?def ", source, re.M).start() :]  # pyright: ignore


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The deselected tests."""
    for test, reason in _left_out:
        terminalreporter.write_line(f"LEFT OUT {test}: needs {reason}")


def method_of(settings: dict[str, Any]) -> dict[str, Any]:
    """The method that TRL's clip settings describe; takes them out of ``settings``."""
    low = settings.pop("epsilon", 0.2)
    high = settings.pop("epsilon_high", None)
    ceiling = settings.pop("delta", None)
    level = settings.pop("importance_sampling_level", "token")
    own = {"sapo": ("soft_gate", "grpo"), "vespo": ("vespo", "dapo"), "cispo": ("cispo", "dapo")}
    if settings.get("loss_type") in own:
        if level != "token":
            settings["importance_sampling_level"] = level  # refused: these have no other
        name, settings["loss_type"] = own[settings["loss_type"]]
        return {"name": name}
    bounds = {"low": low, "high": low if high is None else high}
    if level == "sequence":
        return {"name": "luspo" if settings.get("loss_type") == "luspo" else "gspo", **bounds}
    if ceiling is not None:
        return {"name": "dual_clip", "ceiling": ceiling, **bounds}
    return {"name": "clip_higher", **bounds}


def _substitute_trl() -> None:
    import trl
    import trl.trainer.grpo_config
    import trl.trainer.grpo_trainer

    from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer

    global GRPOConfig  # a checkpoint pickles it by this name

    @dataclass(init=False)
    class GRPOConfig(ConstrainedGRPOConfig):
        """TRL's arguments, with the method that they describe."""

        allow_inert: bool = field(default=True)

        def __init__(self, *args: Any, **settings: Any) -> None:
            own = {"method": method_of(settings), "allow_inert": True}
            super().__init__(*args, **{**own, **settings})

    class GRPOTrainer(ConstrainedGRPOTrainer):
        """Ours under TRL's name."""

    for module in (trl, trl.trainer, trl.trainer.grpo_trainer):
        vars(module)["GRPOTrainer"] = GRPOTrainer
    for module in (trl, trl.trainer, trl.trainer.grpo_config):
        vars(module)["GRPOConfig"] = GRPOConfig


def _substitute_sb3() -> None:
    import stable_baselines3
    import stable_baselines3.ppo

    from trustclip_lab.control.sb3 import ConstrainedPPO

    class PPO(ConstrainedPPO):
        """Ours under SB3's name, without a method: a clip of its own ``clip_range``."""

    stable_baselines3.PPO = stable_baselines3.ppo.PPO = PPO


if importlib.util.find_spec("trl") is not None:
    # TRL's tests of July 2026 import it; TRL 1.16 has it no more.
    _imports = importlib.import_module("trl.import_utils")
    if not hasattr(_imports, "is_joblib_available"):
        vars(_imports)["is_joblib_available"] = lambda: False

if os.environ.get("PEERS") != "plain":
    if importlib.util.find_spec("trl") is not None:
        _substitute_trl()
    if importlib.util.find_spec("stable_baselines3") is not None:
        _substitute_sb3()
