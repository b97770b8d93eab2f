"""What is said of a run while it trains; the golden runs have what is said of it afterwards."""

import io
from itertools import count
from types import SimpleNamespace

import pytest
from rich.console import Console

from trustclip.cli.main import main
from trustclip.findings.entropy import Change, scatter
from trustclip.train.configs import lora_config
from trustclip.train.runs.progress import Stage
from trustclip.train.settings.stages import RLStage

# Entropy


def test_a_change_within_its_noise_is_not_called_a_fall() -> None:
    def of(values: list[float], error: float) -> Change:
        names = ("trustclip/sampling_entropy", "trustclip/sampling_entropy_error")
        found = Change.of_entropy([dict(zip(names, (v, error), strict=True)) for v in values])
        assert found is not None
        return found

    noisy, clear = of([1.0, 0.9, 0.8], 0.2), of([1.0, 0.9, 0.8], 0.02)
    assert not noisy.clear and "may be noise (change −0.2 [−0.75, 0.35])" in noisy.sentence()
    assert clear.clear and "fell from 1 to 0.8" in clear.sentence()
    assert scatter([1.0, 2.0]) is None


def test_the_line_on_the_terminal_shows_the_entropy_of_all_completions(monkeypatch) -> None:
    """And the time that is left, by the pace of this attempt: it began after six of ten updates."""
    clock = SimpleNamespace(monotonic=count(0.0, 60.0).__next__)
    monkeypatch.setattr("trustclip.train.runs.progress.time", clock)
    out = io.StringIO()
    with Stage(Console(file=out, width=100), "rl", total=2) as stage:
        stage.resume(6, 10)
        stage.step({"reward": 0.0, "entropy": 1.4, "trustclip/sampling_entropy": 1.15})
        stage.step({"entropy": 0.9})
    said = out.getvalue()
    assert said.count("entropy 1.150") == 2 and "eta 3 min 0 s" in said and "eta 2 min 0 s" in said


# Settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--shadows", "kl3"], "line: unknown method 'kl3'; did you mean 'atr'?"),
        (["--trl.dry-run", "true"], "dry_run"),
        (["--bf16", "true"], "a field of TRL's GRPOConfig is `trl: {bf16: ...}`, --trl.bf16"),
        (["--top-k", "5"], "a field of TRL's GRPOConfig is `trl: {top_k: ...}`, --trl.top_k"),
        (["--frobnicate", "5"], "line: unknown key 'frobnicate'. Allowed: "),
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
