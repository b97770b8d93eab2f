"""Several turns with an environment: `python examples/multi_turn.py [OUT]`, ten seconds of CPU.

A model that knows nothing writes a line, a tool answers how many plain letters are in it, and the
model writes a second line; the reward is the number of letters per token of both. `rollout_func`
of TRL plays the turns and says by `env_mask` which tokens the tool wrote: no gradient, no gate and
no metric counts these.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback

import trustclip as tc
from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer
from trustclip.train.tiny import tiny_model

TURN = 6  # most tokens of one turn


def count_letters(text: str) -> str:
    """The tool: what it returns goes back to the model."""
    return f"[{sum(c.isascii() and c.isalpha() for c in text)} letters]"


def letters(completions: list[str], turns: list[list[str]], **_: Any) -> list[float]:
    """Plain letters per token of a turn, over both turns; TRL hands on what the rollout has."""
    shares = [[sum(c.isascii() and c.isalpha() for c in t) / TURN for t in own] for own in turns]
    return [sum(each) / len(each) for each in shares]


@torch.no_grad()
def turn(model: Any, ids: list[int], ends: set[int], temperature: float) -> tuple[Any, Any]:
    """Tokens of one turn, and the log-probabilities that they were drawn with."""
    tokens: list[int] = []
    logps: list[float] = []
    while len(tokens) < TURN and not ends & set(tokens):
        logits = model(torch.tensor([ids + tokens])).logits[0, -1].float() / temperature
        token = int(torch.multinomial(logits.softmax(-1), 1))
        tokens.append(token)
        logps.append(logits.log_softmax(-1)[token].item())
    return tokens, logps


def play(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Two turns with the tool between them, for every prompt; a `rollout_func` of TRL."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    tokenizer, ends = trainer.processing_class, set(trainer.eos_token_ids)
    played: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "turns")
    }
    for prompt in prompts:
        prompt_ids = tokenizer.encode(prompt)
        first, of_first = turn(model, prompt_ids, ends, trainer.temperature)
        said = tokenizer.decode(first, skip_special_tokens=True)
        answer = tokenizer.encode(count_letters(said))
        second, of_second = turn(model, prompt_ids + first + answer, ends, trainer.temperature)
        played["prompt_ids"].append(prompt_ids)
        played["completion_ids"].append(first + answer + second)
        # The tool's tokens were not drawn from the policy: their place is taken, and masked.
        played["logprobs"].append(of_first + [0.0] * len(answer) + of_second)
        played["env_mask"].append([1] * len(first) + [0] * len(answer) + [1] * len(second))
        played["turns"].append([said, tokenizer.decode(second, skip_special_tokens=True)])
    return played


def main(out: str = "out", updates: int = 24, rollout: Any = play) -> ConstrainedGRPOTrainer:
    torch.set_num_threads(1)
    model, tokenizer = tiny_model(seed=1, layers=1, hidden=64)
    args = ConstrainedGRPOConfig(
        out, method={"name": "atr", "delta": 0.07}, num_iterations=3, num_generations=8,
        per_device_train_batch_size=32, max_completion_length=40, learning_rate=1e-2,
        max_steps=updates, loss_type="dr_grpo", scale_rewards="none", logging_steps=1,
        save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, bf16=False,
    )  # fmt: skip
    trainer = ConstrainedGRPOTrainer(
        model,
        reward_funcs=letters,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [f"Line {n}: " for n in range(32)]}),
        processing_class=tokenizer,
        rollout_func=rollout,
        callbacks=[tc.Recorder(Path(out) / "run", tokens_every=2)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    print("mean reward of each generation:", " ".join(f"{reward:.2f}" for reward in rewards))
    return trainer


if __name__ == "__main__":
    main(*sys.argv[1:])
