"""The page that follows a growing run: written again, and kept where the run cannot be read."""

from synthetic_runs import Spec, make_run

from trustclip.report import live
from trustclip.support.jsonl import append_jsonl


def test_the_page_follows_its_run_and_outlives_damage(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", Spec({"name": "clip"}, steps=8, every=4), until=6)
    files, page = sorted(run.rglob("*")), tmp_path / "page/index.html"
    ready, seen = [], []

    def pause(seconds):
        seen.append(page.read_text())
        if len(seen) == 1:
            notice = {"stage": "notice", "step": 6, "notice": "gate_closed", "text": "half is cut"}
            append_jsonl(run / "metrics.jsonl", [notice])
        elif len(seen) == 2:
            (run / "summary.json").write_text("{")
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(live.time, "sleep", pause)
    live.follow([run], page.parent, ready.append)
    assert ready == [page] and 'http-equiv="refresh"' in seen[0]
    assert ["half is cut" in text for text in seen] == [False, True, True]
    (run / "summary.json").unlink()
    assert sorted(run.rglob("*")) == files
