"""Turns with an environment: what the policy did not write is in no gradient, gate or number."""

import numpy as np
import pytest
import torch
from test_examples import loaded
from trl_runs import build, needs

from trustclip.logs.recognise import token_rows
from trustclip.support.jsonl import read_jsonl

pytestmark = needs("trl>=1.15")


@pytest.fixture(scope="module")
def example():
    return loaded("multi_turn")


@pytest.fixture(scope="module")
def trained(example, tmp_path_factory):
    folder = tmp_path_factory.mktemp("turns")
    return folder, example.main(str(folder), updates=15)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_each_turn_has_its_own_ratio_and_gate(example, tmp_path, monkeypatch):
    method = {"name": "clip", "level": "turn", "epsilon": 0.05}
    config = example.ConstrainedGRPOConfig

    def chosen(out, **settings):
        return config(out, **{**settings, "method": method})

    monkeypatch.setattr(example, "ConstrainedGRPOConfig", chosen)
    example.main(str(tmp_path), updates=6)
    cut = moved = 0
    for row in token_rows(tmp_path / "run" / "tokens"):
        mask, x = np.asarray(row.mask), np.asarray(row.logp) - np.asarray(row.logp_old)
        edges = np.flatnonzero(np.diff(mask.astype(int), prepend=0, append=0)).reshape(-1, 2)
        want = np.zeros(len(mask))
        for start, end in edges:
            ratio, a = np.exp(x[start:end].mean()), row.advantage[start]
            kept = 0.95 <= ratio <= 1.05 or (ratio - 1) * a <= 0
            cut, moved = cut + (not kept), moved + (kept and ratio != 1)
            want[start:end] = kept * ratio * a
        np.testing.assert_allclose(np.asarray(row.coefficient), want, rtol=1e-4, atol=1e-6)
    assert cut and moved


def test_a_completion_without_a_reply_has_no_turns(tmp_path):
    with pytest.raises(ValueError, match="no tools and no rollout_func reply to it"):
        build(tmp_path, method={"name": "clip", "level": "turn"})
