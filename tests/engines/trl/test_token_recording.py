"""Tokens recorded while training: the right numbers, within the space, after a kill the same."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import durable_runs
import numpy as np
import pytest
import torch
import trl_runs

import trustclip as tc
from trustclip.engines.trl.recording.tokens import BYTES, Plan, TokenSampler, pieces
from trustclip.findings.live.recorder import token_sampler
from trustclip.logs.tokens import read_tokens, token_batch
from trustclip.train.runs.directory import RunDirectory

SETTINGS: dict[str, Any] = dict(
    method={"name": "atr", "delta": 0.01},
    steps_per_generation=2,
    num_iterations=2,
    gradient_accumulation_steps=1,
    per_device_train_batch_size=8,
    max_steps=12,
    save_steps=3,
    lr_scheduler_type="constant",
)
METHOD = tc.method("atr", delta=0.01)


def recorded(folder, every=2, space=2**22, died=None):
    """A trainer that has not begun and records tokens; it is killed once ``died`` is written."""
    trainer = durable_runs.grpo(folder, **SETTINGS)
    run = RunDirectory.resumed(folder, "rl", SimpleNamespace(to_dict=lambda: {"seed": 5}))

    def write(step, rows):
        run.tokens(step, rows)
        if step == died:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer.journal, trainer.recorder = run, None
    plan = Plan(every, 4, space, updates=12, per_generation=4, seed=5)
    text_of = pieces(trainer.processing_class)
    trainer.token_sampler = TokenSampler(plan, 4, 4, text_of, write) if every else None
    return trainer


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "tokens").iterdir())}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert recorded(folder).train_durably()
    return folder


@pytest.mark.slow
def test_a_row_is_what_the_method_saw_and_did(whole):
    rows = list(read_tokens(whole / "tokens"))
    assert len(rows) == 24 and len({row.step for row in rows}) == 6
    texts = durable_runs.Rows(whole / "rows").read()["samples.jsonl"]
    samples = {(row["step"], row["index"]): row for row in texts}
    cut = 0
    for row in rows:
        assert row.generated is not None and row.step is not None and row.index is not None
        assert row.generated % 4 == 0 and 1 <= row.step - row.generated <= 3
        batch = token_batch([row])
        surrogate = METHOD.surrogate(batch)
        assert row.kept is not None and row.coefficient is not None and row.token is not None
        np.testing.assert_array_equal(row.kept & row.mask, surrogate.kept[0].numpy())
        torch.testing.assert_close(
            tc.coefficient(METHOD, batch)[0],
            torch.from_numpy(row.coefficient),
            rtol=1e-4,
            atol=1e-6,
        )
        cut += int((row.mask & ~row.kept).sum())
        sampled = samples[row.generated, row.index]
        if "\ufffd" not in sampled["text"]:
            assert "".join(t for t in row.token if not t.startswith("<")) in sampled["text"]
        given = trl_runs.share_of_even_digits([sampled["text"]])[0]
        given += 0.01 * sampled["calls"] * (row.index % 2)
        assert row.reward == pytest.approx(given, abs=1e-6)
        assert row.group is not None and row.group % 4 == row.index // 4
    assert cut > 0
    assert any((row.logp != row.logp_old).any() for row in rows)


@pytest.mark.slow
def test_killed_and_continued_leaves_the_same_files(whole, tmp_path):
    late = sorted(contents(whole))[-2]
    died = int(late.removeprefix("update-").removesuffix(".parquet"))
    code = "import sys; from pathlib import Path; from test_token_recording import recorded; "
    code += f"recorded(Path(sys.argv[1]), died={died}).train_durably()"
    paths = os.pathsep.join([str(Path(__file__).parents[2] / "support"), *sys.path])
    command = [sys.executable, "-c", code, str(tmp_path)]
    # Sums depend on the number of threads, which another test may have set in this process.
    own = {"PYTHONPATH": paths, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run(command, env=os.environ | own, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    assert late in contents(tmp_path)
    # A file of an update that the continued run will not record must not stay.
    stray = tmp_path / "tokens" / "update-000099.parquet"
    stray.write_bytes((tmp_path / "tokens" / late).read_bytes())
    assert recorded(tmp_path).train_durably()
    assert contents(tmp_path) == contents(whole)
    last = "checkpoints/step-000012"
    for path in (whole / last).iterdir():
        if path.suffix == ".safetensors":
            assert path.read_bytes() == (tmp_path / last / path.name).read_bytes(), path.name


# -- which ones ------------------------------------------------------------------------------------


def test_problems_are_counted_over_a_generation_of_all_ranks():
    args = SimpleNamespace(
        steps_per_generation=4, num_iterations=1, gradient_accumulation_steps=2, seed=0,
        per_device_train_batch_size=6, world_size=2, num_generations=8,
    )  # fmt: skip
    trainer, run = SimpleNamespace(args=args, processing_class=None), SimpleNamespace(tokens=None)
    sampler = token_sampler(trainer, (1, 8, 1.0), 10, cast(Any, run))
    assert (sampler.group, sampler.prompts, sampler.plan.per_generation) == (8, 6, 2)


@pytest.mark.parametrize("per_generation", [1.0, 2.0, 16.0, 0.5])
def test_one_update_of_every_block_and_not_the_first_of_a_generation(per_generation):
    plan = Plan(10, 8, 2**24, updates=97, per_generation=per_generation, seed=3)
    steps = [step for step in range(97) if plan.wants(step)]
    assert [step // 10 for step in steps] == list(range(10))
    if per_generation > 1:
        assert all(step % per_generation for step in steps)
    assert steps != [s for s in range(97) if Plan(10, 8, 2**24, 97, per_generation, 4).wants(s)]


def test_completions_are_drawn_evenly_over_their_numbers():
    plan = Plan(1, 8, 2**40, updates=4000, per_generation=2, seed=0)
    counts = np.zeros(32)
    for generated in range(4000):
        for _, index in plan.chosen([[generated, i, 10] for i in range(32)], 10**9):
            counts[index] += 1
    assert counts.sum() == 4000 * 8
    # Each count is binomial with mean 1000 and standard deviation 27.
    assert abs(counts - 1000).max() < 5 * 27


def batch_of(lengths, random):
    width = max(lengths)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    logp = torch.from_numpy(-random.exponential(size=mask.shape).astype(np.float32))
    old = logp + 0.1 * torch.from_numpy(random.normal(size=mask.shape).astype(np.float32))
    advantages = torch.ones_like(logp) * torch.tensor([1.0, -1.0] * (len(lengths) // 2))[:, None]
    return tc.TokenBatch(logp, old, advantages, mask, entropy=-logp, logp_rollout=old)


def sampler(plan, files, rank=0):
    return TokenSampler(
        plan, 2, 8, lambda number: f"{number} ", lambda step, rows: files.append((rank, step, rows))
    )


def feed(to, step, lengths, first, random, signal: float | torch.Tensor = 1.0):
    batch = batch_of(lengths, random)
    batch = replace(batch, advantages=batch.advantages * signal)
    index = torch.arange(first, first + len(lengths))
    inputs = {
        "completion_ids": torch.from_numpy(random.integers(0, 900, size=batch.mask.shape)),
        "completion_mask": batch.mask.long(),
        "sample_index": index,
        "generated": torch.full_like(index, step - 1),
        "reward": index.float(),
    }
    c = tc.coefficient(METHOD, batch)
    to.add(step, inputs, batch, METHOD.surrogate(batch), c)
    return inputs, batch


def test_two_ranks_record_what_one_would():
    lengths = [5, 9, 3, 7, 6, 8, 4, 2]
    plan = Plan(1, 3, 2**20, updates=4, per_generation=4, seed=0)
    alone: list = []
    one = sampler(plan, alone)
    feed(one, 1, lengths, 0, np.random.default_rng(0))
    used = one.finish(1, 0, lambda rows: rows)
    shared: list = []
    ranks = [sampler(plan, shared, rank) for rank in (0, 1)]
    random = np.random.default_rng(1)
    for rank, to in enumerate(ranks):
        feed(to, 1, lengths[4 * rank : 4 * rank + 4], 4 * rank, random)
    facts = torch.cat([part[0] for to in ranks for part in to._parts])
    assert [to.finish(1, 0, lambda _: facts) for to in ranks] == [used, used]
    chosen = {row["index"] for _, _, rows in alone for row in rows}
    assert len(chosen) == 3
    assert {row["index"] for _, _, rows in shared for row in rows} == chosen
    assert all(row["index"] // 4 == rank for rank, _, rows in shared for row in rows)


def test_the_space_is_kept_and_a_long_completion_waits_for_its_share(tmp_path):
    random = np.random.default_rng(0)
    plan = Plan(1, 4, 2**20, updates=20, per_generation=1, seed=0)
    run = RunDirectory(tmp_path / "run", "rl", SimpleNamespace(to_dict=lambda: {}))
    to = TokenSampler(plan, 2, 8, lambda number: f"token {number}", run.tokens)
    used, counts = 0, []
    for step in range(20):
        feed(to, step, [1900, 2100, 2000, 1800], 0, random)
        before, used = used, to.finish(step, used, lambda rows: rows)
        counts.append(used - before)
    # A share is (2^20 / 20 - 8192) / 32 = 1382 tokens: no completion fits into one.
    assert counts[0] == 0 and max(counts) > 1800 and used <= plan.allowed(19)
    assert used > 0.9 * plan.allowed(19)
    size = sum(path.stat().st_size for path in (tmp_path / "run" / "tokens").iterdir())
    assert size <= 2**20 and size > 0.3 * 2**20
    assert BYTES * used <= 2**20


def test_completions_without_a_signal_are_left_out():
    plan = Plan(1, 8, 2**20, updates=4, per_generation=4, seed=0)
    files: list = []
    to = sampler(plan, files)
    signal = torch.tensor([[0], [1], [0], [1]])
    feed(to, 1, [4, 4, 4, 4], 0, np.random.default_rng(0), signal)
    to.finish(1, 0, lambda rows: rows)
    assert [row["index"] for _, _, rows in files for row in rows] == [1, 3]


def test_a_piece_of_a_token_is_readable():
    class Vocabulary:
        names = ("Ġthe", "▁the", "æĪ", "<|im_end|>", "Ċ")
        texts = (" the", "the", "�", "<|im_end|>", "\n")

        def convert_ids_to_tokens(self, number):
            return self.names[number]

        def decode(self, ids, skip_special_tokens):
            return self.texts[ids[0]]

    assert [pieces(Vocabulary())(i) for i in range(5)] == [" the", " the", "æĪ", "<|im_end|>", "\n"]
