"""Completions of a training run, as rows of ``samples.jsonl``."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trustclip.logs.writing.run import RunWriter

#: Called with the update, the name and the text of a warning.
Notice = Callable[[int, str, str], None]
#: Columns of a data set that may hold the right answer.
_GOLD = ("answer", "solution", "ground_truth", "gold", "label", "target")


class Completions:
    """Writes completions to ``samples.jsonl`` and gated shares to ``gates.jsonl``.

    ``notice`` gets warnings of the trainer.
    """

    def __init__(self, run: RunWriter, notice: Notice | None = None) -> None:
        self._run, self._notice = run, notice

    def generation(self, generation: Any) -> None:
        """Write a line for each completion of a `Generation` of the TRL engine."""
        self._run.sample(self._rows(generation))

    def gates(self, row: dict[str, Any]) -> None:
        """Write the gated shares of an update."""
        self._run.gates(row)

    def notice(self, step: int, name: str, text: str) -> None:
        """Hand on a warning of the trainer."""
        if self._notice is not None:
            self._notice(step, name, text)

    def _rows(self, generation: Any) -> Iterator[dict[str, Any]]:
        for place, index in enumerate(generation.index):
            row = generation.rows[place]
            problem = problem_of(row)
            yield {
                "stage": "rl",
                "step": generation.step,
                "index": index,
                "id": problem["id"],
                "gold": problem["answer"] or None,
                "response": text_of(generation.completions[place]),
                "tokens": len(generation.tokens[place]),
                **self._reward_row(generation, place, row),
            }

    def _reward_row(self, generation: Any, place: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """Columns of the reward: the sum that is trained on, and its parts if there are several."""
        parts = {name: values[place] for name, values in generation.rewards.items()}
        several = {name: None if math.isnan(v) else v for name, v in parts.items()}
        return {
            "reward": generation.total[place],
            **({"rewards": several} if len(parts) > 1 else {}),
        }


def problem_of(row: Mapping[str, Any]) -> dict[str, str]:
    """The problem of a data set's row; one without an id is named by its content.

    Example:
      >>> problem_of({"prompt": "1+1=", "answer": 2, "id": 7})["id"]
      '7'
    """
    prompt = row.get("prompt", "")
    text = prompt if isinstance(prompt, str) else text_of([m for m in prompt][-1:])
    gold = next((row[name] for name in _GOLD if row.get(name) is not None), "")
    answer = gold if isinstance(gold, str) else json.dumps(gold, default=str)
    key = row.get("id")
    if key is None:
        key = hashlib.sha256(json.dumps([prompt, answer], default=str).encode()).hexdigest()[:10]
    return {"id": str(key), "problem": text, "answer": answer}


def text_of(completion: Any) -> str:
    """The text of a completion, which is one, or messages: of several, each after its role.

    Example:
      >>> text_of("7"), text_of([{"role": "assistant", "content": "7"}])
      ('7', '7')
      >>> call = {"function": {"name": "add", "arguments": {"a": 1}}}
      >>> print(text_of([{"role": "assistant", "content": "", "tool_calls": [call]},
      ...                {"role": "tool", "name": "add", "content": "2"}]))
      [assistant] add({"a": 1})
      [tool] 2
    """
    if isinstance(completion, str):
        return completion
    turns = [_turn_text(message) for message in completion]
    if len(turns) == 1:
        return turns[0]
    roles = [str(message.get("role", "assistant")) for message in completion]
    return "\n".join(f"[{role}] {text}" for role, text in zip(roles, turns, strict=True))


def _turn_text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):  # parts, of which some are images
        content = "".join(str(part.get("text", "")) for part in content)
    calls = [
        f"{call['function']['name']}({json.dumps(call['function'].get('arguments'), default=str)})"
        for call in message.get("tool_calls") or ()
        if isinstance(call.get("function"), Mapping)
    ]
    return " ".join(filter(None, [content, *calls]))
