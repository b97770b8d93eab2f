r"""Prompt styles: the instructions given to the model, and where its answer is extracted from.

A style is data. `messages` puts one in front of a problem as a conversation; `set_chat_template`
gives a base model's tokenizer a template that renders such conversations.
"""

from dataclasses import dataclass
from typing import Any

from trustclip.constraints.names import unknown
from trustclip.rewards.extraction import Style, extract_answer
from trustclip.tasks.problem import Problem


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
    """

    name: str
    system: str | None
    prefix: str
    suffix: str
    generation_prompt: str
    extraction: Style


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


def prompt_style(name: str) -> PromptStyle:
    """The style called `name`.

    Raises:
      ValueError: unknown name; the message holds the allowed ones and the nearest.

    Example:
      >>> prompt_style("boxed").extraction
      'boxed'
    """
    if name not in STYLES:
        raise ValueError(unknown("prompt style", name, STYLES))
    return STYLES[name]


def messages(problem: str, style: str = "solution") -> list[dict[str, str]]:
    """The conversational prompt that presents `problem` to a model.

    Args:
      problem: text of the problem, used unchanged.
      style: ``"solution"`` (the tags of the paper), ``"boxed"``, ``"answer"`` (DAPO) or ``"plain"``
        (the problem alone, for models trained on the tags).

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


def completion(problem: Problem, style: str = "solution") -> str:
    r"""The assistant's turn that a model is fine-tuned to give: working, then the answer.

    A solution that already states the answer where the style looks for it is used unchanged.

    Args:
      problem: a problem with a solution.
      style: a name in `STYLES`.

    Raises:
      ValueError: unknown style, or a problem without a solution.

    Example:
      >>> problem = Problem(id="p", problem="1+2", answer="3", solution="Add them.")
      >>> completion(problem, "boxed")
      'Add them.\n\n\\boxed{3}'
      >>> completion(problem, "plain")
      '<start_working_out>Add them.<end_working_out><SOLUTION>3</SOLUTION>'
    """
    chosen = prompt_style(style)
    if problem.solution is None:
        raise ValueError(f"problem {problem.id!r} has no solution to learn from")
    if extract_answer(problem.solution, chosen.extraction) is not None:
        return problem.solution
    match chosen.extraction:
        case "boxed":
            return f"{problem.solution}\n\n\\boxed{{{problem.answer}}}"
        case "answer":
            return f"{problem.solution}\n\nAnswer: {problem.answer}"
    working = f"<start_working_out>{problem.solution}<end_working_out>"
    return f"{working}<SOLUTION>{problem.answer}</SOLUTION>"


def chat_template(style: str = "solution") -> str:
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


def set_chat_template(tokenizer: Any, style: str = "solution", *, overwrite: bool = False) -> bool:
    """Give `tokenizer` the chat template of `style` if it has none.

    Args:
      tokenizer: a Hugging Face tokenizer; changed in place.
      style: a name in `STYLES`.
      overwrite: replace an existing template too.

    Returns:
      Whether the template was set.

    Raises:
      ValueError: unknown style, or a tokenizer without an end-of-sequence token.
    """
    template = chat_template(style)
    if getattr(tokenizer, "chat_template", None) and not overwrite:
        return False
    if not getattr(tokenizer, "eos_token", None):
        raise ValueError("the tokenizer has no eos_token, which the template puts between turns")
    tokenizer.chat_template = template
    return True
