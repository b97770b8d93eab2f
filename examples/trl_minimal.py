"""TRL's GRPOTrainer under ATR: `python examples/trl_minimal.py MODEL [OUT]`; a hub id or folder."""

import sys

from datasets import Dataset

from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer


def reward(completions: list[str], **_: object) -> list[float]:
    """Prefers short completions."""
    return [-len(text) / 100 for text in completions]


def main(model: str, out: str = "out", **more: object) -> ConstrainedGRPOTrainer:
    data = Dataset.from_dict({"prompt": [f"Say a number above {n}." for n in range(64)]})
    args = ConstrainedGRPOConfig(
        out, method={"name": "atr", "delta": 0.07}, num_iterations=2, max_steps=20, **more
    )
    trainer = ConstrainedGRPOTrainer(model, reward_funcs=reward, args=args, train_dataset=data)
    trainer.train()
    return trainer


if __name__ == "__main__":
    main(*sys.argv[1:])
