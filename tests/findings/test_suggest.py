"""`trustclip shadow`, and its `--suggest`, on files of tokens: numbers, refusals."""

from pathlib import Path
from typing import Any

import method_cases
import numpy as np
import pytest
import torch

import trustclip as tc
from trustclip.cli.main import main
from trustclip.constraints.shadow import label, refusal
from trustclip.constraints.thresholds import scale_thresholds, thresholds, widest
from trustclip.findings.shadows import suggest
from trustclip.logs.tokens import TokenRow, token_batch, write_tokens
from trustclip.logs.watched import watch


def rows_of(
    generations: int = 12, updates: int = 3, completions: int = 8, seed: int = 0, **given: Any
) -> list[TokenRow]:
    """Completions that move further in every update; one of four has no advantage."""
    rng = np.random.default_rng(seed)
    rows = []
    for generation in range(generations):
        wider = 1 + 0.3 * rng.normal()  # what makes generations differ
        for update in range(updates):
            for index in range(completions):
                length = int(rng.integers(15, 50))
                old = -1 - rng.exponential(1.0, length)
                row = {
                    "logp": old + rng.normal(0, 0.05 * update * wider, length),
                    "logp_old": old,
                    "advantage": 0.0 if index % 4 == 0 else rng.normal(),
                    "step": generation * updates + update,
                    "generated": generation * updates,
                    "group": index // 4,
                    **given,
                }
                rows.append(TokenRow.of({k: v for k, v in row.items() if v is not None}))
    return rows


@pytest.fixture
def log(tmp_path) -> Path:
    write_tokens(tmp_path / "tokens.parquet", rows_of())
    return tmp_path / "tokens.parquet"


def log_ratio(row: TokenRow) -> np.ndarray:
    assert row.logp_old is not None
    return row.logp - row.logp_old


def moved_outward(rows: list[TokenRow]) -> tuple[np.ndarray, int]:
    """Log-ratios of the tokens that a step would move outward, and the number of all tokens."""
    with_advantage = [row for row in rows if row.advantage.any()]
    x = np.concatenate([log_ratio(row) for row in with_advantage])
    a = np.concatenate([row.advantage for row in with_advantage])
    return x[x * a > 0], len(x)


# The threshold ------------------------------------------------------------------------------------


def test_it_is_the_quantile_of_the_recorded_log_ratios(log):
    x, tokens = moved_outward(rows_of())
    for share in (0.3, 0.02, 0.001):
        found = suggest(tc.method("kl1"), share, [log])
        # |log w| <= delta: as many tokens lie beyond the threshold as the share has.
        want = np.sort(np.abs(x))[-int(share * tokens) - 1]
        assert found.moved["delta"] == pytest.approx(want, rel=2e-3)
        assert found.share == pytest.approx(share, abs=1.5 / tokens)
        assert found.tokens == tokens


def test_the_share_is_that_of_the_threshold_that_is_given(tmp_path):
    """Six tokens of one ratio lie between the threshold and its first four digits."""
    x = [*[0.4] * 4, *[np.log(1.33510634)] * 6, *[0.0] * 100]
    row = {"logp": np.array(x) - 2, "logp_old": [-2.0] * len(x), "advantage": 1.0}
    write_tokens(tmp_path / "t.parquet", [TokenRow.of(row)])
    found = suggest(tc.method("clip"), 0.05, [tmp_path / "t.parquet"])
    measured = watch([tmp_path / "t.parquet"], [found.method], found.method)
    assert found.share == measured.metrics["gated"] == 4 / 110


def test_several_thresholds_move_together(log):
    found = suggest(tc.method("clip_higher", low=0.1, high=0.3), 0.05, [log])
    (low, high) = (found.moved[name] for name in ("low", "high"))
    assert high / low == pytest.approx(3)
    x, tokens = moved_outward(rows_of())
    beyond = ((x > np.log1p(high)) | (x < np.log1p(-low))).sum() / tokens
    assert beyond == pytest.approx(0.05, abs=1.5 / tokens)


CUTTING = [
    m
    for m in method_cases.ALL
    if thresholds(m) and refusal(m, {"entropy", "logp_rollout"}, "a log") is None
]


