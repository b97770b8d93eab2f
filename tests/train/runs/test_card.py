"""The model card: true to the run's files, and nothing in them becomes Markdown or HTML."""

import json
import re

import pytest
import yaml
from markdown_it import MarkdownIt

from trustclip.support.text import markdown_text
from trustclip.train.runs.card import fenced, write_card

SCORE = {"value": 0.125, "low": 0.081, "high": 0.18}
GAINED = {"value": 0.25, "low": 0.2, "high": 0.31}
NASTY = (
    "x</td><script>alert(1)</script> [go](javascript:1) ![i](http://e.vil/p) |a|\n# Top\n```\n---"
)


def config(**changes):
    rl = {"dataset": "open-r1/DAPO-Math-17k", "method": "atr", "method_args": {"delta": 0.07}}
    rl |= {"learning_rate": 5e-6, "max_steps": 96, "num_generations": 8, "lora_r": 32}
    return {
        "command": "run", "name": "small", "model": "Qwen/Qwen3-1.7B", "output_dir": "runs/small",
        "seed": 0, "sft": {"dataset": "solved.jsonl"}, "rl": rl, "eval": {"tasks": "aime24,amc23"},
    } | changes  # fmt: skip


def summary(**changes):
    def scores(interval):
        part = {"mean@8": interval, "pass@8": interval, "problems": 30, "curve": {"k": [1]}}
        return {"tasks": {"aime24": part, "amc23": part}, "average": {**part, "problems": 60}}

    return {
        "command": "run", "name": "small", "finished": True, "model": "Qwen/Qwen3-1.7B", "seed": 0,
        "method": {"name": "atr", "delta": 0.07, "side": "outward", "level": "token"},
        "initial": scores(SCORE), "final": scores(GAINED),
        "best": {"step": 64, "average": {"mean@8": GAINED}}, "skipped_steps": 2, "seconds": 75.0,
        "notices": [{"step": 40, "notice": "gate_closed", "text": "the gate is closed"}],
    } | changes  # fmt: skip


ENVIRONMENT = {
    "versions": {"trustclip": "0.1.0", "torch": "2.13.0+cpu"},
    "platform": "Linux", "processors": 2, "argv": ["rl", "--preset", "tiny", "--seed", "$(rm)"],
    "git": {"commit": "abc123", "changed": True},
}  # fmt: skip


