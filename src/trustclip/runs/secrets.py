"""Secrets stay out of what a run writes down: tokens, passwords and keys, wherever they stand."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

#: Stands for a secret.
HIDDEN = "[redacted]"

#: Names of settings that hold a secret, e.g. ``hub_token``, ``--api-key``, ``WANDB_API_KEY``.
_NAME = re.compile(
    r"(^|[._-])(token|password|passwd|passphrase|secret|credentials?|authorization"
    r"|(api|access|secret|private|auth)[_-]?key)$",
    re.IGNORECASE,
)
#: Tokens of a vocabulary are no secrets.
_VOCABULARY = re.compile(r"(^|[._-])(eos|bos|pad|unk|sep|cls|mask|image|video)[_-]token$", re.I)
#: User and password of a URL, a secret in its query, and tokens that are known by their form.
_TEXT = (
    (re.compile(r"(?<=://)[^\s/@]+(?=@)"), HIDDEN),
    (re.compile(r"([?&][^=&#\s]*(?:token|key|secret|password|signature)=)[^&#\s]+", re.I),
     rf"\1{HIDDEN}"),
    (re.compile(r"\b(hf_|sk-|gh[oprsu]_|github_pat_|glpat-|xox[abp]-|AKIA)[\w-]{16,}"), HIDDEN),
    (re.compile(r"\b(Bearer|Basic) [\w.~+/=-]{8,}"), rf"\1 {HIDDEN}"),
)  # fmt: skip


def is_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret.

    Example:
      >>> [is_secret(n) for n in ("hub_token", "--api-key", "eos_token", "max_tokens", "tokens")]
      [True, True, False, False, False]
    """
    return bool(_NAME.search(name)) and not _VOCABULARY.search(name)


def redacted(value: Any, name: str = "") -> Any:
    """A value with every secret in it replaced, at any depth.

    Args:
      value: settings, a text, or anything that JSON holds.
      name: of the setting that has this value.

    Example:
      >>> redacted({"hub_token": "abc", "url": "http://me:pw@host/v1", "seed": 0})
      {'hub_token': '[redacted]', 'url': 'http://[redacted]@host/v1', 'seed': 0}
    """
    if isinstance(value, Mapping):
        return {key: redacted(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redacted(item, name) for item in value)
    if not isinstance(value, str) or not value:
        return value
    if is_secret(name):
        return HIDDEN
    for pattern, replacement in _TEXT:
        value = pattern.sub(replacement, value)
    return value


def redacted_argv(argv: Sequence[str]) -> list[str]:
    """Command-line arguments with every secret in them replaced.

    Example:
      >>> redacted_argv(["rl", "--trl.hub_token", "abc", "--api-key=abc", "--seed", "0"])
      ['rl', '--trl.hub_token', '[redacted]', '--api-key=[redacted]', '--seed', '0']
    """
    shown, name = [], ""
    for argument in argv:
        option, equals, value = argument.partition("=")
        if argument.startswith("--") and equals:
            shown.append(f"{option}={redacted(value, option)}")
        else:
            shown.append(redacted(argument, name))
        name = argument if argument.startswith("--") and not equals else ""
    return shown
