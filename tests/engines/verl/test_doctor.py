# pyright: reportMissingImports=false
"""`trustclip doctor --verl` on configurations that verl's own Hydra composes."""

import json
from importlib import resources
from pathlib import Path

import pytest

pytest.importorskip("verl.trainer", reason="verl is not installed here: make verl-setup")

from engines.verl.test_main_ppo import LOSS, METHOD, SCHEDULE
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl_calls import composed

from trustclip.cli.main import main
from trustclip.engines.verl.checks import BUILT_IN, installed, remarks
from trustclip.engines.verl.limits import LOSS_MODES, WATCH


def test_the_names_of_verls_own_losses_are_right() -> None:
    assert set(POLICY_LOSS_REGISTRY) == {*BUILT_IN, *LOSS_MODES, WATCH}
    assert installed().plugin


def doctor(at: Path, *overrides: str, **other: str) -> int:
    file = at / "verl.yaml"
    file.write_text(json.dumps(composed(*overrides, **other)))  # JSON is YAML
    return main(["doctor", "--verl", str(file)])


def test_the_end_to_end_settings_are_found_good(tmp_path, capsys) -> None:
    assert doctor(tmp_path, *METHOD, *SCHEDULE) == 0
    assert "4 / 2 x 2 = 4 updates" in capsys.readouterr().out


def test_verls_defaults_read_as_unchanged() -> None:
    config = composed(*METHOD, "data.train_batch_size=1024")
    assert [found for found in remarks(config, installed()) if found.level == "error"] == []


def test_a_plugin_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    assert not installed().plugin


def test_the_experimental_trainer_replaces_any_loss(tmp_path, capsys) -> None:
    """It ships bypass_mode=True."""
    package = resources.files("verl.experimental.fully_async_policy")
    file = Path(str(package / "config" / "fully_async_ppo_trainer.yaml"))
    override = f"{LOSS}.loss_mode=trustclip_atr"
    assert doctor(tmp_path, override, folder=str(file.parent)) == 1
    assert "experimental asynchronous trainer replaces loss_mode" in capsys.readouterr().out
