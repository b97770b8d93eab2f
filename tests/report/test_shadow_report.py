"""Shadows in the report: the numbers of the two tables, and the picture."""

import math
from pathlib import Path

import pytest
from golden_runs import rows, write

from trustclip.findings.shadows import matrix, mean_metrics
from trustclip.report.collect import collect
from trustclip.report.draw.figures import matrices
from trustclip.report.page import render

SEEN = {"shadow/kl2/gated": 0.2, "shadow/kl2/both": 0.1, "shadow/kl2/both/<b>": 0.0,
        "shadow/<b>/gated": 0.0, "shadow/<b>/both": 0.0}  # fmt: skip
#: Two updates of 100 tokens: of 10 and 30 cut, kl2 cuts 20 and 20 (10 of each together), and
#: `<b>` none. The pair has no other order than that of the run.
ROWS = [
    *rows(1, gated=0.1, **SEEN, **{"shadow/kl2/cosine": 0.9}),
    *rows(1, gated=0.3, **SEEN, **{"shadow/kl2/cosine": 0.7}),
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "run", ROWS)


def test_shares_of_a_run_are_those_of_its_sums():
    logged = [{f"trustclip/{k}": v for k, v in given.items()} for given in ROWS]
    seen = matrix("atr", mean_metrics(logged))
    assert seen is not None
    assert list(seen.names) == ["atr", "kl2", "<b>"]
    assert seen.of_acting(1) == (pytest.approx(20 / 40), pytest.approx(20 / 40))
    assert seen.jaccard[0][1] == seen.jaccard[1][0] == pytest.approx(20 / 60)
    assert seen.cosine[0][1] == pytest.approx(0.8)
    assert seen.jaccard[1][1] == 1 and math.isnan(seen.jaccard[2][2])
    assert matrix("atr", {"gated": 0.1}) is None


def test_the_page_has_the_table_escaped(run):
    report = collect([run])
    (measures,) = report["shadows"].tables
    assert [cell.text for cell in measures.rows[1].cells] == [
        "20.00", "50.0", "50.0", "33.3", "0.800"
    ]  # fmt: skip
    page = render(report, "Report")
    assert "2\N{NO-BREAK SPACE}kl2" in page and "&lt;b&gt;" in page
    assert '<a href="#shadows">Shadows</a>' in page


def test_the_picture_has_every_name_and_number():
    metrics = {"gated": 0.2, "shadow/kl2/gated": 0.2, "shadow/kl2/both": 0.1}
    seen = matrix("atr", {**metrics, "shadow/kl2/cosine": 0.75})
    assert seen is not None
    drawn = matrices(seen.names, seen.panels)
    assert all(f">{text}<" in drawn for text in ("33%", "100%", "0.75", "1.00"))
    assert "atr  1" in drawn and "kl2  2" in drawn
