"""Control: PPO under our methods is Stable-Baselines3's own where it should be, and exact."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import trustclip as tc

sb3 = pytest.importorskip(
    "stable_baselines3", reason="needs the extra `control` (stable-baselines3, gymnasium)"
)
from gymnasium import spaces  # noqa: E402
from stable_baselines3.common.callbacks import CheckpointCallback  # noqa: E402
from stable_baselines3.common.envs import (  # noqa: E402
    IdentityEnvMultiBinary,
    IdentityEnvMultiDiscrete,
)

from trustclip_lab.control.sb3 import ConstrainedPPO, _Updates  # noqa: E402

pytestmark = pytest.mark.slow
ENVS = {"categorical": "CartPole-v1", "gaussian": "Pendulum-v1"}
PPO = dict(
    n_steps=128, batch_size=32, n_epochs=4, learning_rate=1e-2, seed=3, device="cpu", ent_coef=0.01
)


def model(env: Any, method: str | None, /, steps: int = 256, **hyperparameters: Any) -> Any:
    torch.set_num_threads(1)
    if method is None:
        return sb3.PPO("MlpPolicy", env, **PPO).learn(steps)
    made = ConstrainedPPO("MlpPolicy", env, method=tc.method(method, **hyperparameters), **PPO)
    return made.learn(steps)


def parameters(made: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in made.policy.parameters()])


@pytest.mark.parametrize("kind", ENVS)
def test_clip_is_stable_baselines_own_ppo(kind: str) -> None:
    own, ours = model(ENVS[kind], None), model(ENVS[kind], "clip")
    assert torch.equal(parameters(own), parameters(ours))
    assert max(h["gated"] for h in ours.history) > 0, "the clip never acts: nothing is compared"
    assert not torch.equal(parameters(ours), parameters(model(ENVS[kind], "atr")))


@pytest.mark.parametrize("kind", ENVS)
def test_the_exact_kl_divergence_is_exact(kind: str) -> None:
    """Against its definition: a sum over actions, or a mean over many samples of the policy."""
    before, made = (model(ENVS[kind], "full_kl", steps=steps) for steps in (128, 256))
    data = next(made.rollout_buffer.get(16))
    updates = _Updates(made, tc.method("clip"), 0)
    updates.old, updates.data = before.policy, data
    exact = updates.exact()
    new = made.policy.get_distribution(data.observations).distribution
    old = before.policy.get_distribution(data.observations).distribution
    for p, q, name in ((old, new, "kl_old_new"), (new, old, "kl_new_old")):
        if kind == "categorical":
            want = (p.probs * (p.logits - q.logits)).sum(dim=1)
            tolerance = 1e-6
        else:
            torch.manual_seed(0)
            y = p.sample((100_000,))
            gaps = (p.log_prob(y) - q.log_prob(y)).sum(dim=-1)
            want = gaps.mean(dim=0)
            tolerance = 5 * gaps.std(dim=0).max().item() / math.sqrt(len(gaps))
        assert want.max() > 1e-4
        torch.testing.assert_close(exact[name][:, 0], want, rtol=0, atol=tolerance)


def test_a_method_with_a_gradient_through_the_kl_divergence_trains() -> None:
    truly = model("CartPole-v1", "truly_ppo", variant="truly")
    alone = model("CartPole-v1", "truly_ppo", variant="tr_ppo", delta=0.03)
    assert not torch.equal(parameters(truly), parameters(alone))
    assert truly.history[-1]["kl_old_new"] >= 0


def test_trpo_stops_by_the_exact_mean() -> None:
    tight, wide = (model("CartPole-v1", "trpo", delta=d) for d in (1e-9, 1e9))
    assert tight.history[-1]["gated"] > 0.9
    assert wide.history[-1]["gated"] == 0
    assert "kl_old_new" in tight.history[-1]


def test_a_threshold_adapts() -> None:
    made = model("CartPole-v1", "atr", delta={"controller": "target_gate", "share": 0.3})
    assert made.method.inner.delta < 0.07
    assert made.history[-1]["threshold/delta"] < 0.07


def test_without_a_method_it_is_ppo_with_its_own_clip_and_its_own_log(monkeypatch) -> None:
    def trained(cls: type) -> tuple[Any, list[dict[str, Any]]]:
        logs: list[dict[str, Any]] = []
        made = cls("MlpPolicy", "CartPole-v1", clip_range=lambda left: 0.02 + 0.1 * left, **PPO)
        dump = made.dump_logs
        monkeypatch.setattr(
            made, "dump_logs", lambda *a: (logs.append(dict(made.logger.name_to_value)), dump(*a))
        )
        return made.learn(512), logs

    (own, log), (ours, logged) = trained(sb3.PPO), trained(ConstrainedPPO)
    assert torch.equal(parameters(own), parameters(ours))
    assert len(log) == len(logged) > 1 and "train/clip_range" in log[-1]
    for a, b in zip(log, logged, strict=True):
        for name in (name for name in a if name.startswith("train/")):
            if name == "train/clip_fraction":  # PPO counts tokens that move back inside, too
                assert b[name] <= a[name]
            else:
                assert b[name] == pytest.approx(a[name], rel=1e-3, abs=1e-6), name


def test_a_saved_model_goes_on_under_its_method(tmp_path: Path) -> None:
    """It pickled a copy of itself: `learn` after `load` moved the copy, and the policy by 0."""
    env = sb3.common.env_util.make_vec_env("CartPole-v1")
    adaptive = {"controller": "target_gate", "share": 0.3}
    made = model("CartPole-v1", "atr", delta=adaptive)
    made.save(tmp_path / "model")
    loaded = ConstrainedPPO.load(tmp_path / "model", env=env, device="cpu")
    method: Any = loaded.method
    assert method == made.method and method.inner.delta < 0.07
    assert torch.equal(parameters(loaded), parameters(made))
    loaded.learn(128)
    assert not torch.equal(parameters(loaded), parameters(made))
    assert len(loaded.history) == len(made.history) + 1 and loaded.history[-1]["gated"] > 0
    other = ConstrainedPPO.load(tmp_path / "model", env=env, method="kl2", device="cpu")
    assert other.method == tc.method("kl2")


def test_a_plain_ppo_does_not_train_a_constrained_model_unaware(tmp_path: Path) -> None:
    env = sb3.common.env_util.make_vec_env("CartPole-v1")
    model("CartPole-v1", "atr", steps=128).save(tmp_path / "model")
    plain = sb3.PPO.load(tmp_path / "model", env=env, device="cpu")
    plain.predict(plain.observation_space.sample())
    with pytest.raises(ValueError, match=r"under the method 'atr'.*ConstrainedPPO"):
        plain.learn(128)
    released = {"clip_range": 0.2}
    sb3.PPO.load(tmp_path / "model", env=env, custom_objects=released).learn(128)


def test_a_model_of_plain_ppo_goes_on_under_a_method(tmp_path: Path) -> None:
    env = sb3.common.env_util.make_vec_env("CartPole-v1")
    model("CartPole-v1", None, steps=128).save(tmp_path / "model")
    loaded = ConstrainedPPO.load(tmp_path / "model", env=env, method="atr", device="cpu")
    assert "gated" in loaded.learn(128).history[-1]


def test_saving_takes_no_environment_along(tmp_path: Path) -> None:
    """A model with subprocess environments, or captured output, could not be saved at all."""
    env = sb3.common.env_util.make_vec_env(
        "CartPole-v1",
        n_envs=2,
        vec_env_cls=sb3.common.vec_env.SubprocVecEnv,
        vec_env_kwargs={"start_method": "fork"},
    )
    try:
        made = ConstrainedPPO("MlpPolicy", env, method="atr", **PPO)
        made.learn(256, callback=CheckpointCallback(128, str(tmp_path), "ppo"))
        made.save(tmp_path / "ours")
    finally:
        env.close()
    model("CartPole-v1", None, steps=256).save(tmp_path / "plain")
    assert len([*tmp_path.glob("ppo_*.zip")]) == 1
    sizes = [(tmp_path / f"{name}.zip").stat().st_size for name in ("ours", "plain")]
    assert sizes[0] < 1.2 * sizes[1]


@pytest.mark.parametrize("method", ["clip", "full_kl"])
@pytest.mark.parametrize("space", ["multi_discrete", "multi_binary"])
def test_several_actions_at_once_are_one_token(space: str, method: str) -> None:
    env = {
        "multi_discrete": IdentityEnvMultiDiscrete, "multi_binary": IdentityEnvMultiBinary
    }[space]  # fmt: skip
    made = model(env(3), method)
    assert isinstance(made.action_space, spaces.MultiDiscrete | spaces.MultiBinary)
    assert made.history[-1]["k3"] > 0
    if method == "full_kl":
        assert made.history[-1]["kl_old_new"] == pytest.approx(made.history[-1]["k3"], rel=0.5)


def test_settings_without_an_effect_are_refused() -> None:
    with pytest.raises(ValueError, match=r"clip_range=0.05 has no effect together with a method"):
        ConstrainedPPO("MlpPolicy", "CartPole-v1", method="atr", clip_range=0.05)
    with pytest.raises(ValueError, match="use the method 'trpo'"):
        ConstrainedPPO("MlpPolicy", "CartPole-v1", method="atr", target_kl=0.05)
    with pytest.raises(ValueError, match="did you mean 'atr'"):
        ConstrainedPPO("MlpPolicy", "CartPole-v1", method="art")


@pytest.mark.parametrize(
    ("env", "method", "hyperparameters", "words"),
    [
        ("Pendulum-v1", "dppo", {}, "a density"),
        ("Pendulum-v1", "trgppo", {}, "a density"),
        ("Pendulum-v1", "cppo", {}, "a density"),
        ("Pendulum-v1", "tis", {"inner": "bandpo"}, "a density"),
        ("CartPole-v1", "dppo", {"divergence": "top_k_kl"}, "`top_k_kl`"),
    ],
)
def test_methods_that_a_space_cannot_supply_are_refused(
    env: str, method: str, hyperparameters: dict, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        model(env, method, **hyperparameters)
