"""The examples run, learn, and withstand what a model may write."""

import doctest
import json
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from programs import program

import trustclip as tc
from trustclip.train.runs.directory import RunDirectory

EXAMPLES = Path(__file__).parents[2] / "examples"


def loaded(name: str):
    return program(EXAMPLES / f"{name}.py")


def test_the_plain_loop_learns(capsys):
    rewards = loaded("grpo_loop").train("atr", generations=14)
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2
    assert any(float(x) > 0 for x in re.findall(r"gated ([\d.]+)%", capsys.readouterr().out))


def test_an_own_method_bounds_late_tokens_more():
    method = loaded("own_method").Narrowing()
    old = torch.full((1, 3), -2.0)
    batch = tc.TokenBatch(old + 0.2, old, torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool))
    assert method.surrogate(batch).kept.tolist() == [[True, True, False]]


def test_shaped_rewards_match_the_notebook_without_its_traps():
    rewards = loaded("notebook_rewards")
    assert doctest.testmod(rewards).failed == 0

    def shaped(text: str, gold: str) -> tuple[float, ...]:
        forms = (rewards.format_exact, rewards.format_approximate)
        checks = (rewards.answer_graded, rewards.number_graded)
        return (*(f([text])[0] for f in forms), *(c([text], answer=[gold])[0] for c in checks))

    worked = "work<end_working_out>\n<SOLUTION>{}</SOLUTION>"
    assert shaped(worked.format("34"), "34") == (3.0, 1.5, 5.0, 3.5)
    assert shaped(worked.format("34") + "<|im_end|>", "34") == (3.0, 1.5, 5.0, 3.5)
    assert shaped(worked.format("x_1 = 34"), "34") == (3.0, 1.5, 5.0, 3.5)
    assert shaped(worked.format("−34"), "34") == (3.0, 1.5, -2.5, -1.5)
    assert shaped(worked.format("37"), "34") == (3.0, 1.5, 2.0, -1.5)
    assert shaped(worked.format("40"), "34") == (3.0, 1.5, 1.5, -1.5)
    assert shaped(worked.format("banana"), "34") == (3.0, 1.5, -4.5, 0.0)
    assert shaped(worked.format("5"), "0") == (3.0, 1.5, -2.5, -1.5)
    assert shaped(worked.format("12") + "<SOLUTION>34</SOLUTION>", "34") == (0.0, -1.5, -2.0, -2.5)
    assert shaped(worked.format("34") + "\nmore", "34") == (0.0, 1.5, 5.0, 3.5)
    assert shaped("34", "34") == (0.0, -3.0, -2.0, -2.5)


@pytest.mark.slow
def test_rewards():
    rewards = loaded("rewards")
    assert doctest.testmod(rewards).failed == 0
    hostile = [
        "```python\nimport os; os._exit(0)\n```",
        "```python\nraise SystemExit\n```",
        "```python\nx = bytearray(1 << 33)\n```",
        "```python\nwhile True: pass\n```",
        "```python\nimport sys; sys.exit(print('passed'))\n```",
    ]
    assert rewards.passes_tests(hostile, tests=["assert False"] * len(hostile)) == [0.0] * 5


def test_a_judge_scores_and_its_nonsense_does_not_pay():
    replies = iter(["8", "Score: 12", "no idea"])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps({"choices": [{"message": {"content": next(replies)}}]}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        judge = loaded("rewards").Judge(f"http://127.0.0.1:{server.server_port}/v1", "m")
        assert judge(prompts=["q"] * 3, completions=["a"] * 3) == [0.8, 1.0, 0.0]
    finally:
        server.shutdown()
        server.server_close()


def test_own_data_are_read_by_the_recipe_beside_them(tmp_path):
    from trustclip.train.data import recipe_problems
    from trustclip.train.files import load_recipe

    recipe = load_recipe(loaded("own_data").write(tmp_path / "mine"))
    data = recipe_problems(recipe, RunDirectory(tmp_path / "run", "run", recipe))
    assert (len(data.training), len(data.tests["test"])) == (512, 64)
    assert data.training[0].answer == data.training[0].problem.split()[-1][0]
    assert "SOLUTION" in (data.tuning[0].solution or "")


@pytest.mark.slow
def test_trl_minimal(tmp_path):
    from trl_runs import fresh_model

    folder = tmp_path / "model"
    for part in fresh_model():
        part.save_pretrained(folder)
    trainer = loaded("trl_minimal").main(
        str(folder), str(tmp_path / "out"), max_completion_length=8, num_generations=4,
        per_device_train_batch_size=4, use_cpu=True, bf16=False, report_to=[],
    )  # fmt: skip
    assert trainer.state.global_step == 20


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("stable_baselines3"), reason="Stable-Baselines3 is not installed")
def test_control_learns():
    assert loaded("sb3_control").main(10_000) > 60


def test_the_launch_of_verl_is_valid_shell():
    subprocess.run(["bash", "-n", EXAMPLES / "verl.sh"], check=True)


def test_the_taskset_of_verifiers_loads_and_scores_as_verifiers_does_it(monkeypatch):
    vf = pytest.importorskip("verifiers.v1", reason="verifiers is not installed")
    import asyncio

    from verifiers.v1.trace import AgentInfo, TraceTask  # pyright: ignore[reportMissingImports]
    from verifiers.v1.utils.loaders import (  # pyright: ignore[reportMissingImports]
        load_taskset,
        taskset_config_type,
    )

    monkeypatch.syspath_prepend(str(EXAMPLES / "verifiers_letter_counts"))
    name = "trustclip_letter_counts".replace("_", "-")
    kind = taskset_config_type(name)
    given = {"id": name, "problems": 3, "split": "test"}
    first, *rest = load_taskset(kind.model_validate(given))
    assert len(rest) == 2 and first.data.idx == 0 and "How many times" in first.data.prompt_text
    for said, reward in ((f"So it is {first.data.answer}.", 1.0), ("None.", 0.0)):
        own = TraceTask(type=type(first).__name__, data=first.data)
        trace = vf.Trace(task=own, agent=AgentInfo(config=vf.AgentConfig()), root_reply=said)
        asyncio.run(first.score(trace))
        assert trace.reward == reward
