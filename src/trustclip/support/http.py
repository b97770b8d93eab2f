"""Requests to a server over HTTP: overload is retried, redirects are not followed."""

import json
import os
import time
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from trustclip.support.secrets import redact
from trustclip.support.text import one_line

#: Pauses before each further attempt, seconds.
PAUSES = (1.0, 2.0, 4.0, 8.0)
#: Longest wait for one reply, seconds: 32,768 tokens at ten a second.
PATIENCE = 3600.0


def ask(url: str, question: Any = None) -> bytes:
    """The reply to a request.

    The environment's ``OPENAI_API_KEY``, where set, is sent as the bearer token. Overload (status
    429), server errors (5xx) and lost connections are retried, other errors are not. A question is
    sent as JSON, by POST; without one, the resource is read.
    """
    data = None if question is None else json.dumps(question).encode()
    request = Request(url, data=data, headers={"Content-Type": "application/json"} if data else {})
    if key := os.environ.get("OPENAI_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    for pause in PAUSES:
        try:
            return _send(request)
        except _Transient:
            time.sleep(pause)
    return _send(request)


def _send(request: Request) -> bytes:
    url = redact(request.full_url)
    try:
        with _OPENER.open(request, timeout=PATIENCE) as reply:
            return reply.read()
    except HTTPError as error:
        if 300 <= error.code < 400:
            target = one_line(redact(str(error.headers.get("Location"))))
            raise ValueError(
                f"{url} sends its clients elsewhere, to {target}: neither requests nor "
                "the key are sent there. If you trust it, set base_url to that address."
            ) from error
        error_class = _Transient if error.code == 429 or error.code >= 500 else ValueError
        raise error_class(f"{url} returned {error.code}: {start_of(error.read())}") from error
    except (OSError, HTTPException) as error:
        raise _Transient(f"{url} cannot be reached: {redact(str(error))}") from error


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect, after which a request would be sent without its body."""

    def redirect_request(self, req: Any, *_: Any, **__: Any) -> None:
        return None


_OPENER = build_opener(_NoRedirect)


def check_address(base_url: str) -> None:
    """Refuse an address at which there can be no server."""
    if not base_url.startswith(("http://", "https://")):
        problem = "must start with http:// or https://"
    elif any(c.isspace() or not c.isprintable() for c in base_url):
        problem = "holds a space or a control character"
    else:
        try:
            parts = urlsplit(base_url)
            has_host = parts.hostname is not None and parts.port != 0
        except ValueError:
            has_host = False
        problem = "" if has_host else "names no server; give one such as http://127.0.0.1:8000/v1"
    if problem:
        raise ValueError(f"base_url={redact(base_url)!r} {problem}.")


class _Transient(ValueError):
    """A failure that may not recur in the next attempt."""


def start_of(body: bytes) -> str:
    """The beginning of a reply, safe to print."""
    return one_line(redact(body[:300].decode(errors="replace")))


def first_model(base_url: str) -> str:
    """Name of the first model that a server with OpenAI's protocol has."""
    url = base_url.rstrip("/") + "/models"
    body = ask(url)
    try:
        return str(json.loads(body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{redact(url)} names no model: {start_of(body)}") from error
