"""What is said of a run agrees with itself: `explain`, the page and the terminal on one run."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from trustclip.cli.main import main
from trustclip.findings.entropy import Change, scatter
from trustclip.findings.start import of_evaluation, of_generation
from trustclip.report.build import build
from trustclip.report.collect import collect
from trustclip.report.console import explain
from trustclip.train.configs import lora_config
from trustclip.train.runs.progress import Stage
from trustclip.train.settings.stages import RLStage

PLAIN = {"gated": 0.02, "gated/positive_above": 0.02, "off_policy": 0.9, "k3": 0.01,
         "ratio_q01": 0.8, "ratio_q99": 1.3}  # fmt: skip
SCORES = {"mean@2": 0.0, "mean@2/low": 0.0, "mean@2/high": 0.2, "problems": 8, "length": 64}


def make(folder: Path, rows: list[dict[str, Any]], *evaluations: dict[str, Any]) -> Path:
    """A run directory of `trustclip run`; names of rows without a slash in front are ours."""
    folder.mkdir(parents=True)
    rl = {"method": {"name": "atr"}, "max_completion_length": 64}
    config = {"command": "run", "model": "tiny", "seed": 0, "rl": rl, "eval": {"max_tokens": 64}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [{"stage": "eval", "task": "sums", **one} for one in evaluations]
    for step, row in enumerate(rows, start=1):
        ours = {k if k[0] == "/" else f"trustclip/{k}": v for k, v in row.items()}
        lines.append({"stage": "rl", "step": step, **{k.lstrip("/"): v for k, v in ours.items()}})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def said(folder: Path) -> str:
    return "\n".join(explain(folder))


def page(folder: Path) -> str:
    build([folder], folder / "page")
    return (folder / "page" / "index.html").read_text()


def told(folder: Path) -> str:
    report = collect([folder])
    return "\n".join([report.headline, *(one.text for one in report.findings)])


# Entropy


def idle(entropy: float) -> dict[str, float]:
    """An update in which all rewards are equal: TRL's key is over one completion of eight."""
    return {"/entropy": entropy, "/grad_norm": 0.0, "/reward": 0.0, "/frac_reward_zero_std": 1.0,
            "skipped": 0.875}  # fmt: skip


def test_a_policy_that_did_not_move_has_an_entropy_that_did_not_either(tmp_path: Path) -> None:
    text = said(make(tmp_path / "old", [idle(x) for x in (2.56, 2.1, 1.8, 1.47)]))
    assert "the policy did not move" in text
    assert "fell" not in text and "rose" not in text and "−43 %" not in text
    assert "The mean reward was 0 in every update" in text and "from 0 to 0" not in text
    new = [{**idle(2.5 - i / 3), "sampling_entropy": 2.0 + i % 2 / 10} for i in range(4)]
    text = said(make(tmp_path / "new", new))
    assert "Entropy over all completions of a generation was 2.05 nats per token." in text


WORDS = (1.34, 1.15, 0.83, 1.13, 0.89, 1.62, 0.55, 0.53, 1.14, 0.64, 0.43, 0.61, 0.75, 0.41, 0.64,
         0.26)  # fmt: skip


def test_entropies_of_a_few_completions_are_no_trend_and_no_advice(tmp_path: Path) -> None:
    rows = [{**PLAIN, "entropy": x, "/entropy": x, "skipped": 0.5} for x in WORDS]
    text = said(make(tmp_path / "run", rows))
    assert "over the completions with an advantage went from 1.34 to 0.26" in text
    assert "no trend" in text and "entropy has fallen" not in text


@pytest.mark.parametrize("proof", ["scores", "rewards", "neither"])
def test_no_advice_against_a_run_whose_score_doubled(tmp_path: Path, proof) -> None:
    falling = [
        {**PLAIN, "sampling_entropy": 1.2 - 0.05 * i, "sampling_entropy_error": 0.05}
        for i in range(16)
    ]
    if proof == "rewards":
        falling = [{**row, "/reward": 0.18 + 0.03 * i} for i, row in enumerate(falling)]
    low = {"step": 0, "mean@4": 0.219, "mean@4/low": 0.131, "mean@4/high": 0.342}
    high = {"step": 16, "mean@4": 0.573, "mean@4/low": 0.403, "mean@4/high": 0.727}
    text = said(make(tmp_path / "run", falling, *((low, high) if proof == "scores" else ())))
    assert "of a generation fell from 1.2 to 0.45 nats per token (−62 %; change −0.75 [" in text
    assert ("entropy has fallen by more than half" in text) == (proof == "neither")
    assert ("Nothing unusual: entropy fell as answers" in text) == (proof != "neither")


def test_a_change_within_its_noise_is_not_called_a_fall() -> None:
    def of(values: list[float], error: float) -> Change:
        names = ("trustclip/sampling_entropy", "trustclip/sampling_entropy_error")
        found = Change.of_entropy([dict(zip(names, (v, error), strict=True)) for v in values])
        assert found is not None
        return found

    noisy, clear = of([1.0, 0.9, 0.8], 0.2), of([1.0, 0.9, 0.8], 0.02)
    assert not noisy.clear and "within its noise (change −0.2 [−0.75, 0.35])" in noisy.sentence()
    assert clear.clear and "fell from 1 to 0.8" in clear.sentence()
    assert scatter([1.0, 2.0]) is None


