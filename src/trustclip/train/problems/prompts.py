r"""Prompt styles: the instructions given to the model, and where its answer is extracted from.

A style is data. `messages` puts one in front of a problem as a conversation; `set_chat_template`
gives a base model's tokenizer a template that renders such conversations.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any, Literal

from trustclip.support.checked import checked
from trustclip.support.names import unknown
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.verify.extraction import Style, extract_answer


@dataclass(frozen=True)
class PromptStyle:
    """How a problem is presented to a model, and how its answer is extracted.

    Args:
      name: key in `STYLES`.
      system: system message, or None for none.
      prefix: text before the problem in the user message.
      suffix: text after it.
      generation_prompt: text that opens the assistant's turn for a tokenizer without a template.
      extraction: extraction style that goes with the instructions (`extract_answer`).
      thinking: value of ``enable_thinking`` for a chat template that reads it; None for its own.
    """

    name: str
    system: str | None
    prefix: str
    suffix: str
    generation_prompt: str
    extraction: Style
    thinking: bool | None = None

    @property
    def asked(self) -> dict[str, Any]:
        """What determines the prompt, in plain values; two styles with the same are the same."""
        template = f"{self.prefix}{_PLACE}{self.suffix}"
        return {
            "system": self.system,
            "template": template,
            "answer": self.extraction,
            "thinking": self.thinking,
        }


@checked
class Prompt:
    """Changes to a prompt style, each optional.

    Example:
      >>> Prompt(template="Translate: {problem}").template
      'Translate: {problem}'
    """

    system: str | None = None
    """System message in place of the style's; "" for none."""
    template: str | None = None
    """User message, with {problem} where the problem goes; other braces are text."""
    answer: Literal["solution", "boxed", "answer", "any"] | None = None
    """Where the final answer stands, in place of the style's own place."""
    thinking: bool | None = None
    """Value of enable_thinking for a chat template that has this switch."""

    def __post_init__(self) -> None:
        if self.template is not None and self.template.count(_PLACE) != 1:
            raise ValueError(f"`template` must hold {_PLACE} once, got {self.template!r}.")


#: Where the problem stands in a template.
_PLACE = "{problem}"


def styled(name: str, prompt: Prompt) -> PromptStyle:
    """The style called ``name``, with changes.

    Returns:
      The style itself, or one named after it and the first digits of a hash of the differences.

    Example:
      >>> styled("boxed", Prompt()).name, styled("boxed", Prompt(system="")).name[:6]
      ('boxed', 'boxed-')
    """
    style = prompt_style(name)
    if prompt == Prompt():
        return style
    template = prompt.template or f"{style.prefix}{_PLACE}{style.suffix}"
    prefix, _, suffix = template.partition(_PLACE)
    changed = replace(
        style,
        system=style.system if prompt.system is None else prompt.system or None,
        prefix=prefix,
        suffix=suffix,
        extraction=prompt.answer or style.extraction,
        thinking=prompt.thinking,
    )
    if changed == style:
        return style
    digest = hashlib.sha256(json.dumps(changed.asked, sort_keys=True).encode()).hexdigest()
    return replace(changed, name=f"{name}-{digest[:6]}")


_SOLUTION_SYSTEM = (
    "You will be given a mathematics problem.\n"
    "Work out its solution step by step.\n"
    "Write your work between <start_working_out> and <end_working_out>.\n"
    "Then write the final answer between <SOLUTION> and </SOLUTION>."
)
_BOXED_SYSTEM = "Reason step by step, and put your final answer within \\boxed{}."
_ANSWER_PREFIX = (
    "Solve the following mathematics problem step by step. The last line of your response must be "
    "of the form Answer: $Answer, where $Answer is the answer to the problem.\n\n"
)

STYLES: dict[str, PromptStyle] = {
    style.name: style
    for style in (
        PromptStyle("solution", _SOLUTION_SYSTEM, "", "", "<start_working_out>", "solution"),
        PromptStyle("boxed", _BOXED_SYSTEM, "", "", "\n", "boxed"),
        PromptStyle(
            "answer",
            None,
            _ANSWER_PREFIX,
            '\n\nRemember to put your answer on its own line after "Answer:".',
            "\n",
            "answer",
        ),
        PromptStyle("plain", None, "", "", "", "solution"),
    )
}


def prompt_style(name: str | PromptStyle) -> PromptStyle:
    """The style called `name`; a style is itself.

    Raises:
      ValueError: unknown name.

    Example:
      >>> prompt_style("boxed").extraction
      'boxed'
    """
    if isinstance(name, PromptStyle):
        return name
    if name not in STYLES:
        raise ValueError(unknown("prompt style", name, STYLES))
    return STYLES[name]


def messages(problem: str, style: str | PromptStyle = "solution") -> list[dict[str, str]]:
    """The conversational prompt that presents `problem` to a model.

    Args:
      problem: text of the problem, used unchanged.
      style: ``"solution"`` (working and answer in tags), ``"boxed"``, ``"answer"`` (DAPO) or
        ``"plain"`` (the problem alone, for models trained on the tags); or a `PromptStyle`.

    Returns:
      Messages with ``role`` and ``content``, as TRL and chat templates take them.

    Raises:
      ValueError: unknown style.

    Example:
      >>> messages("What is 1+2?", "plain")
      [{'role': 'user', 'content': 'What is 1+2?'}]
      >>> [message["role"] for message in messages("What is 1+2?", "boxed")]
      ['system', 'user']
    """
    chosen = prompt_style(style)
    user = {"role": "user", "content": f"{chosen.prefix}{problem}{chosen.suffix}"}
    return [{"role": "system", "content": chosen.system}, user] if chosen.system else [user]


