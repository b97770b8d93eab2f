"""Logs of the trainers of which we know no more than the names of their metrics."""

import json
import math
from pathlib import Path

import pytest

from trustclip.logs import names
from trustclip.logs.log import gather
from trustclip.logs.recognise import read_log
from trustclip.report.console import explain
from trustclip.support.jsonl import read_jsonl

#: Of each trainer, an update's metrics as it names them, and what they are under our names.
LOGGED = {
    "NeMo RL": (
        {"train/probs_ratio": 1.01, "train/gen_kl_error": 0.2, "train/token_mult_prob_error": 1.4,
         "train/approx_entropy": 0.7, "train/reward": 0.4},
        {"trustclip/ratio": 1.01, "trustclip/sampler/k3": 0.2, "trustclip/sampler/exp_abs": 1.4,
         "entropy": 0.7, "reward": 0.4},
    ),
    "SkyRL": (
        {"policy/ppo_clip_ratio": 0.01, "policy/policy_entropy": 0.5, "policy/policy_kl": 0.02,
         "policy/rollout_train_logprobs_abs_diff_mean": 0.02,
         "reward/avg_raw_reward": 0.3, "generate/avg_num_tokens": 300.0},
        {"trustclip/gated": 0.01, "entropy": 0.5, "kl": 0.02, "reward": 0.3,
         "trustclip/sampler/abs": 0.02,
         "completions/mean_length": 300.0},
    ),
    "slime": (
        {"train/pg_clipfrac": 0.02, "train/ppo_kl": 0.001, "train/entropy_loss": 0.6,
         "train/train_rollout_logprob_abs_diff": 0.02, "rollout/raw_reward": 0.5},
        {"trustclip/gated": 0.02, "trustclip/k1": 0.001, "entropy": 0.6,
         "trustclip/sampler/abs": 0.02, "reward": 0.5},
    ),
    "OpenRLHF": (
        {"train/ppo_clip_ratio": 0.03, "train/ppo_kl": 0.002, "train/vllm_kl": 0.004,
         "train/reward": 0.6},
        {"trustclip/gated": 0.03, "trustclip/k1": 0.002, "trustclip/sampler/k1": 0.004,
         "reward": 0.6},
    ),
    "AReaL": (
        {"ppo_actor/update/clip_ratio/avg": 0.1, "ppo_actor/update/approx_kl/avg": -0.01,
         "ppo_actor/update/behave_approx_kl/avg": -0.02, "ppo_actor/task_reward/avg": 0.2},
        {"trustclip/gated": 0.1, "trustclip/k1": 0.01, "trustclip/sampler/k1": 0.02,
         "reward": 0.2},
    ),
    "ROLL": (
        {"actor/clipfrac@sum": 0.05, "actor/policykl@sum": -0.003, "actor/ratio_mean@sum": 1.001,
         "critic/rewards/mean": 0.7, "actor/lr": 1e-6},
        {"trustclip/gated": 0.05, "trustclip/k1": 0.003, "trustclip/ratio": 1.001, "reward": 0.7,
         "learning_rate": 1e-6},
    ),
    "torchforge": (
        {"loss/clip/high_fraction": 0.02, "loss/clip/low_fraction": 0.03,
         "loss/kl_policy/mean": 0.01, "loss/ratio/mean": 0.999, "loss/entropy/mean": 0.4},
        {"trustclip/gated/positive_above": 0.02, "trustclip/gated/negative_below": 0.03,
         "trustclip/k1": 0.01, "trustclip/ratio": 0.999, "entropy": 0.4, "trustclip/gated": 0.05},
    ),
    "Tinker cookbook": (
        {"optim/kl_sample_train_v1": 0.01, "optim/entropy": 0.4, "optim/lr": 4e-5,
         "env/all/reward/total": 0.5, "env/all/by_group/frac_mixed": 0.7},
        {"trustclip/k1": 0.01, "entropy": 0.4, "learning_rate": 4e-5, "reward": 0.5,
         "frac_reward_zero_std": 0.3},
    ),
    "prime-rl": (
        {"mismatch_kl/all/mean": 0.002, "is_masked/mean": 0.05, "is_masked_high/mean": 0.02,
         "is_masked_low/mean": 0.03, "entropy/all/mean": 0.4, "optim/grad_norm": 0.2},
        {"trustclip/k3": 0.002, "trustclip/gated": 0.05, "trustclip/gated/positive_above": 0.02,
         "trustclip/gated/negative_below": 0.03, "entropy": 0.4, "grad_norm": 0.2},
    ),
}  # fmt: skip


def events(folder: Path, values: dict[str, float], updates: int = 4) -> Path:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    writer = tensorboard.SummaryWriter(str(folder))
    for step in range(1, updates + 1):
        for name, value in values.items():
            writer.add_scalar(name, value, step)
    writer.close()
    return folder


