"""Names of metrics in six more trainers, from their sources, and ours.

A name is here only where the quantity is ours: of `VALUES` the same number, of `NEGATIVE` with the
other sign. SkyRL's ``policy/rollout_train_prob_diff_mean`` (a mean of exponentials, which one token
can make millions) and ROLL's ``actor/train_infer_diff_mean`` (of probabilities, not logarithms)
are not.
"""

from collections.abc import Sequence

from trustclip.support.jsonl import Row

#: NeMo RL. It logs no share of clipped tokens, and KLs as k3 unless told otherwise.
_NEMO_RL = {
    "probs_ratio": "trustclip/ratio",
    "gen_kl_error": "trustclip/sampler/k3",
    "token_mult_prob_error": "trustclip/sampler/exp_abs",
    "approx_entropy": "entropy",
    "kl_penalty": "kl",
    "mean_gen_tokens_per_sample": "completions/mean_length",
}
_SKYRL = {
    "policy/ppo_clip_ratio": "trustclip/gated",
    "policy/policy_entropy": "entropy",
    "policy/policy_kl": "kl",
    "policy/raw_grad_norm": "grad_norm",
    "policy/grad_norm": "grad_norm",
    "policy/policy_lr": "learning_rate",
    "reward/avg_raw_reward": "reward",
    "generate/avg_num_tokens": "completions/mean_length",
}
#: slime, and miles, which is made from it.
_SLIME = {
    "pg_clipfrac": "trustclip/gated",
    "ppo_kl": "trustclip/k1",
    "entropy_loss": "entropy",
    "kl_loss": "kl",
    "tis_clipfrac": "weight_capped",
    "train_rollout_logprob_abs_diff": "trustclip/sampler/abs",
    "rollout/raw_reward": "reward",
    "rollout/response_len/mean": "completions/mean_length",
    "rollout/truncated_ratio": "completions/clipped_ratio",
}
_OPENRLHF = {
    "ppo_clip_ratio": "trustclip/gated",
    "policy_clip_ratio": "trustclip/gated",
    "ppo_kl": "trustclip/k1",
    "policy_kl": "trustclip/k1",
    "vllm_kl": "trustclip/sampler/k1",
    "entropy_loss": "entropy",
    "actor_grad_norm": "grad_norm",
    "actor_lr": "learning_rate",
    "response_length": "completions/mean_length",
}
_AREAL = {
    "ppo_actor/update/clip_ratio/avg": "trustclip/gated",
    "ppo_actor/update/dual_clip_ratio/avg": "trustclip/gated/negative_above",
    "ppo_actor/update/approx_kl/avg": "trustclip/k1",
    "ppo_actor/update/behave_approx_kl/avg": "trustclip/sampler/k1",
    "ppo_actor/update/importance_weight/avg": "trustclip/ratio",
    "ppo_actor/update/entropy/avg": "entropy",
    "ppo_actor/update/grad_norm": "grad_norm",
    "ppo_actor/update/lr": "learning_rate",
    "ppo_actor/task_reward/avg": "reward",
    "ppo_actor/no_eos_ratios/avg": "completions/clipped_ratio",
}
#: ROLL shares names with verl (``actor/kl_loss``, ``critic/rewards/mean``).
_ROLL = {
    "actor/clipfrac": "trustclip/gated",
    "actor/policykl": "trustclip/k1",
    "actor/ratio_mean": "trustclip/ratio",
    "critic/entropy/mean": "entropy",
    "actor_train/grad_norm": "grad_norm",
    "tokens/response_length/mean": "completions/mean_length",
}
#: torchforge has one ratio, of the trainer to the sampler.
_TORCHFORGE = {
    "loss/clip/high_fraction": "trustclip/gated/positive_above",
    "loss/clip/low_fraction": "trustclip/gated/negative_below",
    "loss/ratio/mean": "trustclip/ratio",
    "loss/kl_policy/mean": "trustclip/k1",
    "loss/entropy/mean": "entropy",
    "loss/kl_ref/mean": "kl",
}

#: Trainer -> its table.
VALUES = {
    "NeMo RL": _NEMO_RL,
    "SkyRL": _SKYRL,
    "slime": _SLIME,
    "OpenRLHF": _OPENRLHF,
    "AReaL": _AREAL,
    "ROLL": _ROLL,
    "torchforge": _TORCHFORGE,
}
#: Logged as new minus old, where our estimates are old minus new.
NEGATIVE = {
    "ppo_actor/update/approx_kl/avg",
    "ppo_actor/update/behave_approx_kl/avg",
    "actor/policykl",
}
#: Trainers whose ratio is to the sampler, with no third policy.
TWO_POLICIES = {"torchforge"}
#: Names that only one of them has.
MARKS = {
    name: trainer
    for trainer, names in {
        "NeMo RL": ("gen_kl_error", "token_mult_prob_error", "probs_ratio"),
        "SkyRL": ("policy/ppo_clip_ratio", "policy/policy_entropy", "reward/avg_raw_reward"),
        "slime": ("train_rollout_logprob_abs_diff", "rollout/raw_reward", "pg_clipfrac"),
        "OpenRLHF": ("ppo_clip_ratio", "policy_clip_ratio", "vllm_kl"),
        "AReaL": ("ppo_actor/update/clip_ratio/avg", "ppo_actor/update/approx_kl/avg"),
        "ROLL": ("actor/clipfrac", "actor/ppo_ratio_clipfrac", "actor_train/grad_norm"),
        "torchforge": ("loss/clip/high_fraction", "loss/kl_policy/mean"),
    }.items()
    for name in names
}


def trainer_of(plain: list[str]) -> str | None:
    """Which of these trainers logs such names, without ``train/`` and ``@sum``; None for none.

    Example:
      >>> trainer_of(["loss", "gen_kl_error"]), trainer_of(["actor/pg_clipfrac"])
      ('NeMo RL', None)
    """
    return next((MARKS[name] for name in plain if name in MARKS), None)


def missing(trainer: str, rows: Sequence[Row]) -> list[str]:
    """What the metrics of one of these trainers leave open."""

    def has(*names: str) -> bool:
        return any(name in row for row in rows for name in names)

    gaps = []
    if not has("trustclip/gated"):
        gaps.append(f"the share of clipped tokens ({trainer} logged none)")
    if not has("trustclip/k1", "trustclip/ratio"):
        gaps.append("how far the policy moved within a generation")
    if not has("trustclip/sampler/k3", "trustclip/sampler/k1", "trustclip/sampler/abs"):
        gaps.append("whether the sampler differs")
    return [*gaps, "the share of groups with equal rewards", "which tokens were clipped"]
