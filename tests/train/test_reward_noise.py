"""Reward noise: the same rewards are turned round again, and the records keep the truth."""

from types import SimpleNamespace

import pytest
import torch

from trustclip.engines.trl.recording.records import Generation
from trustclip.logs.samples import sample_rows
from trustclip.train.checks import complaints
from trustclip.train.rewarding import Rewards, is_flipped
from trustclip.train.rl import RunRecorder
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.stages import RLStage


def test_a_share_of_samples_by_their_key() -> None:
    keys = [(str(i % 50), f"{i // 1000}/{i}") for i in range(20_000)]
    turned = [is_flipped(0.1, 0, *key) for key in keys]
    assert sum(turned) / len(turned) == pytest.approx(0.1, abs=0.006)
    assert turned == [is_flipped(0.1, 0, *key) for key in keys]
    assert turned != [is_flipped(0.1, 1, *key) for key in keys]
    more = [is_flipped(0.3, 0, *key) for key in keys]
    assert all(m for t, m in zip(turned, more, strict=True) if t), "a larger share has the smaller"
    assert not any(is_flipped(0.0, 0, *key) for key in keys)


@pytest.mark.parametrize("noise", [0.0, 0.25])
def test_the_policy_is_told_the_opposite_and_the_file_the_truth(tmp_path, noise: float) -> None:
    run = RunDirectory(tmp_path / "run", "rl", RLStage(dataset="arithmetic"))
    told, logged = [], {}
    rewards = Rewards(RLStage(dataset="arithmetic", reward_noise=noise, prompt_style="boxed"), 3)
    (reward,) = rewards.functions
    recorder = RunRecorder(run, rewards)
    completions = [[{"content": f"\\boxed{{{i % 2}}}"}] for i in range(64)]
    identities = [str(i // 8) for i in range(64)]
    try:
        for step in range(4):
            given = reward(
                prompts=["?"] * 64,
                completions=completions,
                completion_ids=[[1]] * 64,
                id=identities,
                answer=["1"] * 64,
                trainer_state=SimpleNamespace(global_step=step),
                log_metric=lambda name, value: logged.setdefault(name, []).append(value),
            )
            told += given
            recorder.generation(
                Generation(
                    step=step,
                    index=range(64),
                    rows=[{"id": identity, "answer": "1"} for identity in identities],
                    completions=completions,
                    tokens=[[1]] * 64,
                    rewards={"correct": given},
                    total=given,
                    advantages=torch.zeros(64),
                )
            )
    finally:
        rewards.close()
    rows = list(sample_rows(run.path))
    truth = [float(i % 2) for i in range(64)] * 4
    assert [row["reward"] for row in rows] == truth
    turned = [t != true for t, true in zip(told, truth, strict=True)]
    if noise:
        assert [row["turned"] for row in rows] == turned
        assert sum(logged["reward_noise"]) / 4 == sum(turned) / 256
        assert sum(turned) / 256 == pytest.approx(noise, abs=0.08)
    else:
        assert told == truth and "turned" not in rows[0] and not logged


def test_two_ranks_turn_round_what_one_process_would(monkeypatch) -> None:
    rewards = Rewards(RLStage(dataset="arithmetic", reward_noise=0.25, prompt_style="boxed"), 3)

    def told(rank: int, world: int) -> list[float]:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        own = 64 // world
        given = {"completions": [[{"content": "\\boxed{1}"}]] * own, "answer": ["1"] * own}
        return rewards.functions[0](prompts=["?"] * own, id=["p"] * own, **given)

    assert told(0, 1) == told(0, 2) + told(1, 2)
    rewards.close()


def test_noise_on_a_reward_that_is_not_used_is_refused() -> None:
    stage = RLStage(dataset="arithmetic", reward="format", reward_noise=0.1)
    assert any("reward_noise" in text for _, text in complaints(stage))
    with pytest.raises(ValueError, match=r"less than or equal to 0\.5"):
        RLStage(dataset="arithmetic", reward_noise=0.6)
