"""Three rewards for TRL's `reward_funcs`: a format, code that is run, a judge on a server.

Each takes a list of completions and what else a row holds, and returns a number for each. They go
to TRL's trainer as they are, and to the commands by name:

    trustclip rl ... --reward examples/rewards.py:well_formed
    reward:
      - examples/rewards.py:passes_tests
      - {name: examples/rewards.py:Judge, weight: 0.2, url: "http://127.0.0.1:8000/v1", model: m}
"""

import json
import re
import resource
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from typing import Any


def text_of(completion: Any) -> str:
    """A completion as text: TRL gives messages where prompts are conversations."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def well_formed(completions: Sequence[Any], **_: object) -> list[float]:
    """1 where reasoning and answer stand in their tags, once each and in this order.

    Example:
      >>> well_formed(["<think>1 + 1</think><answer>2</answer>", "2"])
      [1.0, 0.0]
    """
    form = re.compile(r"\s*<think>(?:(?!</?think>).)*</think>\s*<answer>[^<]*</answer>\s*", re.S)
    return [float(form.fullmatch(text_of(each)) is not None) for each in completions]


def _limits() -> None:
    """Of the process that runs a completion: CPU seconds, memory, files, processes."""
    resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def passes_tests(completions: Sequence[Any], tests: Sequence[str], **_: object) -> list[float]:
    """1 where the completion's Python block passes the row's asserts, in a process of its own.

    The process has limits, an empty folder, no environment and isolated mode; it is *not* a
    sandbox against a determined attacker: use a container or a virtual machine where completions
    come from a model that you do not trust.

    Example:
      >>> code = "```python\\ndef double(x): return 2 * x\\n```"
      >>> passes_tests([code, "no code"], tests=["assert double(2) == 4"] * 2)
      [1.0, 0.0]
    """
    pairs = zip(completions, tests, strict=True)
    return [float(_passes(text_of(each), test)) for each, test in pairs]


def _passes(text: str, test: str) -> bool:
    block = re.search(r"```(?:python)?\n(.*?)```", text, re.S)
    if block is None:
        return False
    # What counts is a word that the completion cannot know, printed after the tests.
    word = re.sub(r"\W", "", tempfile.mktemp())
    program = f"{block[1]}\n{test}\nprint({word!r})\n"
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", program], cwd=folder, env={}, timeout=60,
                capture_output=True, text=True, preexec_fn=_limits, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:  # asleep: it uses no CPU time
            return False
    return done.returncode == 0 and done.stdout.rstrip().endswith(word)


class Judge:
    """A score from 0 to 10 by a model behind an OpenAI-compatible server, as 0 to 1.

    Args:
      url: of the server, such as ``http://127.0.0.1:8000/v1``.
      model: name of the model there.

    A reply without a number scores 0, so that a broken judge cannot pay.
    """

    __name__ = "judge"  # TRL logs a reward by its name

    def __init__(self, url: str, model: str) -> None:
        self.url, self.model = url.rstrip("/"), model

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **_: object
    ) -> list[float]:
        pairs = zip(prompts, completions, strict=True)
        return [self._score(text_of(p), text_of(c)) for p, c in pairs]

    def _score(self, prompt: str, completion: str) -> float:
        asked = f"Question:\n{prompt}\n\nAnswer:\n{completion}\n\nScore from 0 to 10, number only:"
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": asked}],
            "temperature": 0,
            "max_tokens": 4,
        }
        request = urllib.request.Request(
            f"{self.url}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            reply = json.load(response)["choices"][0]["message"]["content"]
        number = re.search(r"\d+(?:\.\d+)?", reply or "")
        return min(float(number[0]), 10.0) / 10 if number else 0.0
