"""The sampler in `explain` and in the report: sentences and panels."""

from pathlib import Path
from typing import Any

from golden_runs import rows, write
from synthetic_runs import undrawn

from trustclip.report.collect import collect
from trustclip.report.console import explain
from trustclip.report.draw.mismatch import distance_figure, quantile_figure
from trustclip.report.page import render
from trustclip.support.jsonl import append_jsonl

SAMPLER = {
    "sampler/k3": 2e-3, "sampler/abs": 0.03, "sampler/identical_share": 0.25,
    "sampler/current/k3": 0.012, "sampler/current/sequence_ess": 0.2, "sampler/sequence_ess": 0.9,
    "sampler/gated_old": 0.02, "sampler/gated_rollout": 0.05,
    **{f"sampler/log_ratio_q{q}": x
       for q, x in {"001": -0.4, "01": -0.1, "50": 0.0, "99": 0.1, "999": 0.5}.items()},
}  # fmt: skip


def token(text: str, old: float, rollout: float, **place: int) -> dict[str, Any]:
    at = {"generated": 0, "index": 3, "position": 7, **place}
    return {**at, "token": 9, "logp": old, "logp_old": old, "logp_rollout": rollout, "text": text}


def with_tokens(folder: Path) -> Path:
    gates = [
        {"step": 1, "generated": [0], "index": [3], "gated": [0.0],
         "worst": [token("</s>", -1.0, -9.0), token(" the", -2.0, -2.5, position=8)]},
        {"step": 2, "generated": [0], "index": [3], "gated": [0.0],
         "worst": [token("</s>", -1.0, -9.0)]},
    ]  # fmt: skip
    append_jsonl(folder / "gates.jsonl", gates)
    return folder


def test_the_report_has_the_section(tmp_path) -> None:
    run = with_tokens(write(tmp_path / "run", rows(**SAMPLER)))
    report = collect([run])
    section = report["sampler"]
    distance, tails = section.figures
    assert len(distance.panels) == 7 and len(tails.panels[0].marks) == 5
    assert [p.title for p in distance.panels][:2] == [
        "The sampler differs: proximal / sampler", "The policy moved: current / proximal",
    ]  # fmt: skip
    assert distance.panels[3].marks[-1].y[0] == 20.0  # percent
    assert distance == distance_figure(report.groups) and tails == quantile_figure(report.groups)
    assert "agree least on '</s>' (place 7 of completion 3" in "\n".join(explain(run))


def test_hostile_token_texts_stay_text(tmp_path) -> None:
    run = write(tmp_path / "run", rows(**SAMPLER))
    append_jsonl(
        run / "gates.jsonl",
        [{"step": 1, "generated": [0], "index": [3], "gated": [0.0],
          "worst": [token("<img src=x onerror=alert(1)>\x1b[31m", -1.0, -9.0)]}],
    )  # fmt: skip
    assert "\x1b" not in "\n".join(explain(run))
    report = collect([run])
    pictures = {figure.key: undrawn(figure) for figure in report.figures}
    assert "<img src=x" not in render(report, "t", pictures=pictures)