def completion(problem: Problem, style: str | PromptStyle = "solution") -> str:
    r"""The assistant's turn that a model is fine-tuned to give: working, then the answer.

    A solution that already states the answer where the style looks for it is used unchanged.

    Raises:
      ValueError: unknown style, or a problem without a solution.

    Example:
      >>> problem = Problem(id="p", problem="1+2", answer="3", solution="Add them.")
      >>> completion(problem, "boxed")
      'Add them.\n\n\\boxed{3}'
      >>> completion(problem, "plain")
      '<start_working_out>Add them.<end_working_out><SOLUTION>3</SOLUTION>'
    """
    if problem.solution is None:
        raise ValueError(f"problem {problem.id!r} has no solution to learn from")
    return right_completion(problem, style)


def right_completion(problem: Problem, style: str | PromptStyle = "solution") -> str:
    """A right completion for a problem: its solution, if it has one, and its answer.

    Example:
      >>> right_completion(Problem(id="p", problem="1+2", answer="3"), "answer")
      'Answer: 3'
    """
    place, working = prompt_style(style).extraction, problem.solution or ""
    if extract_answer(working, place) is not None:
        return working
    gap = "\n\n" if working else ""
    match place:
        case "boxed":
            return f"{working}{gap}\\boxed{{{problem.answer}}}"
        case "answer":
            return f"{working}{gap}Answer: {problem.answer}"
    working = f"<start_working_out>{working}<end_working_out>" if working else ""
    return f"{working}<SOLUTION>{problem.answer}</SOLUTION>"


def chat_template(style: str | PromptStyle = "solution") -> str:
    """Jinja chat template for a base model: system, end of text, user, generation prompt.

    Assistant turns are marked with ``{% generation %}``, so that a trainer can mask the rest.

    Raises:
      ValueError: unknown style.
    """
    opening = prompt_style(style).generation_prompt.replace("\n", "\\n")
    return (
        "{% for message in messages %}"
        "{% if message['role'] == 'system' %}{{ message['content'] + eos_token }}"
        "{% elif message['role'] == 'user' %}{{ message['content'] }}"
        "{% elif message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
        "{% endif %}{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ '{opening}' }}}}{{% endif %}}"
    )


def set_chat_template(tokenizer: Any, style: str | PromptStyle = "solution") -> None:
    """Give `tokenizer` the chat template of `style` if it has none, and its thinking.

    Whether to think becomes the default of the template itself, so that whatever renders prompts
    by this tokenizer, or by a saved copy of it, renders the same. The tokenizer is changed in
    place.

    Raises:
      ValueError: unknown style, a tokenizer without an end-of-sequence token, or a template
        without a switch for thinking.
    """
    chosen = prompt_style(style)
    if getattr(tokenizer, "chat_template", None):
        if chosen.thinking is not None:
            tokenizer.chat_template = _thinking(str(tokenizer.chat_template), chosen.thinking)
        return
    if chosen.thinking is not None:
        raise ValueError("`thinking` needs a chat template of the model's own, which it lacks.")
    if not getattr(tokenizer, "eos_token", None):
        raise ValueError("the tokenizer has no eos_token, which the template puts between turns")
    tokenizer.chat_template = chat_template(chosen)


#: Jinja before a template: the switch's value where the caller gives none.
_DEFAULT = "{{% if {switch} is not defined %}}{{% set {switch} = {value} %}}{{% endif %}}"
_SWITCH = "enable_thinking"


def _thinking(template: str, value: bool) -> str:
    """A chat template in which thinking is on or off by default."""
    defaults = {v: _DEFAULT.format(switch=_SWITCH, value=str(v).lower()) for v in (True, False)}
    for default in defaults.values():
        template = template.removeprefix(default)
    if _SWITCH not in template:
        raise ValueError(
            f"`thinking` is {str(value).lower()}, and the model's chat template has no switch for "
            f"it ({_SWITCH}): leave it out."
        )
    return defaults[value] + template


def tokens_of(
    tokenizer: Any, problem: Problem, style: str | PromptStyle, *, solved: bool = False
) -> int:
    """Number of tokens of a problem's prompt, or (solved) of prompt and `completion`."""
    conversation = messages(problem.problem, style)
    if solved:
        conversation.append({"role": "assistant", "content": completion(problem, style)})
    encoding = tokenizer.apply_chat_template(
        conversation, add_generation_prompt=not solved, return_dict=True
    )
    return len(encoding["input_ids"])


def rendered(tokenizer: Any, problem: str, style: str | PromptStyle) -> str:
    """The text that a model gets for a problem, special tokens included."""
    return str(
        tokenizer.apply_chat_template(
            messages(problem, style), add_generation_prompt=True, tokenize=False
        )
    )


#: Beside a trained model: the prompts that it was trained with.
PROMPT_FILE = "prompt.json"


def record(style: PromptStyle, tokenizer: Any = None, problem: str | None = None) -> dict[str, Any]:
    """A prompt in plain values, for ``summary.json`` and for `PROMPT_FILE`.

    With the hash of a tokenizer's chat template, and a problem as the model gets it.
    """
    prompt = {"style": style.name, **style.asked}
    if tokenizer is not None:
        template = str(tokenizer.chat_template).encode()
        prompt["chat_template"] = hashlib.sha256(template).hexdigest()[:16]
    if tokenizer is not None and problem is not None:
        prompt["rendered"] = rendered(tokenizer, problem, style)
    return prompt
