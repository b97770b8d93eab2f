"""Prompts of one's own: the same in training and evaluation, on record, shown before."""

import json
from typing import Any

import pytest
import yaml
from commands import trustclip
from test_own_rewards import folder  # noqa: F401  (a fixture)
from test_own_rewards import recipe as written

from trustclip.support.jsonl import read_jsonl
from trustclip.train.data import unlike
from trustclip.train.problems.prompts import (
    STYLES,
    Prompt,
    messages,
    rendered,
    set_chat_template,
    styled,
)
from trustclip.train.settings.stages import EvalStage
from trustclip.train.tiny import tiny_tokenizer

OWN: dict[str, Any] = {
    "system": "Be brief.",
    "template": "Q: {problem}\n{not a place} A:",
    "answer": "any",
}


def test_a_style_with_parts_replaced():
    style = styled("boxed", Prompt(**OWN))
    assert messages("1+2", style) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Q: 1+2\n{not a place} A:"},
    ]
    assert style.extraction == "any" and style.name.startswith("boxed-")
    assert styled("boxed", Prompt(system="")).system is None
    assert styled("boxed", Prompt()) is STYLES["boxed"]
    assert styled("boxed", Prompt(answer="boxed")) is STYLES["boxed"]  # no difference after all
    assert styled("plain", Prompt(system="a")).name != styled("plain", Prompt(system="b")).name


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"template": "no place"}, r"`template` must hold \{problem\} once, got 'no place'"),
        ({"template": "{problem} {problem}"}, "once"),
        ({"sistem": "x"}, "sistem"),
        ({"answer": "boxd"}, "Did you mean 'boxed'"),
    ],
)
def test_wrong_prompts_are_refused(prompt, words):
    with pytest.raises(ValueError, match=words):
        EvalStage(tasks="arithmetic", prompt=prompt)


def test_thinking_becomes_the_template_s_default():
    tokenizer, chat = tiny_tokenizer(), messages("1+2", "plain")
    own = (
        "{% if enable_thinking is defined and enable_thinking is false %}NO{% else %}YES{% endif %}"
    )
    tokenizer.chat_template = own
    off = styled("plain", Prompt(thinking=False))
    set_chat_template(tokenizer, off)
    assert rendered(tokenizer, "1+2", off) == "NO"
    assert tokenizer.apply_chat_template(chat, tokenize=False, enable_thinking=True) == "YES"
    set_chat_template(tokenizer, off)
    assert tokenizer.chat_template.count("set enable_thinking") == 1
    set_chat_template(tokenizer, styled("plain", Prompt(thinking=True)))
    assert rendered(tokenizer, "1+2", "plain") == "YES"
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    with pytest.raises(ValueError, match="has no switch for it"):
        set_chat_template(tokenizer, off)
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="needs a chat template of the model's own"):
        set_chat_template(tokenizer, off)


@pytest.mark.slow
def test_training_and_evaluation_use_and_record_the_same(folder, monkeypatch):  # noqa: F811
    monkeypatch.chdir(folder)
    evaluation = {"tasks": "data.jsonl", "columns": {"prompt": "question", "answer": "gold"},
                  "prompt_style": "plain", "k": 1, "max_tokens": 4, "limit": 2}  # fmt: skip
    file = written(folder, "prompted.yaml", prompt=OWN, exclude="none", max_steps=1)
    content = yaml.safe_load((folder / "prompted.yaml").read_text())
    content["eval"] = evaluation
    (folder / "prompted.yaml").write_text(yaml.safe_dump(content))
    shown = trustclip("run", file, "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "  | <|system|>Be brief.<|user|>Q: 0+1=\n  | {not a place} A:" in shown.stdout
    assert "reward correct: 0.0 for nothing, 1.0 for its gold answer" in shown.stdout
    assert "prompts of `eval` (style 'plain') are not those of `rl`" in shown.stdout
    content["eval"]["prompt"] = OWN
    (folder / "prompted.yaml").write_text(yaml.safe_dump(content))
    done = trustclip("run", file)
    assert done.returncode == 0 and "are not those of" not in done.stdout, done.stderr
    run = folder / "prompted"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["prompt"]["system"] == "Be brief." and "eval_prompt" not in summary
    assert "Be brief." in summary["prompt"]["rendered"] and "A:" in summary["prompt"]["rendered"]
    kept = json.loads((run / "final" / "prompt.json").read_text())
    assert kept == summary["prompt"]
    assert yaml.safe_load((run / "config.yaml").read_text())["rl"]["prompt"]["template"]

    args = ("eval", "--model", str(run / "final"), "--tasks", "data.jsonl", "--k", "1",
            "--columns.prompt", "question", "--columns.answer", "gold", "--max-tokens", "2",
            "--limit", "2", "--prompt-style", "plain")  # fmt: skip
    other = trustclip(*args, "--output-dir", "other")
    assert other.returncode == 0, other.stderr
    assert "was trained with other prompts" in other.stdout and "system, template" in other.stdout
    recorded = json.loads((folder / "other" / "summary.json").read_text())
    assert recorded["prompt"]["system"] is None and recorded["trained_with"] == kept
    same = trustclip(*args, "--prompt.system", OWN["system"], "--prompt.template", OWN["template"],
                     "--prompt.answer", "any", "--output-dir", "same")  # fmt: skip
    assert same.returncode == 0 and "was trained with" not in same.stdout, same.stderr
    recorded = json.loads((folder / "same" / "summary.json").read_text())
    assert recorded["prompt"]["chat_template"] == kept["chat_template"]
    assert [row["stage"] for row in read_jsonl(folder / "same" / "samples.jsonl")] == ["eval"] * 2
    assert not [*unlike("owner/model", STYLES["plain"])]
