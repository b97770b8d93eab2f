"""A server compared with a model: a tiny one behind HTTP."""

import json
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
import torch
from many_clients import Server
from trl_runs import fresh_model

from trustclip.engines.served import complete
from trustclip.support import http
from trustclip.train.preflight.sampler import server_pairs
from trustclip.train.problems.prompts import messages, prompt_style


class Tiny:
    """A server of the tiny model, in the protocol of vLLM in development mode."""

    def __init__(self) -> None:
        self.model, self.tokenizer = fresh_model()
        self._one_at_a_time = threading.Lock()

    def answer(self, path: str, question: dict[str, Any]) -> Any:
        with self._one_at_a_time:
            return {
                "/v1/models": lambda: {"data": [{"id": "tiny"}]},
                "/v1/completions": lambda: self._complete(**question),
            }[path]()

    @torch.no_grad()
    def _complete(self, prompt: list[int], max_tokens: int, seed: int, **rest: Any) -> Any:
        random = torch.Generator().manual_seed(seed)
        ids, logps = [], []
        while len(ids) < max_tokens:
            given = torch.tensor([[*prompt, *ids]])
            logp = (self.model(given).logits[0, -1] / rest.get("temperature", 1.0)).log_softmax(-1)
            token = int(torch.multinomial(logp.exp(), 1, generator=random))
            ids.append(token)
            logps.append(float(logp[token]))
        return {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": logps}}]}


@pytest.fixture
def tiny(monkeypatch):
    served = Tiny()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            reply = served.answer(self.path, json.loads(body or b"{}"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None: ...

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(http, "PAUSES", (0.1, 0.1, 0.1))
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield served, f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_a_server_without_log_probabilities_is_refused(tiny, monkeypatch):
    served, url = tiny
    monkeypatch.setattr(served, "_complete", lambda **_: {"choices": [{"text": "4"}]})
    with pytest.raises(ValueError, match="returned no token ids with log-probabilities"):
        complete(url, [[1]], [0], 2)


def test_a_server_is_compared_with_a_model_on_its_own_completions(tiny, tmp_path):
    served, url = tiny
    for part in (served.model, served.tokenizer):
        part.save_pretrained(tmp_path)
    prompts = [messages(f"{n}+1", "plain") for n in range(4)]
    pairs = server_pairs(url, str(tmp_path), prompt_style("plain"), prompts)
    assert len(pairs.sequences or ()) == 4 and (pairs.trainer - pairs.sampler).abs().max() < 1e-5
    with torch.no_grad():
        served.model.lm_head.weight += torch.randn_like(served.model.lm_head.weight) / 10
    pairs = server_pairs(url, str(tmp_path), prompt_style("plain"), prompts, "tiny")
    assert (pairs.trainer - pairs.sampler).abs().max() > 1e-3
