"""What `trustclip doctor --verl` says of a configuration; no verl needed."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from trustclip.cli.main import main
from trustclip.engines.limits import Remark
from trustclip.engines.verl.checks import BUILT_IN, Installed, remarks
from trustclip.engines.verl.limits import TARGET, constraint

HERE = Installed("0.9.1")
LOSS = "actor_rollout_ref.actor.policy_loss"

#: As verl resolves it, with a method of ours and four updates per generation.
GOOD: dict[str, Any] = {
    "actor_rollout_ref": {
        "model": {"external_lib": None},
        "actor": {
            "ppo_mini_batch_size": 256,
            "ppo_epochs": 1,
            "clip_ratio": 0.2,
            "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.2,
            "clip_ratio_c": 3.0,
            "tau_pos": 1.0,
            "tau_neg": 1.05,
            "loss_agg_mode": "token-mean",
            "loss_scale_factor": None,
            "policy_loss": {
                "_target_": TARGET,
                "loss_mode": "trustclip",
                "clip_cov_ratio": 0.0002,
                "clip_cov_lb": 1.0,
                "clip_cov_ub": 5.0,
                "kl_cov_ratio": 0.0002,
                "ppo_kl_coef": 0.1,
                "dro_beta": None,
                "method": {"name": "atr", "delta": 0.07},
            },
        },
    },
    "algorithm": {"rollout_correction": {"bypass_mode": False}},
    "data": {"train_batch_size": 1024},
    "trainer": {"use_v1": True},
}


def with_changes(**changes: Any) -> dict[str, Any]:
    """`GOOD` with values at dotted paths (written with ``__``); None of ``...`` removes."""
    config = copy.deepcopy(GOOD)
    for path, value in changes.items():
        *parents, last = path.replace("LOSS", LOSS.replace(".", "__")).split("__")
        place = config
        for name in parents:
            place = place.setdefault(name, {})
        if value is ...:
            del place[last]
        else:
            place[last] = value
    return config


def said(config: dict[str, Any], verl: Installed = HERE, level: str = "error") -> list[str]:
    return [found.text for found in remarks(config, verl) if found.level == level]


def test_a_good_configuration_has_no_error() -> None:
    assert list(remarks(GOOD, HERE)) == [
        Remark(
            "note",
            "data.train_batch_size / ppo_mini_batch_size x ppo_epochs = 1024 / 256 x 1 = 4 updates "
            "per generation; 'atr' can act.",
        )
    ]


ACTOR = "actor_rollout_ref__actor"
NORM = "algorithm__norm_adv_by_std_in_grpo"
BY_DIFFICULTY = {"name": "atr", "delta": {"controller": "per_token", "by": "difficulty"}}
WRONG = {
    "unknown mode": ({"LOSS__loss_mode": "trustclip_art"}, "did you mean 'trustclip_atr'"),
    "verl's unknown": ({"LOSS__loss_mode": "vanila"}, "did you mean 'vanilla'"),
    "verl's own": ({"LOSS__loss_mode": "vanilla"}, "ignores `method`; set it to 'trustclip'"),
    "unknown method": ({"LOSS__method": "art"}, "unknown method 'art'; did you mean 'atr'"),
    "hyper-parameter": ({"LOSS__method": {"name": "atr", "dleta": 1}}, "did you mean 'delta'"),
    "misspelt key": ({"LOSS__metod": "atr"}, f"unknown key 'metod' of {LOSS}; did you mean"),
    "no target": ({"LOSS___target_": ...}, f"takes no `method`; set {LOSS}._target_={TARGET}"),
    "refused": ({"LOSS__method": "full_kl"}, "it needs `kl_old_new`"),
    "clip_ratio": ({f"{ACTOR}__clip_ratio": 0.1}, "clip_ratio=0.1 has no effect"),
    "dual clip": ({f"{ACTOR}__clip_ratio_c": 10.0}, "thresholds of dual_clip"),
    "sapo": ({f"{ACTOR}__tau_neg": 2.0}, "tau_neg=2.0 has no effect"),
    "clip_cov": ({"LOSS__clip_cov_ratio": 0.1}, "clip_cov_ratio=0.1 has no effect"),
    "one update": ({"data__train_batch_size": 256}, "'atr' would be inert"),
    "unscaled": ({"LOSS__method": BY_DIFFICULTY, NORM: False}, "does otherwise; set it to True"),
    "scale": ({f"{ACTOR}__loss_agg_mode": "seq-mean-token-sum-norm"}, "loss_scale_factor"),
}


@pytest.mark.parametrize(("changes", "text"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_in_one_sentence(changes: dict[str, Any], text: str) -> None:
    (error,) = said(with_changes(**changes))
    assert text in error


BYPASS = {"algorithm__rollout_correction__bypass_mode": True}


@pytest.mark.parametrize(
    ("more", "replaced"),
    [
        ({"trainer__use_v1": False}, True),
        ({"async_training": {}}, True),
        ({"rollout__n_gpus_per_node": 8}, True),
        ({}, False),
    ],
    ids=["v0", "fully async", "one step off", "v1"],
)
def test_bypass_mode_replaces_the_loss_in_some_trainers(
    more: dict[str, Any], replaced: bool
) -> None:
    config = with_changes(**BYPASS, **more)
    assert any("replaces loss_mode" in text for text in said(config)) == replaced
    assert bool(said(config, level="note")) != replaced


def test_one_update_is_enough_for_a_method_that_acts_on_policy() -> None:
    config = with_changes(data__train_batch_size=256, LOSS__method="pspo")
    assert said(config) == said(with_changes(LOSS__method=BY_DIFFICULTY)) == []


def test_a_plugin_that_is_not_loaded() -> None:
    config = with_changes(
        LOSS___target_="verl.workers.config.PolicyLossConfig",
        LOSS__method=...,
        LOSS__loss_mode="trustclip_atr",
    )
    assert said(config) == []
    absent = Installed("0.9.1", BUILT_IN, plugin=False)
    (error,) = said(config, absent)
    assert "will not import trustclip" in error and TARGET in error
    assert said(GOOD, absent) == []
    library = copy.deepcopy(config)
    library["actor_rollout_ref"]["model"]["external_lib"] = "trustclip.engines.verl"
    assert said(library, absent) == []


def test_the_command_reads_a_resolved_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(GOOD), encoding="utf-8")
    assert main(["doctor", "--verl", str(path)]) == 0
    assert "no errors" in capsys.readouterr().out
    path.write_text(yaml.safe_dump(with_changes(LOSS__method="art")), encoding="utf-8")
    assert main(["doctor", f"--verl={path}"]) == 1
    assert "error: unknown method 'art'" in capsys.readouterr().out


def test_the_method_is_built_once_for_all_micro_batches() -> None:
    new = {"loss_mode": "trustclip", "method": {"name": "kl2", "delta": 0.05}}
    assert constraint(new) is constraint(copy.deepcopy(new))


# The sampler's log-probabilities ---------------------------------------------------------------

CARRIED = {"rollout_is": "token", "rollout_is_threshold": float("inf"), "bypass_mode": False}


def sampled(made: Any = None, forwarded: Any = None, **changes: Any) -> dict[str, Any]:
    """`GOOD` with icepop, verl's correction, and what of it the policy loss is given."""
    return with_changes(
        LOSS__method="icepop",
        LOSS__rollout_correction=forwarded or CARRIED,
        algorithm__rollout_correction=made or CARRIED,
        **changes,
    )


