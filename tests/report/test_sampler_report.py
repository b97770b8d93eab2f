"""The sampler in `explain` and in the report: sentences, panels and the table of worst tokens."""

from pathlib import Path
from typing import Any

import pytest
from browser import opened
from test_explain import make, row, said

from trustclip.report.build import build
from trustclip.report.collect import collect
from trustclip.report.draw.mismatch import distance_figure, quantile_figure
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
    rows = [
        {"step": 1, "generated": [0], "index": [3], "gated": [0.0],
         "worst": [token("</s>", -1.0, -9.0), token(" the", -2.0, -2.5, position=8)]},
        {"step": 2, "generated": [0], "index": [3], "gated": [0.0],
         "worst": [token("</s>", -1.0, -9.0)]},
    ]  # fmt: skip
    append_jsonl(folder / "gates.jsonl", rows)
    return folder


def test_the_report_has_the_section(tmp_path) -> None:
    run = with_tokens(make(tmp_path / "run", [row(**SAMPLER)] * 20))
    report = collect([run])
    section = report["sampler"]
    distance, tails = section.figures
    assert len(distance.panels) == 7 and len(tails.panels[0].marks) == 5
    assert [p.title for p in distance.panels][:2] == [
        "The sampler differs: proximal / sampler", "The policy moved: current / proximal",
    ]  # fmt: skip
    assert distance.panels[3].marks[-1].y[0] == 20.0  # percent
    assert distance == distance_figure(report.groups) and tails == quantile_figure(report.groups)
    assert "agree least on '</s>' (place 7 of completion 3" in said(run)


def test_hostile_token_texts_stay_text(tmp_path) -> None:
    from trustclip.report.page import render

    run = make(tmp_path / "run", [row(**SAMPLER)] * 20)
    append_jsonl(
        run / "gates.jsonl",
        [{"step": 1, "generated": [0], "index": [3], "gated": [0.0],
          "worst": [token("<img src=x onerror=alert(1)>\x1b[31m", -1.0, -9.0)]}],
    )  # fmt: skip
    assert "\x1b" not in said(run)
    assert "<img src=x" not in render(collect([run]), "t")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_section_is_drawn_and_fits_a_phone(tmp_path, scheme) -> None:
    run = with_tokens(make(tmp_path / "run", [row(**SAMPLER)] * 20))
    page = build([run], tmp_path / "out")[0]
    with opened(page, color_scheme=scheme, viewport={"width": 390, "height": 800}) as tab:
        charts = tab.locator("#sampler .chart")
        assert charts.count() == 8
        tab.evaluate("document.querySelectorAll('section:not(#sampler)').forEach(s => s.remove())")
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
