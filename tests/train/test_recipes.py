"""Recipes from the command line to the run directory, with the tiny model."""

import json

import pytest
from commands import trustclip

from trustclip.support.jsonl import append_jsonl, read_jsonl


def problems_file(path):
    rows = [
        {
            "id": f"p{i}",
            "problem": f"What is ${i} \\cdot 2$? Prüfe: {i}·2 = ?",
            "answer": str(2 * i),
            "solution": f"Twice {i} is {2 * i}.",
        }
        for i in range(40)
    ]
    append_jsonl(path, rows)
    return path


@pytest.mark.slow
def test_real_text_through_sft_rl_and_eval(tmp_path):
    data = problems_file(tmp_path / "train.jsonl")
    with data.open("a") as file:
        file.write('{"id": "bad", "problem": "no answer"}\n')
    done = trustclip(
        "sft", "--model", "tiny", "--dataset", str(data), "--output-dir", str(tmp_path / "sft"),
        "--max-steps", "3", "--learning-rate", "1e-3",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "max_length: 2048" in (tmp_path / "sft/final/README.md").read_text()
    bad = read_jsonl(tmp_path / "sft" / "quarantine.jsonl")
    assert len(bad) == 1 and bad[0]["line"] == 41
    done = trustclip(
        "rl", "--model", str(tmp_path / "sft/final"), "--dataset", str(data), "--max-steps", "2",
        "--output-dir", str(tmp_path / "rl"), "--per-device-train-batch-size", "8",
        "--gradient-accumulation-steps", "1", "--num-iterations", "2", "--lora-r", "4",
        "--max-completion-length", "12", "--prompt-style", "boxed", "--method", "full_kl",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = trustclip(
        "eval", "--model", str(tmp_path / "rl/final"), "--tasks", f"{data},arithmetic", "--k", "2",
        "--max-tokens", "8", "--limit", "3", "--output-dir", str(tmp_path / "eval"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "eval/summary.json").read_text())
    assert set(summary["tasks"]) == {"train", "arithmetic"}
    assert summary["average"]["mean@2"]["value"] == 0  # a tiny model, told as it is
    assert summary["average"]["truncated"] > 0.5
    assert summary["average"]["mean@2"]["high"] > 0.2  # and how little six problems say


def test_reasoning_traces_are_filtered_as_in_the_notebook(tmp_path):
    from dataclasses import replace

    from trustclip.train.files import preset
    from trustclip.train.problems.problem import Problem
    from trustclip.train.settings.stages import SFTSettings
    from trustclip.train.sft import format_examples
    from trustclip.train.tiny import tiny_tokenizer

    rows = [
        Problem("short", "1+2", "3", "<think>Add.</think> So 3."),
        Problem("proof", "Show it.", "shown", "Clear."),
        Problem("long", "2+2", "4", "Again. " * 200),
        Problem("second", "2+3", "5", "Add."),
    ]
    changes = {"dataset": "openmath_mini.jsonl", "limit": 1}
    named = SFTSettings(**preset("sft", "tiny") | changes)
    kept = format_examples(rows, tiny_tokenizer(), named)
    assert [(p.id, p.solution) for p in kept] == [("short", "Add. So 3.")]
    other = replace(named, dataset="mine.jsonl", limit=None)
    assert len(format_examples(rows, tiny_tokenizer(), other)) == 4
    with pytest.raises(ValueError, match="max_length = 256"):
        format_examples(rows[2:3], tiny_tokenizer(), named)


@pytest.mark.slow
def test_the_demo_learns(tmp_path):
    """Half the generations of the full demo: the gain must already be clear."""
    run = tmp_path / "demo"
    done = trustclip("demo", "--generations", "4", "--seed", "1", "--output-dir", str(run))
    assert done.returncode == 0, done.stderr
    summary = json.loads((run / "summary.json").read_text())
    gain = summary["difference"]
    assert gain["value"] >= 0.15 and gain["low"] > 0
    length = {stage: summary[stage]["average"]["length"] for stage in ("initial", "final")}
    assert length["final"] > length["initial"] + 5
    rows = [row for row in read_jsonl(run / "metrics.jsonl") if row["stage"] == "rl"]
    gated = [row["trustclip/gated"] for row in rows]
    assert 0.005 < sum(gated) / len(gated) < 0.1
    assert summary["finished"] and summary["method"]["name"] == "atr"
    assert (run / "report.html").exists() and (run / "final/README.md").exists()
