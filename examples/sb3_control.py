"""The same constraint in Stable-Baselines3's PPO: `python examples/sb3_control.py`.

About 45 seconds of CPU time, silent until its one line.
"""

from stable_baselines3.common.evaluation import evaluate_policy

from trustclip_lab.control.sb3 import ConstrainedPPO


def main(steps: int = 20_000) -> float:
    """Mean return of 16 episodes after training."""
    model = ConstrainedPPO(
        "MlpPolicy", "CartPole-v1", method={"name": "atr", "delta": 0.05}, seed=0
    )
    model.learn(steps)
    score, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=16)
    print(f"mean return {score:.0f} of 500")
    return float(score)


if __name__ == "__main__":
    main()
