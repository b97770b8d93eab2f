"""GRPO in one file of plain PyTorch: a tiny language model learns to repeat, under a constraint.

    python examples/grpo_loop.py --method atr --generations 40

A prompt is a digit; a good completion repeats it. Groups of completions of one prompt give the
advantages, several updates are made with each generation, and `trustclip.policy_loss` bounds how
far they move the policy. Half a minute on one CPU core.
"""

import argparse

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import trustclip as tc

DIGITS, LENGTH = 10, 6  # vocabulary; tokens of a completion
PROMPTS, GROUP, UPDATES = 16, 8, 4  # prompts of a generation, completions of each, updates with it


def make_model() -> Qwen3ForCausalLM:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=DIGITS, **sizes, **heads))


@torch.no_grad()
def sample(model: Qwen3ForCausalLM, prompts: torch.Tensor) -> torch.Tensor:
    """Prompts [N, 1] with completions drawn from the policy: [N, 1 + LENGTH]."""
    tokens = prompts
    for _ in range(LENGTH):
        chances = model(tokens).logits[:, -1].softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1)], dim=1)
    return tokens


def log_probs(model: Qwen3ForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the completions' tokens: [N, LENGTH]."""
    scores = model(tokens).logits[:, :-1].float().log_softmax(-1)
    return scores.gather(-1, tokens[:, 1:, None]).squeeze(-1)


def reward(tokens: torch.Tensor) -> torch.Tensor:
    """Share of a completion's tokens that repeat the prompt: [N]."""
    return (tokens[:, 1:] == tokens[:, :1]).float().mean(1)


def train(method: str, generations: int, seed: int = 0) -> list[float]:
    """Mean reward of each generation."""
    torch.manual_seed(seed)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    constraint, rewards = tc.method(method), []
    for generation in range(generations):
        prompts = torch.randint(DIGITS, (PROMPTS, 1)).repeat_interleave(GROUP, dim=0)
        tokens = sample(model, prompts)
        got = reward(tokens)
        groups = got.view(PROMPTS, GROUP)
        advantages = (groups - groups.mean(1, keepdim=True)).flatten()  # Dr. GRPO: no deviation
        with torch.no_grad():
            old = log_probs(model, tokens)

        gated = torch.zeros(2)
        for _ in range(UPDATES):
            logp = log_probs(model, tokens)
            batch = tc.TokenBatch(
                logp=logp,
                logp_old=old,
                advantages=advantages[:, None].expand_as(logp),
                mask=torch.ones_like(logp, dtype=torch.bool),
            )
            loss = tc.policy_loss(constraint, batch, aggregation="dr_grpo", max_length=LENGTH)
            optimizer.zero_grad()
            loss.value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            gated += torch.stack(loss.metrics["gated"]).float()  # sums and counts add up
        rewards.append(got.mean().item())
        share = (gated[0] / gated[1]).item()
        print(f"generation {generation:3d}  reward {rewards[-1]:.3f}  gated {share:.2%}")
    return rewards


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="atr", help="any of `trustclip methods`")
    parser.add_argument("--generations", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    train(chosen.method, chosen.generations, chosen.seed)