def test_a_method_that_corrects_gets_verls_weights() -> None:
    assert said(sampled()) == []
    (note, _) = said(sampled(), level="note")
    assert "the weights give 'icepop' the log-probabilities" in note


def test_without_the_weights_it_is_refused_with_the_settings() -> None:
    (text,) = said(with_changes(LOSS__method="icepop"))
    for words in ("rollout_is=token", "rollout_is_threshold=inf", "'+actor_rollout_ref.actor"):
        assert words in text


@pytest.mark.parametrize(
    ("key", "value"),
    [("rollout_is_threshold", 2.0), ("rollout_is", "sequence"), ("rollout_is", None)],
)
def test_a_correction_that_the_loss_does_not_see_is_an_error(key: str, value: Any) -> None:
    (text,) = said(sampled(made={**CARRIED, key: value}))
    assert f"rollout_correction.{key}={value}, but" in text and "misread verl's weights" in text


def test_log_probabilities_that_nobody_computes_are_an_error() -> None:
    off = {"actor_rollout_ref__rollout": {"calculate_log_probs": False}}
    (text,) = said(sampled(**off))
    assert "calculate_log_probs=False: 'icepop' needs what it computes" in text


def test_in_bypass_mode_a_correction_would_do_nothing() -> None:
    bypass = {"bypass_mode": True}
    (text,) = said(sampled(made=bypass, forwarded=bypass))
    assert "'icepop' would do nothing; name its inner method" in text


def test_a_file_that_grows_without_bound_is_refused(tmp_path, capsys):
    bomb = ["a0: &a0 [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]"]
    bomb += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    (tmp_path / "bomb.yaml").write_text("\n".join(bomb), "utf-8")
    (tmp_path / "large.yaml").write_text("a: " + "x" * 2**22, "utf-8")
    for name, why in (("bomb.yaml", "aliases written out"), ("large.yaml", "larger than 4 MiB")):
        assert main(["doctor", "--verl", str(tmp_path / name)]) == 2
        assert why in capsys.readouterr().err
    (tmp_path / "open.yaml").write_text("defaults: [actor]", "utf-8")
    for given in (["a.b=1"], [str(tmp_path / "open.yaml")], []):
        assert main(["doctor", "--verl", *given]) == 2
        assert "--cfg job --resolve" in capsys.readouterr().err
