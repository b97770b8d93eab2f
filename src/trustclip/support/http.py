"""Questions to a server over HTTP: overload is waited out, redirections are not followed."""

import json
import os
import time
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from trustclip.support.secrets import redacted
from trustclip.support.text import one_line

#: Pauses before each further attempt, seconds.
PAUSES = (1.0, 2.0, 4.0, 8.0)
#: Longest wait for one reply, seconds: 32,768 tokens at ten a second.
PATIENCE = 3600.0


def ask(url: str, question: Any = None) -> bytes:
    """The reply to a question.

    The environment's ``OPENAI_API_KEY``, where set, is sent as the bearer token. Overload (status
    429), server errors (5xx) and lost connections are tried again, any other refusal is not. A
    question is sent as JSON, by POST; without one, the resource is read.
    """
    data = None if question is None else json.dumps(question).encode()
    request = Request(url, data=data, headers={"Content-Type": "application/json"} if data else {})
    if key := os.environ.get("OPENAI_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    for pause in PAUSES:
        try:
            return _send(request)
        except _Passing:
            time.sleep(pause)
    return _send(request)


def _send(request: Request) -> bytes:
    shown = redacted(request.full_url)
    try:
        with _OPENER.open(request, timeout=PATIENCE) as reply:
            return reply.read()
    except HTTPError as error:
        if 300 <= error.code < 400:
            place = one_line(redacted(str(error.headers.get("Location"))))
            raise ValueError(
                f"{shown} sends its clients elsewhere, to {place}: neither questions nor "
                "the key go there. Where you trust it, give that address as base_url."
            ) from error
        kind = _Passing if error.code == 429 or error.code >= 500 else ValueError
        raise kind(f"{shown} returned {error.code}: {start_of(error.read())}") from error
    except (OSError, HTTPException) as error:
        raise _Passing(f"{shown} cannot be reached: {redacted(str(error))}") from error


class _Stay(HTTPRedirectHandler):
    """Follows no redirection, after which a question would go without its text."""

    def redirect_request(self, req: Any, *_: Any, **__: Any) -> None:
        return None


_OPENER = build_opener(_Stay)


def check_address(base_url: str) -> None:
    """Refuse the address of a server that cannot be asked."""
    if not base_url.startswith(("http://", "https://")):
        wrong = "must start with http:// or https://"
    elif any(c.isspace() or not c.isprintable() for c in base_url):
        wrong = "holds a space or a control character"
    else:
        try:
            parts = urlsplit(base_url)
            named = parts.hostname is not None and parts.port != 0
        except ValueError:
            named = False
        wrong = "" if named else "names no server: such as http://127.0.0.1:8000/v1"
    if wrong:
        raise ValueError(f"base_url={redacted(base_url)!r} {wrong}.")


class _Passing(ValueError):
    """A failure that may not recur in the next attempt."""


def start_of(body: bytes) -> str:
    """The beginning of a reply, safe to print."""
    return one_line(redacted(body[:300].decode(errors="replace")))


def first_model(base_url: str) -> str:
    """Name of the first model that a server with OpenAI's protocol has."""
    url = base_url.rstrip("/") + "/models"
    body = ask(url)
    try:
        return str(json.loads(body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{redacted(url)} names no model: {start_of(body)}") from error
