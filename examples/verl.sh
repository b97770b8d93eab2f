#!/usr/bin/env bash
# verl's own trainer under ATR: examples/verl.sh MODEL TRAIN.parquet TEST.parquet
# `trustclip doctor --verl` says first what is wrong with the configuration that verl prints.
set -euo pipefail
model=$1 train=$2 test=$3
settings=(
  data.train_files="$train" data.val_files="$test" data.train_batch_size=128
  data.max_prompt_length=512 data.max_response_length=1536
  actor_rollout_ref.model.path="$model"
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8
  # Four updates with each generation: with one, every ratio is 1 and no constraint acts.
  actor_rollout_ref.actor.ppo_mini_batch_size=32
  actor_rollout_ref.actor.policy_loss._target_=trustclip.engines.verl.TrustclipLossConfig
  actor_rollout_ref.actor.policy_loss.loss_mode=trustclip
  '+actor_rollout_ref.actor.policy_loss.method={name: atr, delta: 0.07}'
  algorithm.adv_estimator=grpo
)
python -m verl.trainer.main_ppo "${settings[@]}" --cfg job --resolve > verl.yaml
trustclip doctor --verl verl.yaml
exec python -m verl.trainer.main_ppo "${settings[@]}"
