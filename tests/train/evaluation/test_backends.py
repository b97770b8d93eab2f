"""Backends other than transformers: a server of this test's own, and a stand-in for vLLM."""

import json
import threading
from http.server import BaseHTTPRequestHandler

import pytest
from many_clients import Server as ManyClients
from patience import NEVER

from trustclip.engines.trl.sampling.decoding import Decoder
from trustclip.support import http
from trustclip.train.evaluation.backends.local import Completion, Local, Sampling
from trustclip.train.evaluation.backends.served import Served
from trustclip.train.tiny import tiny_model

SAMPLING = Sampling(temperature=0.3, top_p=0.95, max_tokens=100)
PROMPTS = [[{"role": "user", "content": name}] for name in ("one", "zwei ½", "three")]


def chat(content, tokens=7, reason="stop"):
    choice = {"index": 0, "message": {"content": content}, "finish_reason": reason}
    return 200, {"choices": [choice], "usage": {"completion_tokens": tokens}}


class Server:
    """Chat server: ``answer(question)`` says status and reply; what came in is kept."""

    def __init__(self, answer):
        self.questions, self.headers, self.paths = [], [], []
        self.running = self.most = 0
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler):  # pyright: ignore[reportSelfClsParameterName]
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                question = json.loads(body)
                with lock:
                    self.questions.append(question)
                    self.headers.append(dict(handler.headers))
                    self.paths.append(handler.path)
                    self.running += 1
                    self.most = max(self.most, self.running)
                status, reply, *location = answer(question)
                with lock:
                    self.running -= 1
                if status is None:
                    handler.connection.close()
                    return
                data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                handler.send_response(status)
                handler.send_header("Content-Length", str(len(data)))
                for place in location:
                    handler.send_header("Location", place)
                handler.end_headers()
                handler.wfile.write(data)

            def log_message(handler, *args):  # pyright: ignore[reportSelfClsParameterName, reportIncompatibleMethodOverride]
                pass

        self._http = ManyClients(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(http, "PAUSES", (0.0, 0.0))
    servers = []

    def start(answer):
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_served_asks_once_per_sample_and_keeps_the_order(serve):
    together = threading.Barrier(2, timeout=NEVER)

    def answer(question):
        together.wait()
        return chat(f"{question['messages'][0]['content']} {question['seed']}")

    server = serve(answer)
    backend = Served(server.url + "/", "m", SAMPLING, concurrency=2)
    found = backend.generate(PROMPTS, 2, seed=5)
    texts = [[completion.text for completion in group] for group in found]
    names = [prompt[0]["content"] for prompt in PROMPTS]
    assert all(
        text.startswith(name) for name, group in zip(names, texts, strict=True) for text in group
    )
    assert server.most == 2
    assert set(server.paths) == {"/v1/chat/completions"}
    assert not any("Authorization" in headers for headers in server.headers)
    seeds = [question.pop("seed") for question in server.questions]
    assert len(set(seeds)) == 6 and all(0 <= seed < 2**32 for seed in seeds)
    asked = {"model": "m", "temperature": 0.3, "top_p": 0.95, "max_tokens": 100, "n": 1}
    assert all({k: v for k, v in q.items() if k != "messages"} == asked for q in server.questions)
    assert backend.generate(PROMPTS, 2, seed=5) == found
    assert backend.generate(PROMPTS, 2, seed=6) != found
    Served(server.url, "m", SAMPLING, 2, thinking=False).generate(PROMPTS, 2, seed=5)
    told = [question.get("chat_template_kwargs") for question in server.questions]
    assert told == [None] * 18 + [{"enable_thinking": False}] * 6


def test_served_tells_truncation_and_length_and_sends_the_key(serve, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    replies = {"one": chat("a", 3), "zwei ½": chat(None, 100, "length"), "three": chat("c", 1)}
    server = serve(lambda question: replies[question["messages"][0]["content"]])
    found = Served(server.url, "m", SAMPLING, concurrency=3).generate(PROMPTS, 1, seed=0)
    assert found == [
        [Completion("a", 3, truncated=False)],
        [Completion("", 100, truncated=True)],
        [Completion("c", 1, truncated=False)],
    ]
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer sesame"}


def test_served_tries_again_what_may_pass(serve):
    troubles = iter([(429, {"error": "busy"}), (None, b"")])
    server = serve(lambda question: next(troubles, chat("late")))
    found = Served(server.url, "m", SAMPLING, concurrency=1).generate(PROMPTS[:1], 1, seed=0)
    assert found[0][0].text == "late" and len(server.questions) == 3
    assert len({question["seed"] for question in server.questions}) == 1


@pytest.mark.parametrize(
    "status, reply, attempts, said",
    [
        (400, b"max_tokens is too large", 1, "returned 400: max_tokens is too large"),
        (503, b"loading", 3, "returned 503: loading"),
        (200, b"<html>hello", 1, "returned no chat completion: <html>hello"),
        (200, {"choices": []}, 1, r'returned no chat completion: \{"choices": \[\]\}'),
    ],
)
def test_served_names_what_went_wrong(serve, status, reply, attempts, said):
    server = serve(lambda question: (status, reply))
    backend = Served(server.url, "m", SAMPLING, concurrency=1)
    with pytest.raises(ValueError, match=f"{server.url}/chat/completions {said}"):
        backend.generate(PROMPTS[:1], 1, seed=0)
    assert len(server.questions) == attempts


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_served_follows_nobody_elsewhere(serve, monkeypatch, status):
    """Neither the key nor the question, whose text a redirection would drop."""
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    other = serve(lambda question: chat("4"))
    server = serve(lambda question: (status, b"", f"{other.url}/chat/completions"))
    with pytest.raises(ValueError, match=f"sends its clients elsewhere, to {other.url}"):
        Served(server.url, "m", SAMPLING, concurrency=1).generate(PROMPTS[:1], 1, seed=0)
    assert len(server.questions) == 1 and not other.paths


def test_served_without_a_server(serve):
    server = serve(lambda question: chat("x"))
    server.close()
    with pytest.raises(ValueError, match="cannot be reached"):
        Served(server.url, "m", SAMPLING, concurrency=1).generate(PROMPTS[:1], 1, seed=0)


def tokens_seen(monkeypatch, temperature=1.0, **own):
    """Completions of the tiny model with settings of its own, and how many batches were decoded."""
    model, tokenizer = tiny_model(layers=1, hidden=64)
    for name, value in own.items():
        setattr(model.generation_config, name, value)
    decoded = []
    decode = Decoder.decode
    spied = lambda *args, **kw: decoded.append(1) or decode(*args, **kw)  # noqa: E731
    monkeypatch.setattr(Decoder, "decode", spied)
    backend = Local(model, tokenizer, Sampling(temperature, 1.0, max_tokens=6), batch_size=8)
    done = [c for row in backend.generate(PROMPTS, n=4, seed=0) for c in row]
    return done, len(decoded)


def test_local_decodes_fast_what_samples_plainly(monkeypatch):
    done, decoded = tokens_seen(monkeypatch)
    assert decoded == 2 and len({one.text for one in done}) > 6


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_local_honours_the_models_own_generation_config(monkeypatch, temperature):
    a, b = tiny_model(layers=1, hidden=64)[1].encode("ab", add_special_tokens=False)
    end = tiny_model(layers=1, hidden=64)[0].generation_config.eos_token_id
    others = [token for token in range(265) if token not in (a, b, end)]
    done, decoded = tokens_seen(monkeypatch, temperature, suppress_tokens=others)
    assert {*"".join(one.text for one in done)} <= {"a", "b"} and not decoded
    assert all(one.tokens == len(one.text) + (not one.truncated) for one in done)
