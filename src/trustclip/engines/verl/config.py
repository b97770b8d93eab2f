"""verl's configuration as its entry script would see it: from Hydra, or from a resolved file."""

# pyright: reportMissingImports=false

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

#: Where verl keeps its configurations, and the one of ``verl.trainer.main_ppo``.
HOME, NAME = "pkg://verl.trainer.config", "ppo_trainer"


#: Largest file that is read; verl's own, resolved, is 40 KB.
MOST_BYTES = 4 * 2**20


def load(arguments: Sequence[str], parse: Callable[[str], Any] = yaml.safe_load) -> dict[str, Any]:
    """The resolved configuration.

    Args:
      arguments: a YAML file (a resolved configuration, or one with ``defaults`` that Hydra
        composes), Hydra overrides as given to ``verl.trainer.main_ppo``, or the file and then
        overrides; a leading ``--config-name=NAME`` chooses another of verl's configurations.
      parse: reader of the file's YAML, which may refuse what its aliases multiply.

    Raises:
      ValueError: nothing given; a file too large, or with no mapping; overrides that Hydra refuses;
        Hydra needed and verl not installed.
      FileNotFoundError: no such file.
    """
    if not arguments:
        raise ValueError(
            "--verl needs a configuration: a YAML file, or the overrides given to main_ppo."
        )
    first, *rest = arguments
    if first.startswith("--config-name="):
        return _compose(HOME, first.partition("=")[2], rest)
    if "=" in first or not first.endswith((".yaml", ".yml")):
        return _compose(HOME, NAME, arguments)
    path = Path(first)
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} is larger than {MOST_BYTES // 2**20} MiB: no configuration.")
    content = parse(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no configuration: expected a mapping.")
    if "defaults" in content:
        return _compose(str(path.resolve().parent), path.stem, rest)
    return _resolve(content, rest)


def _compose(folder: str, name: str, overrides: Sequence[str]) -> dict[str, Any]:
    try:
        from hydra import compose, initialize_config_dir, initialize_config_module
        from hydra.errors import HydraException
    except ImportError:
        raise ValueError(
            "composing verl's configuration needs verl: pip install 'trustclip[verl]', or give "
            "the resolved YAML file that Hydra writes to .hydra/config.yaml."
        ) from None
    if folder == HOME:
        initialized = initialize_config_module(HOME.removeprefix("pkg://"), version_base=None)
        search: list[str] = []
    else:
        initialized = initialize_config_dir(folder, version_base=None)
        search = [f"hydra.searchpath=[{HOME}]"]
    try:
        with initialized:
            return _to_dict(compose(name, overrides=[*search, *overrides]))
    except HydraException as error:
        raise ValueError(f"Hydra refuses the configuration: {error}") from None


def _resolve(content: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    try:
        from omegaconf import OmegaConf
    except ImportError:
        if overrides:
            raise ValueError(
                "overrides of a file need verl: pip install 'trustclip[verl]'."
            ) from None
        return content
    changes = OmegaConf.from_dotlist([change.lstrip("+") for change in overrides])
    return _to_dict(OmegaConf.merge(OmegaConf.create(content), changes))


def _to_dict(config: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config, resolve=True, throw_on_missing=False)  # type: ignore[return-value]
