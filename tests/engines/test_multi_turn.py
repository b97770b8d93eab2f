"""Turns with an environment: what the policy did not write is in no gradient, gate or number."""

import numpy as np
import pytest
import torch
from test_examples import loaded

from trustclip.logs.recognise import token_rows
from trustclip.support.jsonl import read_jsonl


@pytest.fixture(scope="module")
def example():
    return loaded("multi_turn")


@pytest.fixture(scope="module")
def trained(example, tmp_path_factory):
    folder = tmp_path_factory.mktemp("turns")
    return folder, example.main(str(folder))


def test_it_learns_and_the_gate_closes(trained):
    _, trainer = trained
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    assert sum(rewards[-2:]) / 2 > sum(rewards[:2]) / 2 + 0.1
    assert max(row.get("trustclip/gated", 0) for row in trainer.state.log_history) > 0


def test_tokens_of_the_tool_are_masked_in_gate_and_gradient(trained):
    folder, trainer = trained
    decode = trainer.processing_class.decode
    rows = list(token_rows(folder / "run" / "tokens"))
    assert len(rows) > 8
    for row in rows:
        outside = ~np.asarray(row.mask)
        text = decode(np.asarray(row.token_id)[outside].tolist())
        assert text.startswith("[") and text.endswith(" letters]"), text
        assert not np.asarray(row.coefficient)[outside].any()
    assert any(not np.asarray(row.kept)[np.asarray(row.mask)].all() for row in rows)


def test_metrics_count_the_turns_of_the_policy_alone(trained, example):
    folder, trainer = trained
    lengths = [
        row["completions/mean_length"] for row in trainer.state.log_history if "reward" in row
    ]
    assert max(lengths) <= 2 * example.TURN
    gates = read_jsonl(folder / "run" / "gates.jsonl")
    for row in gates:
        for share in row["gated"]:  # of at most 12 tokens of the policy, not of the tool's 11 too
            assert any(abs(share * n - round(share * n)) < 1e-6 for n in range(1, 13))
    samples = read_jsonl(folder / "run" / "samples.jsonl")
    assert all(" letters]" in row["response"] for row in samples)


def test_what_stands_at_the_tools_tokens_changes_nothing(example, tmp_path):
    """Another log-probability there, which no token was drawn with."""

    def play(prompts, trainer):
        played = example.play(prompts, trainer)
        for logps, mask in zip(played["logprobs"], played["env_mask"], strict=True):
            logps[:] = [logp if own else -7.0 for logp, own in zip(logps, mask, strict=True)]
        return played

    weights, rows = [], []
    for name, rollout in (("a", example.play), ("b", play)):
        trainer = example.main(str(tmp_path / name), updates=3, rollout=rollout)
        weights.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
        rows.append([r.get("trustclip/sampler/abs") for r in trainer.state.log_history])
    assert torch.equal(*weights) and rows[0] == rows[1] and any(rows[0])