def test_the_line_on_the_terminal_shows_the_entropy_of_all_completions() -> None:
    out = io.StringIO()
    with Stage(Console(file=out, width=100), "rl", total=2) as stage:
        stage.step({"reward": 0.0, "entropy": 1.4, "trustclip/sampling_entropy": 1.15})
        stage.step({"entropy": 0.9})
    assert out.getvalue().count("entropy 1.150") == 2


# A run that cannot learn


def hopeless(folder: Path, cut: float = 0.94) -> Path:
    rows = [{**idle(1.0), "/completions/clipped_ratio": 0.97} for _ in range(4)]
    return make(folder, rows, {"step": 0, **SCORES, "truncated": cut, "no_answer": 1.0})


def test_a_hopeless_run_is_told_so_in_all_places(tmp_path: Path) -> None:
    folder = hopeless(tmp_path / "run")
    cut = "94 % of the answers of the first evaluation are cut off at 64 tokens."
    assert cut in said(folder) and "Next: raise max_tokens" in said(folder) and cut in told(folder)
    first = told(folder).splitlines()[0]
    assert "Mean@2 0.0" in first and "before training" in first
    assert f"{cut} Raise max_tokens" in first
    whole = page(folder).replace("\N{NO-BREAK SPACE}%", " %")
    assert "No warnings." not in whole and whole.count(cut) >= 3  # headline, finding, warnings
    assert "No evaluation is complete yet." not in whole
    assert "Nothing unusual" not in said(folder)


def test_a_run_that_begins_well_has_no_such_line(tmp_path: Path) -> None:
    rows = [
        {**PLAIN, "/reward": 0.4, "/frac_reward_zero_std": 0.3, "/completions/clipped_ratio": 0.2}
    ]
    fine = {"step": 0, **SCORES, "truncated": 0.3, "no_answer": 0.2}
    folder = make(tmp_path / "run", rows * 4, fine)
    assert "cut off" not in said(folder) + told(folder)
    assert "No warnings." in page(folder)


def test_signs_need_numbers() -> None:
    assert not [*of_evaluation({})] and not [*of_generation({"step": 1, "reward": None})]
    (sign,) = of_generation({"step": 1, "frac_reward_zero_std": 1.0, "reward": 0.0}, 64)
    assert sign.kind == "start/equal_rewards" and "(mean 0)" in sign.text
    (sign,) = of_evaluation({"truncated": 0.0, "no_answer": 0.9})
    assert sign.kind == "start/no_answer" and sign.text.startswith("90 % ")


# One gate, one truth


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, "its gate closed on no token in 8 logged updates"),
        (8e-7, "The gate cut under 0.01 % of tokens, hardly a constraint. It closed on at least"),
        (2e-2, "The gate cut 2 % of tokens. It closed on at least one token in 8 of 8"),
    ],
)
def test_page_and_console_agree_about_the_gate(tmp_path: Path, share, words) -> None:
    folder = make(tmp_path / "run", [{**PLAIN, "gated": share}] * 8)
    assert words in said(folder) and words in told(folder)
    assert ("inert" in told(folder)) == ("inert" in said(folder)) == (share == 0)


def test_kinds_of_tokens_have_their_number_and_tiny_ones_are_left_out(tmp_path: Path) -> None:
    rows = [
        {**PLAIN, "gated/p_old_0_0.01": 1.0, "tokens/p_old_0_0.01": 2.0,
         "gated/p_old_0.1_0.5": gated, "tokens/p_old_0.1_0.5": n}
        for gated, n in ((0.5, 100.0), (0.1, 300.0))
    ]  # fmt: skip
    text = said(make(tmp_path / "run", rows))
    assert "the gate cut 20 % of those from 0.1 to 0.5 (n = 400)." in text
    assert "from 0 to 0.01" not in text


def test_a_shadow_around_the_method_itself_is_no_finding(tmp_path: Path) -> None:
    def shadow(name: str, both: float) -> dict[str, float]:
        return {f"shadow/{name}/gated": 0.02, f"shadow/{name}/both": both}

    around = shadow("icepop", 0.02) | shadow("tis(inner=atr(delta=0.1))", 0.02)
    text = said(make(tmp_path / "alone", [{**PLAIN, **around}] * 4))
    assert "On the same tokens" not in text
    text = said(make(tmp_path / "both", [{**PLAIN, **around, **shadow("clip", 0.01)}] * 4))
    assert "most nearly what atr cut is clip" in text and "icepop" not in text


# Settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--shadows", "kl3"], "line: unknown method 'kl3'; did you mean 'atr'?"),
        (["--trl.dry-run", "true"], "dry_run"),
        (["--bf16", "true"], "a field of TRL's GRPOConfig: `trl: {bf16: ...}`, --trl.bf16"),
        (
            ["--lora-target-modules", "q_proj"],
            "it is `lora: {target_modules: ...}`, --lora.target-modules",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_setting_that_is_elsewhere_is_pointed_to(tmp_path, capsys, options, words) -> None:
    model = ["--model", "tiny", "--dataset", "arithmetic", "--output-dir", str(tmp_path / "run")]
    assert main(["rl", *model, *options]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_lora_alpha_follows_the_rank() -> None:
    alphas = {r: RLStage(dataset="arithmetic", lora_r=r).lora_alpha for r in (0, 8, 16, 32)}
    assert alphas == {0: 64, 8: 16, 16: 32, 32: 64}
    assert RLStage(dataset="arithmetic", lora_r=16, lora_alpha=5).lora_alpha == 5
    config = lora_config(16)
    assert config.lora_alpha == 32 and lora_config(16, 5).lora_alpha == 5