@pytest.mark.parametrize("trainer", names.VALUES)
def test_a_trainer_is_known_by_its_names_and_its_numbers_are_ours(trainer) -> None:
    given, ours = LOGGED[trainer]
    assert names.trainer_of(list(given)) == trainer
    rows, *_ = gather(Path("log"), [(1, given)])
    assert rows == [pytest.approx({"step": 1, **ours})]


def test_the_cookbooks_own_file_is_read() -> None:
    """Rows of tinker-cookbook 0.6.1: its logger, and its functions of the KL and of the groups."""
    folder = Path(__file__).parents[1] / "data/logs/tinker_cookbook"
    log = read_log(folder)
    assert (log.trainer, log.kind, log.two_policies) == ("Tinker cookbook", "metrics.jsonl", True)
    given = [row for row in read_jsonl(folder / "metrics.jsonl") if "step" in row]
    assert [row["step"] for row in log.rows] == [row["step"] for row in given] == [*range(8)]
    for row, theirs in zip(log.rows, given, strict=True):
        assert row["trustclip/k1"] == theirs["optim/kl_sample_train_v1"]
        alike = theirs["env/all/by_group/frac_all_good"] + theirs["env/all/by_group/frac_all_bad"]
        assert row["frac_reward_zero_std"] == pytest.approx(alike)
        assert row["reward"] == theirs["env/all/reward/total"]
    text = " ".join(explain(folder))
    assert "the share of clipped tokens (the cookbook logs none)" in text
    assert "The trainer differed from the sampler by" in text
    assert "whether the sampler differs" not in text


def test_prime_rls_rows_of_one_step_are_joined(tmp_path: Path) -> None:
    """As its trainer writes them: speed, optimizer, tokens, times, each with step and time."""
    given = LOGGED["prime-rl"][0]
    optimizer = {"optim/grad_norm": given["optim/grad_norm"], "optim/lr": 1e-6}
    tokens = {name: value for name, value in given.items() if "optim" not in name}
    parts = {"perf/mfu": 30.0}, optimizer, tokens | {"loss/mean": math.nan}, {"time/step": 9.0}
    rows = [{"step": step, "time": 7.0, **part} for step in range(3) for part in parts]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read_log(tmp_path)
    assert (log.trainer, [row["step"] for row in log.rows]) == ("prime-rl", [0, 1, 2])
    assert log.rows[1].items() >= LOGGED["prime-rl"][1].items()


def test_every_name_of_a_table_is_one_of_ours_or_of_trl() -> None:
    ours = {*names.TRL.values(), *names.VERL.values(), *names.ANSWERS}
    for table in names.VALUES.values():
        assert set(table.values()) <= ours


@pytest.mark.parametrize("trainer", names.VALUES)
def test_explain_reads_it_and_never_says_that_all_is_usual_without_all_three(
    trainer, tmp_path
) -> None:
    lines = explain(events(tmp_path, LOGGED[trainer][0]))
    text = " ".join(lines)
    assert lines[0].split(": ")[1].startswith(trainer)
    whole = trainer in ("slime", "OpenRLHF", "AReaL", "torchforge", "prime-rl")
    assert ("This log shows nothing unusual." in text) == whole, text
    if trainer == "NeMo RL":
        assert "(k3), and the limit is 0.005" in text and "NeMo RL's own tests" in text
        assert "the share of clipped tokens (NeMo RL logged none)" in text
    if trainer == "ROLL":
        assert "it lacks a distance from the sampler" in text
    if trainer == "slime":
        assert "0.005 to 0.05 with bfloat16" in text


def test_a_loss_of_0_is_explained_where_the_gradient_is_not_0(tmp_path) -> None:
    given = {"train/loss": 0.0, "train/grad_norm": 0.3, "train/reward": 0.5,
             "train/clip_ratio/region_mean": 0.0}  # fmt: skip
    assert "The loss is 0 as it must be" in " ".join(explain(events(tmp_path / "a", given)))
    for name, value in (("train/loss", 0.2), ("train/grad_norm", 0.0)):
        other = events(tmp_path / name, {**given, name: value})
        assert "as it must be" not in " ".join(explain(other))


@pytest.mark.parametrize(("moved", "inert"), [(-0.2, False), (0.3, False), (-0.01, True)])
def test_no_clipped_token_beside_a_large_log_ratio_is_a_contradiction(
    moved, inert, tmp_path
) -> None:
    given = {"train/pg_clipfrac": 0.0, "train/ppo_kl": moved, "train/entropy_loss": 0.6}
    text = " ".join(explain(events(tmp_path, given)))
    assert ("The constraint was inert" in text) == inert
    assert (f"the mean log-ratio reached {moved:.2g} nats" in text) != inert
    assert ("raise the number of passes" in text) == inert
