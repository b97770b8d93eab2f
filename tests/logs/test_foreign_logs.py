"""Logs of other trainers, written by their own programs: TRL here, verl and prime-rl as recorded.

``data/logs/verl`` is what verl 0.9.1 printed and logged in ten steps of its own GRPO on a tiny
model, ``data/logs/prime_rl`` what prime-rl's exporter wrote of a tiny model and perturbed copies of
it, in two of its releases.
"""

import json
import math
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import trl_runs

from trustclip.cli.main import main
from trustclip.findings.run import of_run
from trustclip.logs.metrics import log_of
from trustclip.logs.recognise import read_log, token_rows
from trustclip.logs.run import Run
from trustclip.logs.tokens import TokenRow, write_tokens
from trustclip.report.console import explain
from trustclip.support.jsonl import read_jsonl

LOGS = Path(__file__).parents[1] / "data" / "logs"
VERL, PRIME = LOGS / "verl", LOGS / "prime_rl"
TRACKERS = [name for name in ("tensorboard", "wandb") if find_spec(name)]
UPDATES = 8


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of a stock `GRPOTrainer`: four updates per generation, and one."""
    folder = tmp_path_factory.mktemp("stock")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_DIR", str(folder))
        patch.setenv("WANDB_SILENT", "true")
        patch.setenv("TENSORBOARD_LOGGING_DIR", str(folder / "events"))
        common = dict(max_steps=UPDATES, save_strategy="steps", save_only_model=True)
        trl_runs.plain(
            folder / "acting", num_iterations=4, save_steps=4, report_to=TRACKERS or "none",
            **common,
        )  # fmt: skip
        if "wandb" in TRACKERS:
            import wandb  # pyright: ignore[reportMissingImports]

            wandb.finish()
        trl_runs.plain(folder / "inert", num_iterations=1, save_steps=8, **common)
    return folder


def said(path: Path) -> str:
    return "\n".join(explain(path))


@pytest.mark.slow
def test_a_stock_trl_run_is_read_from_its_last_checkpoint(stock: Path, tmp_path: Path) -> None:
    log = read_log(stock / "acting")
    state = json.loads((stock / "acting" / "checkpoint-8" / "trainer_state.json").read_text())
    shares = [r["clip_ratio/region_mean"] for r in state["log_history"]]
    assert [row["trustclip/gated"] for row in log.rows] == shares and len(shares) == UPDATES
    assert [row["step"] for row in log.rows] == [*range(1, UPDATES + 1)]
    assert any(shares) and log.finished and log.trainer == "TRL"
    assert log.schedule is not None and log.schedule.updates == 4
    text = said(stock / "acting")
    assert f"of {UPDATES} updates" in text and "4 updates per generation" in text
    assert "(2 of 8 logged updates came with new rewards)" in text
    assert "This log does not say: how far the policy moved" in text
    # Stopped within a generation; and with the `logging_steps` that TRL has by default.
    rows = state["log_history"]
    rows[4]["reward"] = math.nan
    cut = read_log(_bad(tmp_path, "a.json", json.dumps({**state, "log_history": rows[:6]})))
    assert cut.schedule is not None and cut.schedule.updates == 4
    sparse = _bad(tmp_path, "b.json", json.dumps({**state, "log_history": rows[3::4]}))
    assert "trainer_state.json, 2 logged updates" in said(sparse)


def test_a_state_of_our_trainer_without_rewards_is_read_by_our_names(tmp_path: Path) -> None:
    row = {"reward": math.nan, "reward_std": 0.2, "clip_ratio/region_mean": 0.1}
    row |= {"trustclip/gated": 0.25, "trustclip/k3": 0.01, "trustclip/off_policy": 0.5}
    state = {"log_history": [{"step": step, **row} for step in (1, 2)]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    text = said(tmp_path)
    assert "The constraint cut 25 % of tokens" in text and "The mean reward" not in text
    assert "The policy moved by 0.01 nats" in text and "how far the policy moved" not in text


def test_where_each_update_has_new_samples_no_move_is_asked_for(stock: Path) -> None:
    text = said(stock / "inert")
    assert "how far the policy moved" not in text and "This log does not say: " in text


def test_a_run_in_progress_is_unfinished(stock: Path) -> None:
    text = said(stock / "acting" / "checkpoint-4" / "trainer_state.json")
    assert text.startswith("checkpoint-4: TRL, trainer_state.json, 4 updates, unfinished.")


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_tracker_holds_the_same_run_and_its_settings(stock: Path, tracker: str) -> None:
    if tracker not in TRACKERS:
        pytest.skip(f"{tracker} is not installed")
    log = read_log(stock / {"tensorboard": "events", "wandb": "wandb"}[tracker])
    state = read_log(stock / "acting")
    assert [row["step"] for row in log.rows] == [row["step"] for row in state.rows]
    for name in ("trustclip/gated", "trustclip/gated/positive_above", "entropy", "grad_norm"):
        expected = [row[name] for row in state.rows]
        np.testing.assert_allclose([row[name] for row in log.rows], expected, rtol=1e-6)
    assert (log.settings["num_iterations"], log.settings["epsilon"]) == (4, 0.2)
    assert log.schedule is not None and log.schedule.updates == 4
    assert "num_iterations / gradient_accumulation_steps = 1 x 4 / 1" in log.schedule.basis


def test_a_value_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    with pytest.importorskip("torch.utils.tensorboard").SummaryWriter(tmp_path) as writer:
        for tag, value in (("train/entropy", math.nan), ("train/reward", 0.5)):
            writer.add_scalar(tag, value, 1)
    assert read_log(tmp_path).rows == [{"step": 1, "reward": 0.5}]


@pytest.mark.skipif("wandb" not in TRACKERS, reason="wandb is not installed")
def test_a_torn_offline_run_of_wandb_is_read_up_to_the_tear(stock: Path, tmp_path: Path) -> None:
    (whole,) = stock.glob("wandb/offline-run-*/*.wandb")
    content = whole.read_bytes()
    torn = tmp_path / whole.name
    torn.write_bytes(content[: len(content) * 2 // 3])
    log = read_log(torn)
    assert 0 < len(log.rows) <= UPDATES and "ends within a record" in log.remarks[0]
    torn.write_bytes(content[:6] + b"\7" + content[7:])
    with pytest.raises(ValueError, match=r"version 7 of wandb's format; known: 0"):
        read_log(torn)


def test_verl_prints_what_it_logs(tmp_path: Path) -> None:
    console, lines = read_log(VERL / "console.log"), read_log(VERL / "metrics.jsonl")
    logged = [row["data"] for row in read_jsonl(VERL / "metrics.jsonl")]
    for name, theirs in (
        ("trustclip/k1", "actor/ppo_kl"),
        ("entropy", "actor/entropy"),
        ("reward", "critic/rewards/mean"),
        ("completions/clipped_ratio", "response_length/clip_ratio"),
        ("trustclip/sampler/k3", "rollout_corr/k3_kl"),
    ):
        for log in (console, lines):
            np.testing.assert_allclose([r[name] for r in log.rows], [r[theirs] for r in logged])
    both = [r["actor/pg_clipfrac"] + r["actor/pg_clipfrac_lower"] for r in logged]
    np.testing.assert_allclose([r["trustclip/gated"] for r in console.rows], both)
    for log in (console, lines):
        assert log.schedule is None and "settings such as ppo_epochs" in log.unknown[-1]


@pytest.mark.parametrize(
    ("loss", "mini", "epochs", "moved", "said"),
    [
        ("vanilla", 2, 2, None, "There were 4 updates per generation (train_batch_size / ppo_mini"),
        ("vanilla", 4, 1, 0.0, "there was one update per generation (train_batch_size / ppo_mini"),
        ("vanilla", 4, 1, None, "With one update per generation (train_batch_size / ppo_mini"),
        ("sapo", 2, 2, 0.2, "verl's loss sapo logs a clipped share of 0 whatever it does."),
        (None, 0, 0, 0.01, "was inert, unless verl's loss was sapo, which logs a share of 0"),
        (None, 0, 0, 0.2, "contradicts itself, unless verl's loss was sapo, which logs a share"),
        (None, 0, 0, 0.0, "was inert: the share of clipped tokens was 0 in all 10 steps, and the"),
    ],
)
def test_verls_configuration_says_more(loss, mini, epochs, moved, said) -> None:
    """As wandb keeps it; nothing is clipped where another log-ratio is given."""
    actor = {"ppo_mini_batch_size": mini, "ppo_epochs": epochs, "policy_loss": {"loss_mode": loss}}
    config = {"data": {"train_batch_size": 4}, "actor_rollout_ref": {"actor": actor}}
    other = {"actor/ppo_kl": moved, "actor/pg_clipfrac": 0.0, "actor/pg_clipfrac_lower": 0.0}
    logged = read_jsonl(VERL / "metrics.jsonl")
    rows = [(row["step"], row["data"] | (other if moved is not None else {})) for row in logged]
    log = log_of(Path("a.wandb"), "wandb offline run", rows, config if loss else {})
    found = of_run(Run(log.path, {}, {}, [], metrics={"rl": log.rows}, log=log))
    assert log.trainer == "verl" and said in " ".join(finding.line for finding in found)


def _exported(release: str) -> list[dict]:
    files = sorted((PRIME / release).rglob("*.jsonl"))
    return [row for file in files for row in read_jsonl(file)]


@pytest.mark.parametrize("release", ["weights", "losses"])
def test_prime_rl_exports_are_what_its_own_columns_say(release: str) -> None:
    log = read_log(PRIME / release)
    assert [row["step"] for row in log.rows] == [0, 1, 2] and log.digest is not None
    assert log.digest.completions == len(_exported(release)) == 12
    for row in log.rows:
        theirs = [given for given in _exported(release) if given["step"] == row["step"]]
        mask = np.concatenate([given["loss_mask"] for given in theirs])

        def column(name: str, given=theirs, mask=mask) -> np.ndarray:
            return np.concatenate([sequence[name] for sequence in given])[mask].astype(float)

        np.testing.assert_allclose(row["trustclip/gated"], column("is_masked").mean())
        kl = column("mismatch_kl").mean()
        np.testing.assert_allclose(row["trustclip/k3"], kl, rtol=1e-3, atol=1e-7)
        ratio = column("importance_ratio").mean()
        np.testing.assert_allclose(row["trustclip/ratio"], ratio, rtol=1e-6)
        np.testing.assert_allclose(row["entropy"], column("entropy").mean(), rtol=1e-6)
    text = said(PRIME / release)
    assert "The constraint cut 36 % of tokens" in text and "49 % had no advantage, or" in text
    assert "The trainer differed from the sampler by 0.005 nats" in text
    assert "50 % of completions had advantage 0 on every token" in text
    assert ("rewards (this release exports none)" in text) == (release == "weights")


@pytest.mark.parametrize("name", ["tokens.jsonl", "tokens.parquet"])
def test_tokens_of_any_trainer_say_the_same_in_both_formats(tmp_path: Path, name: str) -> None:
    write_tokens(tmp_path / name, token_rows(PRIME / "weights"))
    theirs, ours = read_log(PRIME / "weights"), read_log(tmp_path)
    assert ours.trainer == "unknown trainer"
    for row, expected in zip(ours.rows, theirs.rows, strict=True):
        assert {k: row[k] for k in expected} == pytest.approx(expected, nan_ok=True)


def test_the_sampler_is_measured_where_the_tokens_have_it(tmp_path: Path) -> None:
    rows = [
        TokenRow.of(
            {"logp": [-1.0, -1.0], "logp_old": [-1.0, -1.0], "logp_rollout": [-1.5, -1.0],
             "advantage": 1.0, "step": step}
        )
        for step in (1, 2)
    ]  # fmt: skip
    write_tokens(tmp_path / "tokens.jsonl", rows)
    text = said(tmp_path)
    # k3 of a log-ratio of 0.5 is e^0.5 - 1 - 0.5 = 0.1487; the other token has 0.
    assert "by 0.074 nats per token (k3), a mean absolute log-ratio of 0.25" in text
    assert "Next: the sampler differs by 0.074 nats per token (k3), and the limit is 0.005" in text
    # Without the proximal policy, nothing is said of its movement.
    bare = [TokenRow.of({**row.to_dict(), "logp_old": None}) for row in rows]
    (tmp_path / "tokens.jsonl").unlink()
    write_tokens(tmp_path / "tokens.jsonl", bare)
    assert "differs from the trainer by 0.074 nats per token (k3)" in said(tmp_path)
    assert "moved by" not in said(tmp_path)


def test_the_mean_reward_is_that_of_the_completions_that_have_one(tmp_path: Path) -> None:
    rows = [{"logp": [-1.0], "advantage": 1.0, "reward": r} for r in (1.0, 0.5, None)]
    write_tokens(tmp_path / "tokens.jsonl", map(TokenRow.of, rows))
    assert [row["reward"] for row in read_log(tmp_path).rows] == [0.75]


def _bad(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


TOKEN = {"logp": [-1.0, -1.0], "advantage": 1.0, "step": 1}
STEP = '{"step":%d,"data":{"actor/entropy":%g}}\n'
SEQUENCE = json.loads((PRIME / "weights/token_exports/step_0/rank_0.jsonl").open().readline())
LATER = json.dumps({**SEQUENCE, "schema_version": 2}) + "\n"
BARE = json.dumps({k: v for k, v in SEQUENCE.items() if k != "loss_mask"}) + "\n"
RUNS = "".join(json.dumps({**SEQUENCE, "run_id": run}) + "\n" for run in ("a", "b"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", STEP % (1, 2) + "{half\n" + STEP % (2, 2), r"a.jsonl:2 is not a JSON object"),
        ("a.jsonl", '{"step":"x","data":{}}\n', "expected a whole number as step"),
        ("a.jsonl", '{"step":1,"data":{"train/loss":2}}\n', "no metric of reinforcement learning"),
        ("a.jsonl", STEP % (1, 2) + STEP % (2, 2) + STEP % (1, 3), "two runs: update 1 comes"),
        ("a.jsonl", STEP % (1, 2) + STEP % (1, 3) + STEP % (2, 3), "entropy of update 1 stands"),
        ("a.jsonl", '{"step":1,"data":{"actor/pg_clipfrac":20}}\n', "is 20, and a share is from"),
        ("a.jsonl", '{"step":1,"data":{"actor/pg_clipfrac":-0.1}}\n', "is -0.1, and a share"),
        ("a.jsonl", '{"lopg": [1], "advantages": 1}\n', "'lopg' is like 'logp'"),
        ("a.jsonl", '{"stage":"rl","step":1}\n', "belongs to a run directory; give its folder"),
        ("a.log", "nothing here\n", "no log that can be read: looked for"),
        ("a.log", "", "a.log is empty: looked for"),
        ("a.bin", b"\0\1\2", "no log that can be read: looked for"),
        ("trainer_state.json", '{"log_history": [{"step": 1, "lo', "damaged"),
        ("trainer_state.json", '{"global_step": 3}', "no `log_history`"),
        ("trainer_state.json", '{"log_history": [{"loss": 1}]}', "have no `step`"),
        ("trainer_state.json", '{"log_history": [{"step": 1, "loss": 1}]}', "no metric of reinf"),
        ("step_0/rank_0.jsonl", LATER, "version 2 of prime-rl's export; this reader knows 1"),
        ("step_0/rank_0.jsonl", BARE, r"rank_0.jsonl:1: there is no `loss_mask`"),
        ("step_0/rank_0.jsonl", RUNS, "holds two runs, a and b"),
        ("tokens.jsonl", json.dumps({**TOKEN, "advantage": [1]}) + "\n", "`logp` has 2 tokens"),
        ("tokens.jsonl", '{"logp": [-1.0], "advantages": 1}\n', "nearest is `advantages`"),
        ("tokens.jsonl", json.dumps(TOKEN) + "\n{\n", "tokens.jsonl:2 is not a JSON object"),
        ("tokens.parquet", b"PAR1 and no more", "cannot be read as Parquet"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(
    tmp_path: Path, name: str, content: str | bytes, words: str, capsys: pytest.CaptureFixture
) -> None:
    path = _bad(tmp_path / "given", name, content)
    given = path.parent.parent if name.startswith("step_") else path
    with pytest.raises(ValueError, match=words):
        explain(given)
    # Nothing half-written, and no traceback.
    assert main(["report", str(given), "-o", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_half_written_last_line_is_left_out(tmp_path: Path) -> None:
    whole = (VERL / "metrics.jsonl").read_bytes()
    log = read_log(_bad(tmp_path, "a.jsonl", whole[:-400]))
    torn = "the last line is half written, and left out"
    assert len(log.rows) == 9 and log.remarks == [f"a.jsonl: {torn}"]
    log = read_log(_bad(tmp_path / "own", "tokens.jsonl", json.dumps(TOKEN) + "\n{"))
    assert len(log.rows) == 1 and log.remarks == [f"tokens.jsonl: {torn}"]
    whole = (VERL / "console.log").read_bytes()
    log = read_log(_bad(tmp_path, "a.log", whole[:-400]))
    assert len(log.rows) == 9 and "half written" in log.remarks[0]
    shutil.copytree(PRIME / "weights", tmp_path / "prime")
    (last,) = (tmp_path / "prime").rglob("step_2/rank_0.jsonl")
    last.write_bytes(last.read_bytes()[:-400])
    log = read_log(tmp_path / "prime")
    assert log.digest is not None and log.digest.completions == 11
    assert f"About the files: rank_0.jsonl: {torn}" in said(tmp_path / "prime")


def test_a_resumed_run_counts_its_later_values(tmp_path: Path) -> None:
    steps = [(1, 5.0), (2, 4.0), (3, 3.0), (2, 3.5), (3, 2.5)]
    path = _bad(tmp_path, "a.jsonl", "".join(STEP % step for step in steps))
    log = read_log(path)
    assert [row["entropy"] for row in log.rows] == [5.0, 3.5, 2.5]
    assert log.remarks == ["resumed at update 2: the later values count"]


def test_what_a_folder_holds_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["explain", str(tmp_path / "empty")]) == 2
    printed = capsys.readouterr().err
    for source in ("trainer_state.json", "tfevents", ".wandb", "token_exports", "step:N", "logp"):
        assert source in printed
    assert main(["explain", str(VERL)]) == 2
    assert "holds 2 logs; give one of them: console.log, metrics.jsonl." in capsys.readouterr().err
    # A log below the folder is found if it is alone.
    shutil.copytree(PRIME / "weights", tmp_path / "outputs" / "run_default")
    assert main(["explain", str(tmp_path / "outputs")]) == 0


@pytest.mark.slow
def test_tokens_are_streamed(tmp_path: Path) -> None:
    """Ten times the tokens take no more memory, under a limit on it."""
    row = {**TOKEN, "logp": [-0.123456789] * 500, "logp_old": [-0.2] * 500, "token": ["a"] * 500}
    peaks = []
    for size in (4 << 20, 40 << 20):
        path = tmp_path / f"{size}.jsonl"
        with path.open("w") as file:
            for number in count():
                if file.tell() > size:
                    break
                file.write(json.dumps({**row, "step": number // 32, "index": number % 32}) + "\n")
        code = (
            "import resource, sys; from pathlib import Path\n"
            "from trustclip.report.console import explain\n"
            "resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))\n"
            "explain(Path(sys.argv[1]))\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        printed = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            check=True, capture_output=True, text=True, env=environment,
        )  # fmt: skip
        peaks.append(int(printed.stdout) >> 10)
    small, large = peaks
    assert large < small + 40, f"{small} MiB for 4 MiB of tokens, {large} MiB for 40 MiB"


def test_tokens_that_a_run_recorded_are_read_in_files_of_any_name(tmp_path: Path) -> None:
    """A run of ours writes a file an update; other programs split theirs as they like."""
    rows = list(token_rows(PRIME / "weights"))
    (tmp_path / "tokens").mkdir()
    for step in (0, 1, 2):
        part = [row for row in rows if row.step == step]
        write_tokens(tmp_path / "tokens" / f"update-{step:06d}.parquet", part)
    for path in (tmp_path, tmp_path / "tokens"):
        log = read_log(path)
        assert [row["step"] for row in log.rows] == [0, 1, 2] and log.kind == "tokens"
    # Beside another kind of file, nothing is taken for tokens by its ending.
    shutil.copy(VERL / "metrics.jsonl", tmp_path / "tokens" / "a.jsonl")
    assert read_log(tmp_path / "tokens").trainer == "verl"


def test_files_whose_updates_overlap_are_no_course(tmp_path: Path) -> None:
    """A file a rank: each is in order, together they are not, once the first updates are done."""
    for rank in range(2):
        rows = [TokenRow.of({**TOKEN, "step": step, "index": rank}) for step in range(1, 31)]
        write_tokens(tmp_path / f"rank{rank}.jsonl", rows)
    # What needs no order is not refused.
    assert len(list(token_rows(tmp_path))) == 60
    with pytest.raises(ValueError, match="update 1 come after those of update 30; expected one"):
        read_log(tmp_path)


def test_suggest_and_shadow_read_exports_of_prime_rl(capsys: pytest.CaptureFixture) -> None:
    assert main(["shadow", str(PRIME / "weights"), "--suggest", "atr", "--share", "0.1"]) == 0
    assert "of 60 tokens" in capsys.readouterr().out
    assert main(["shadow", str(PRIME / "weights")]) == 0
    assert "atr" in capsys.readouterr().out
    assert main(["shadow", str(VERL / "metrics.jsonl"), "--suggest", "atr"]) == 2
    assert "has no tokens; expected token_exports" in capsys.readouterr().err
