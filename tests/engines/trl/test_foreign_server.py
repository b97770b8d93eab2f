"""`eval --backend openai` against a server that is not ours, on a model that the tests make."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

import pytest
import trl_runs
from patience import NEVER
from ports import free_port
from transformers.utils.import_utils import is_serve_available

from trustclip.cli.main import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_serve_available(), reason="fastapi, uvicorn or openai is missing"),
]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A tiny model's folder, and the address of `transformers serve` on it."""
    folder, port = tmp_path / "model", free_port()
    for part in trl_runs.fresh_model():
        part.save_pretrained(folder)
    command = "from transformers.cli.transformers import main; main()"
    options = ["serve", str(folder), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", command, *options],
            stdout=log,
            stderr=log,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        while process.poll() is None:  # it is up, or it has ended
            try:
                urllib.request.urlopen(f"{url}/health", timeout=NEVER).read()
                break
            except URLError:
                time.sleep(0.5)
        assert process.poll() is None, (tmp_path / "server.log").read_text()
        yield folder, f"{url}/v1"
    finally:
        process.terminate()
        process.wait()


def test_it_is_evaluated_as_any_model_and_continues(served, tmp_path):
    model, url = served
    command = ["eval", "--model", str(model), "--tasks", "arithmetic", "--limit", "3", "--k", "2"]
    command += ["--backend", "openai", "--base-url", url, "--max-tokens", "8", "--batch-size", "2"]
    command += ["--output-dir", str(tmp_path / "out")]
    assert main(command) == 0
    samples = tmp_path / "out" / "samples.jsonl"
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(rows) == 6 and len({(row["id"], row["k"]) for row in rows}) == 6
    assert all(row["response"] and 0 < row["tokens"] <= 8 for row in rows)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary
    samples.write_text("".join(samples.read_text().splitlines(keepends=True)[:2]))
    assert main(command) == 0  # what is missing is asked for again
    assert len(samples.read_text().splitlines()) == 6
