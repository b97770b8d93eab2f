"""Samples from a server: a tiny model behind HTTP, which takes new weights as vLLM's does."""

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from many_clients import Server
from safetensors.torch import load_file
from trl_runs import constrained, fresh_model

from trustclip.engines.served import ServedSampler, complaints
from trustclip.engines.trl import ConstrainedGRPOConfig
from trustclip.engines.trl.sampling.server import merged
from trustclip.support import http
from trustclip.train.configs import lora_config
from trustclip.train.preflight.sampler import server_pairs
from trustclip.train.problems.prompts import messages, prompt_style


class Tiny:
    """A server of the tiny model, in the protocol of vLLM in development mode."""

    def __init__(self) -> None:
        self.model, self.tokenizer = fresh_model()
        self.asked: list[str] = []
        self.missing: set[str] = set()
        self._one_at_a_time = threading.Lock()

    def answer(self, path: str, question: dict[str, Any]) -> Any:
        with self._one_at_a_time:
            self.asked.append(path)
            if path in self.missing:
                return None
            return {
                "/v1/models": lambda: {"data": [{"id": "tiny"}]},
                "/detokenize": lambda: {"prompt": self.tokenizer.decode(question["tokens"])},
                "/server_info?config_format=json": lambda: {"vllm_config": {}},
                "/collective_rpc": lambda: self._load(**question),
                "/reset_prefix_cache": lambda: {},
                "/v1/completions": lambda: self._complete(**question),
            }[path]()

    def _load(self, method: str, kwargs: dict[str, str]) -> Any:
        assert method == "reload_weights"
        found = load_file(Path(kwargs["weights_path"]) / "model.safetensors")
        left_out, unknown = self.model.load_state_dict(found, strict=False)
        assert not unknown and set(left_out) <= {"lm_head.weight"}
        return {"results": [None]}

    @torch.no_grad()
    def _complete(self, prompt: list[int], max_tokens: int, seed: int, **rest: Any) -> Any:
        random = torch.Generator().manual_seed(seed)
        ids, logps, ends = [], [], rest["stop_token_ids"]
        while len(ids) < max_tokens and not (ids and ids[-1] in ends):
            given = torch.tensor([[*prompt, *ids]])
            logp = (self.model(given).logits[0, -1] / rest.get("temperature", 1.0)).log_softmax(-1)
            token = int(torch.multinomial(logp.exp(), 1, generator=random))
            ids.append(token)
            logps.append(float(logp[token]))
        why = "stop" if ids[-1] in ends else "length"
        given = {"token_ids": ids, "logprobs": {"token_logprobs": logps}, "finish_reason": why}
        return {"choices": [given]}


@pytest.fixture
def tiny(monkeypatch):
    served = Tiny()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            reply = served.answer(self.path, json.loads(body or b"{}"))
            self.send_response(404 if reply is None else 200)
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


@pytest.mark.parametrize("lora", [False, True])
def test_the_server_has_the_policys_weights_in_every_generation(tiny, tmp_path, lora):
    served, url = tiny
    run = constrained(tmp_path, "atr", server="reload", server_url=url, lora=lora)
    fresh = run.column("trustclip/sampler/abs/lag_0")
    assert len(fresh) == 2 and max(fresh) < 1e-5
    assert max(run.column("trustclip/sampler/current/abs")) > 1e-3  # so the weights have moved
    assert served.asked.count("/collective_rpc") == served.asked.count("/reset_prefix_cache") == 2
    assert not [*tmp_path.rglob("weights-*")]


def test_a_server_that_keeps_its_weights_is_behind_and_tis_knows_by_how_much(tiny, tmp_path):
    served, url = tiny
    run = constrained(tmp_path, "tis", server="fixed", server_url=url)
    assert "/collective_rpc" not in served.asked
    behind = [
        run.column(f"trustclip/sampler/abs/lag_{lag}") for lag in ("0", "1", "2", "3_4", "5_8")
    ]
    assert [*map(len, behind)] == [1, 1, 1, 2, 1]
    assert behind[0][0] < 1e-5 < 1e-3 < behind[3][0]


def test_adapters_are_merged_into_copies_and_the_model_stays_as_it_is():
    from peft import get_peft_model

    model: Any = get_peft_model(fresh_model()[0], lora_config(4))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = merged(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    whole = dict(model.merge_and_unload().named_parameters())
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) for name in whole)


@pytest.mark.parametrize(
    ("lacks", "weights", "plain", "says"),
    [
        ("/detokenize", "fixed", True, "has no /detokenize to ask"),
        ("/server_info?config_format=json", "reload", True, "only vLLM in development mode can"),
        ("/v1/models", "fixed", True, "returned 404"),
        ("", "fixed", False, "set temperature and top_p to 1"),
    ],
)
def test_what_a_server_lacks_is_one_sentence(tiny, lacks, weights, plain, says):
    served, url = tiny
    served.missing = {lacks}
    (told,) = complaints(ServedSampler(url, 2), weights, served.tokenizer, plain=plain)
    assert says in told and "\n" not in told


def test_a_server_without_log_probabilities_or_with_other_tokens(tiny, monkeypatch):
    served, url = tiny
    sampler = ServedSampler(url, 2)
    assert [*complaints(sampler, "reload", served.tokenizer, plain=True)] == []
    monkeypatch.setattr(served, "_complete", lambda **_: {"choices": [{"text": "4"}]})
    (told,) = complaints(sampler, "fixed", served.tokenizer, plain=True)
    assert "returned no token ids with log-probabilities" in told
    other = SimpleNamespace(encode=served.tokenizer.encode, decode=lambda ids: "!")
    (told,) = complaints(sampler, "fixed", other, plain=True)
    assert "must have the policy's tokens" in told


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


def test_a_token_that_ends_a_completion_must_be_among_those_returned(tiny, monkeypatch):
    served, url = tiny
    given = {"token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "stop"}
    monkeypatch.setattr(served, "_complete", lambda **_: {"choices": [given]})
    sampler = ServedSampler(url, 8, ends=[2])
    with pytest.raises(ValueError, match="left out the token that ended it, one of"):
        sampler.complete([[1]], [0])
    assert replace(sampler, ends=[5]).complete([[1]], [0]) == ([[5]], [[-1.0]])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"server": "fixd"}, "did you mean 'fixed'"),
        ({"server": "fixed"}, "'atr' does not correct for that"),
        ({"server": "reload", "repetition_penalty": 1.1}, "is not sent the repetition_penalty"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, says):
    common = {"num_iterations": 2, "use_cpu": True, "bf16": False, "per_device_train_batch_size": 8}
    with pytest.raises(ValueError, match=says):
        ConstrainedGRPOConfig("out", **common, **settings)