@pytest.mark.parametrize("method", CUTTING, ids=label)
def test_a_gate_closes_on_no_more_tokens_as_its_thresholds_widen(method):
    batch = method_cases.random_batch(method)
    top = min(widest(method), 1e4)
    factors = [f for f in np.geomspace(1e-5, top, 30)] + [top]
    cut = [
        int((batch.finite & ~scale_thresholds(method, f).surrogate(batch).kept).sum())
        for f in factors
    ]
    assert cut == sorted(cut, reverse=True)
    assert cut[0] > cut[-1]


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cispo"], "no threshold can be suggested for 'cispo', because none"),
        (["both"], "no threshold can be suggested for 'both'"),
        (["full_kl"], "needs `kl_old_new`"),
        (["trpo"], "statistics over all ranks"),
        (["atr", "--share", "0"], "the share must be between 0 and 1, got 0"),
        (["atr", "--share", "few"], "`share` should be a valid number"),
        (["clip", "--share", "0.9"], "no threshold of 'clip' would have cut 90.00 %"),
    ],
)
def test_what_it_cannot_suggest_it_refuses_in_one_sentence(log, arguments, words, capsys):
    assert main(["shadow", str(log), "--suggest", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_wrong_logs_are_refused(tmp_path, capsys):
    write_tokens(tmp_path / "idle.jsonl", rows_of(2, advantage=0.0))
    write_tokens(tmp_path / "still.jsonl", rows_of(2, updates=1))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("command: rl\n")
    (tmp_path / "other.jsonl").write_text('{"logprobs": [-1.0], "advantage": 1.0}\n')
    for name, words in (
        ("idle.jsonl", "no token has an advantage"),
        ("still.jsonl", "it cuts between 0.00 % and 0.00 %"),
        ("run", "no recorded tokens: its folder `tokens` is missing"),
        ("other.jsonl", "no column `logp`; the nearest is `logprobs`"),
        ("none.jsonl", "there are no tokens"),
    ):
        assert main(["shadow", str(tmp_path / name), "--suggest", "atr"]) == 2
        assert words in capsys.readouterr().err
    assert main(["shadow", str(tmp_path / "idle.jsonl")]) == 2
    assert "no token has an advantage" in capsys.readouterr().err
    assert main(["shadow", "--suggest", "atr"]) == 2
    assert "PATH is missing" in capsys.readouterr().err


# The commands -------------------------------------------------------------------------------------


def test_the_command_says_thresholds_and_twins(log, capsys):
    sought = ["--suggest", "{name: clip_higher, high: 0.4}"]
    assert main(["shadow", str(log), "--share", "0.05", *sought]) == 0
    first, second, third, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("ClipHigher(low=0.")
    assert "would have cut 5.00 % of " in second
    assert third == "these were moved together by one factor: low, high"
    assert any(line.startswith("  TRL") and "epsilon=" in line for line in rest)
    assert any(line.startswith("  verl") and "clip_ratio_low=" in line for line in rest)


def recorded(method: tc.Method) -> list[TokenRow]:
    """Rows with what a method did, as a run records it."""
    from trustclip.constraints.loss import gradient

    found = []
    for row in rows_of():
        c, surrogate = gradient(method, token_batch([row]))
        found.append(
            TokenRow.of(
                {**row.to_dict(), "coefficient": c[0].numpy(), "kept": surrogate.kept[0].numpy()}
            )
        )
    return found


def test_shadow_compares_with_what_the_run_recorded(tmp_path):
    method = tc.method("clip", epsilon=0.07)
    write_tokens(tmp_path / "t.parquet", recorded(method))
    seen = watch([tmp_path / "t.parquet"], [method, tc.method("cispo")], tc.method("clip"))
    assert seen.acting == "the recorded method"
    own = {key: seen.metrics[f"shadow/{label(method)}/{key}"] for key in ("gated", "jaccard")}
    assert own == {"gated": pytest.approx(seen.metrics["gated"]), "jaccard": 1}
    assert seen.metrics["gated"] > 0.02
    x, tokens = moved_outward(rows_of())
    assert seen.tokens == tokens
    beyond = ((x > np.log(1.07)) | (x < np.log(0.93))).sum() / tokens
    assert seen.metrics["gated"] == pytest.approx(beyond)


@pytest.mark.slow
def test_shadow_with_all_methods_lists_those_that_the_log_does_not_suffice_for(log, capsys):
    assert main(["shadow", str(log), "--figure", str(log.with_suffix(".svg"))]) == 0
    out = capsys.readouterr().out
    assert "clip cut" in out.splitlines()[0]
    printed = {line.split()[0] for line in out.splitlines()[2:] if "left out" not in line}
    missing = {line.split("'")[1] for line in out.splitlines() if line.startswith("left out")}
    assert {"atr", "gspo", "clip"} <= printed and {"full_kl", "tis", "trpo"} <= missing
    assert set(tc.methods()) == missing | (printed & set(tc.methods()))
    assert log.with_suffix(".svg").read_text().startswith("<svg")


def test_shadow_takes_a_sampler_where_the_log_has_one(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    rows = rows_of()
    with_sampler = [TokenRow.of({**row.to_dict(), "logp_rollout": row.logp - 0.01}) for row in rows]
    write_tokens(tmp_path / "t.parquet", with_sampler)
    assert main(["shadow", str(tmp_path / "t.parquet"), "--methods", "tis, atr"]) == 0
    out = capsys.readouterr().out
    assert "tis" in out and "left out" not in out and "…" not in out
    assert main(["shadow", str(tmp_path / "t.parquet"), "--methods", "full_kl"]) == 2
    assert torch.is_grad_enabled()
