"""verl's own loggers write, our reader reads."""

import json
from pathlib import Path

import pytest

tracking = pytest.importorskip("verl.utils.tracking", reason="verl is not installed here")

from trustclip.logs.recognise import read_log  # noqa: E402

RECORDED = Path(__file__).parents[2] / "data" / "logs" / "verl" / "metrics.jsonl"


@pytest.mark.parametrize("backend", ["console", "file", "tensorboard"])
def test_what_verl_tracks_is_read(
    backend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    tracker = tracking.Tracking("arithmetic", "stock", default_backend=[backend])
    for row in recorded:
        tracker.log(data=row["data"], step=row["step"])
    tracker.finish()
    if backend == "console":
        (tmp_path / "console.log").write_text(capsys.readouterr().out)
    log, expected = read_log(tmp_path), read_log(RECORDED)
    assert log.trainer == "verl" and len(log.rows) == len(recorded)
    for name in (
        "step",
        "trustclip/gated",
        "trustclip/k1",
        "entropy",
        "reward",
        "trustclip/sampler/k1",
    ):
        wanted = [row[name] for row in expected.rows]
        assert [row[name] for row in log.rows] == pytest.approx(wanted, rel=1e-6, abs=1e-12)
