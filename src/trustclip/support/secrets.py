"""Secrets stay out of what a run writes down: tokens, passwords and keys, wherever they appear."""

import re
from collections.abc import Mapping
from typing import Any

#: Replaces a secret.
HIDDEN = "[redacted]"

#: Names of settings that hold a secret, e.g. ``hub_token``, ``api-key``, ``WANDB_API_KEY``.
_NAME = re.compile(
    r"(^|[._-])(token|passwords?|passwd|pwd|passphrases?|secrets?|credentials?|authorization"
    r"|cookies?|jwt|creds|dsn|connection[_-]?string|webhook([_-]?url)?"
    r"|(access|auth|bearer|hf|hub|refresh|session)[_-]?tokens"
    r"|(access|account|api|auth|hf|license|openai|private|secret|signing|ssh|wandb)[_-]?keys?)$",
    re.IGNORECASE,
)
#: Where a word begins in a name such as ``clientSecret``.
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
#: A secret if its value is text, a number of passes if it is a number.
_PASS = re.compile(r"(^|[._-])pass$", re.IGNORECASE)
#: Tokens of a vocabulary are no secrets.
_VOCABULARY = re.compile(r"(^|[._-])(eos|bos|pad|unk|sep|cls|mask|image|video)[_-]token$", re.I)
#: User and password of a URL, a secret in its query or in a connection's text, and tokens and keys
#: that are known by their form.
_TEXT = (
    (re.compile(r"(?<=://)[^\s/@]+(?=@)"), HIDDEN),
    (re.compile(r"([?&#;][^=&#;\s]*(?:token|key|secret|password|pwd|signature)=)[^&#;\s]+", re.I),
     rf"\1{HIDDEN}"),
    (re.compile(r"([?&#;]sig=)[^&#;\s]+", re.I), rf"\1{HIDDEN}"),
    (re.compile(r"\b((?:Account|SharedAccess)Key=)[^;\s]+", re.I), rf"\1{HIDDEN}"),
    (re.compile(
        r"\b(hf_|sk-|gh[oprsu]_|github_pat_|glpat-|xox[abeprs]-|AKIA|ASIA|nvapi-|pypi-|r8_|gsk_"
        r"|[prs]k_(?:live|test)_|ya29\.|AIza|npm_|dop_v1_|SG\.|xai-|pplx-|tgp_v1_)[\w.-]{16,}"),
     HIDDEN),
    (re.compile(r"(?<=hooks\.slack\.com/services/)\S+"), HIDDEN),
    (re.compile(r"(?<=/api/webhooks/)\S+"), HIDDEN),
    (re.compile(r"\b([A-Z][A-Z0-9_]*_(?:KEY|TOKEN|SECRET|PASSWORD)=)[^\s&;,]+"), rf"\1{HIDDEN}"),
    (re.compile(r"\b((?:password|passwd|api_key|client_secret|access_token)=)[^\s&;,]+", re.I),
     rf"\1{HIDDEN}"),
    (re.compile(r"\b((?:x-api-key|x-auth-token|private-token):\s*)\S+", re.I), rf"\1{HIDDEN}"),
    (re.compile(r"\bdapi[0-9a-f]{32}\b"), HIDDEN),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"), HIDDEN),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.S),
     HIDDEN),
    (re.compile(r"\b(Bearer|Basic) [\w.~+/=-]{8,}"), rf"\1 {HIDDEN}"),
)  # fmt: skip


def is_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret.

    Example:
      >>> [is_secret(n) for n in ("hub_token", "clientSecret", "eos_token", "maxTokens", "tokens")]
      [True, True, False, False, False]
    """
    name = _HUMP.sub("_", name)
    return bool(_NAME.search(name)) and not _VOCABULARY.search(name)


def redact(value: Any, name: str = "") -> Any:
    """A value with every secret in it replaced, at any depth.

    Example:
      >>> redact({"hub_token": "abc", "url": "http://me:pw@host/v1", "seed": 0})
      {'hub_token': '[redacted]', 'url': 'http://[redacted]@host/v1', 'seed': 0}
    """
    secret = is_secret(name)
    if isinstance(value, Mapping):
        return {key: redact(item, name if secret else str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redact(item, name) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return HIDDEN if secret else value
    if not isinstance(value, str) or not value:
        return value
    if secret or _PASS.search(name):
        return HIDDEN
    for pattern, replacement in _TEXT:
        value = pattern.sub(replacement, value)
    return value