def card(folder, config, summary, environment=ENVIRONMENT):
    """Write a run directory; its card's front matter and body."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "environment.json").write_text(json.dumps(environment))
    path = write_card(folder)
    assert path == folder / "final" / "README.md"
    _, front, body = path.read_text().split("---\n", 2)
    return yaml.safe_load(front), body


def test_front_matter_names_hub_ids_and_nothing_else(tmp_path):
    front, _ = card(tmp_path, config(), summary())
    assert front == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "base_model": "Qwen/Qwen3-1.7B",
        "datasets": ["open-r1/DAPO-Math-17k"],
        "tags": ["trustclip", "reinforcement-learning", "grpo", "atr"],
    }
    local = config(model=str(tmp_path), rl={"dataset": "data/train.jsonl", "method": "my.mod:Mine"})
    front, _ = card(tmp_path, local, summary())
    assert not {"base_model", "datasets"} & set(front)
    assert front["tags"] == ["trustclip", "reinforcement-learning"]


def test_method_scores_environment_and_reproduction(tmp_path):
    _, body = card(tmp_path, config(), summary())
    assert "# small" in body
    assert "under the policy-divergence constraint atr, with trustclip." in body
    assert "[0.670972, 1.422217]" in body  # the ratio interval of atr at 0.07
    assert "| delta | 0.07 |" in body and "| learning rate (AdamW) | 5e-06 |" in body
    row = "| aime24 | 30 | mean@8 | 12.5 [8.1, 18.0] | 25.0 [20.0, 31.0] |"
    assert row in body and body.count("| average | 60 |") == 2
    assert "after 64 updates" in body and "optimistic" in body
    assert "| code | abc123, with uncommitted changes |" in body
    assert "| torch | 2.13.0+cpu |" in body
    assert "trustclip run config.yaml" in body
    assert "2 updates were skipped" in body and "update 40: the gate is closed" in body
    stored = re.search(r"```yaml\n(.*?)\n```", body, re.S)
    assert stored is not None and yaml.safe_load(stored[1]) == config()


def test_nothing_is_installed_that_is_on_no_registry(tmp_path):
    _, body = card(tmp_path, config(), summary())
    assert "pip install" not in body and "With trustclip 0.1.0 and its extra `train`" in body


def test_the_base_model_of_a_folder_is_looked_for(tmp_path):
    def of(model):
        front, body = card(tmp_path / "run", config(model=str(model)), summary())
        return front.get("base_model"), "before you publish" in body

    cached = tmp_path / "models--Org--Some.Model-1B" / "snapshots" / "0a1b"
    tuned, plain, own = tmp_path / "tuned" / "final", tmp_path / "plain", tmp_path / "own"
    for folder in (cached, tuned, plain, own):
        folder.mkdir(parents=True)
    (own / "config.json").write_text('{"_name_or_path": "org/own"}')
    (tuned.parent / "config.yaml").write_text(f"model: {cached}\n")
    assert of(cached) == of(tuned) == ("Org/Some.Model-1B", False)
    assert of(own) == ("org/own", False)
    assert of(plain) == (None, True)
    assert of(f"adapter+{cached}") == ("Org/Some.Model-1B", False)
    (tuned.parent / "config.yaml").write_text(f"model: {tuned}\n")  # of itself: no end
    assert of(tuned) == (None, True)


def test_cards_of_other_commands(tmp_path):
    flat = {"command": "rl", "model": "tiny", "dataset": "arithmetic", "method": "trgppo"}
    front, body = card(tmp_path / "rl", {**flat, "method_args": {}}, {"command": "rl"})
    assert "trgppo" in front["tags"] and "old probability" in body and "not evaluated" in body
    assert "trustclip rl --preset tiny --seed '$(rm)'" in body
    one = {"average": {"mean@8": SCORE, "problems": 128}}
    demo = {"before": one["average"], "after": {"mean@8": GAINED, "problems": 128}}
    _, body = card(tmp_path / "demo", {"command": "demo", "method": "atr", "method_args": {}}, demo)
    assert "| average | 128 | mean@8 | 12.5" in body
    sft = {"command": "sft", "model": "Qwen/Qwen3-1.7B", "dataset": "open-r1/set"}
    front, body = card(tmp_path / "sft", sft, {})
    assert "## Method" not in body and front["tags"] == ["trustclip", "sft"]


def test_nothing_from_the_files_becomes_markup(tmp_path):
    said = [{"step": NASTY, "notice": NASTY, "text": NASTY}]
    nasty = config(
        name=NASTY, model=NASTY, rl={"dataset": NASTY, "method": NASTY, "loss_type": NASTY}
    )
    result = summary(
        name=NASTY,
        notices=said,
        method={"name": NASTY, NASTY: NASTY},
        initial=None,
        final={"tasks": {NASTY: {f"mean@8{NASTY}": SCORE, "problems": NASTY}}},
        best={"step": NASTY, "average": {NASTY: SCORE}},
    )
    environment = {"versions": {NASTY: NASTY}, "platform": NASTY, "argv": [NASTY]}
    front, body = card(tmp_path, nasty, result, environment)
    assert set(front) == {"library_name", "pipeline_tag", "tags"}
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(body)
    assert not re.search(r"<(script|a|img|hr)\b", page)
    headings = re.findall(r"<h(\d)>(.*?)</h\d>", page, re.S)
    assert [level for level, _ in headings] == ["1"] + ["2"] * 6
    for table in re.findall(r"<table>.*?</table>", page, re.S):
        columns = table.count("<th>")
        assert table.count("<td>") % columns == 0


def test_escaping_says_what_was_said():
    for text in (NASTY, "a_b*c", "5 < 6 & 7 > 2", "runs/tiny-1", "~~x~~", "$x^2$", "`code`"):
        page = MarkdownIt("commonmark", {"html": True}).render("a " + markdown_text(text))
        seen = re.sub(r"<[^>]*>", "", page).replace("&lt;", "<").replace("&gt;", ">")
        seen = seen.replace("&amp;", "&").replace("&quot;", '"')
        assert seen.strip() == "a " + " ".join(text.split())
    assert markdown_text("a\x00b\x1b[31mc\u2028d") == "a b [31mc d"


def test_a_fence_holds_any_text():
    for text in ("```\n# out", "`" * 9, "", "~~~\n```"):
        tokens = MarkdownIt().parse(fenced(text, "yaml"))
        assert [token.type for token in tokens] == ["fence"]
        assert tokens[0].content.strip("\n") == text.strip("\n")


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not a run directory"):
        write_card(tmp_path)


def test_no_code_of_others_runs_for_a_card(tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    rl = {"dataset": "arithmetic", "method": "evil:Method", "method_args": {}}
    _, body = card(tmp_path, config(rl=rl), summary(method={"name": "evil:Method"}))
    assert "evil:Method (not part of trustclip)" in body


def test_its_code_asks_the_model_as_it_was_trained(tmp_path, monkeypatch, capsys):
    from trustclip.train.models import save_model
    from trustclip.train.problems.prompts import Prompt, messages, record, styled
    from trustclip.train.tiny import tiny_model

    asked = Prompt(system='Say "```", then {a number}.', template="Solve: {problem}\nNow.")
    style = styled("plain", asked)
    model, tokenizer = tiny_model(0)
    save_model(model, tokenizer, tmp_path / "final", record(style, tokenizer, "1+1"))
    _, body = card(tmp_path, config(rl={**config()["rl"], "max_completion_length": 4}), summary())
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(body)
    code = next(token.content for token in tokens if token.info == "python")
    monkeypatch.chdir(tmp_path / "final")
    scope: dict = {}
    exec(code, scope)
    assert scope["messages"] == messages(scope["problem"], style)
    new = scope["output"].shape[1] - scope["inputs"]["input_ids"].shape[1]
    assert 1 <= new <= 4
    assert capsys.readouterr().out.endswith("\n")
