#!/usr/bin/env bash
# Eight GPUs of one machine. Not tested on GPUs.
#   SHARD=ddp|fsdp2|zero2|zero3  SAMPLER=colocate|server  recipes/launch/8gpu.sh [--NAME VALUE ...]
# colocate: vLLM on all eight, beside training. server: vLLM on the last two, training on six,
# with 192 completions per generation.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
shard=${SHARD:-fsdp2}
sampler=${SAMPLER:-colocate}
model=${MODEL:-Qwen/Qwen3-8B-Base}
ranks=8
options=(--vllm_mode colocate)
if [ "$sampler" = server ]; then
  ranks=6
  export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5
  options=(--vllm_mode server --vllm_server_host 127.0.0.1 --vllm_server_port 8000)
  # A dense model is split over both: vLLM has no data parallelism for it under weight transfer.
  CUDA_VISIBLE_DEVICES=6,7 VLLM_SERVER_DEV_MODE=1 vllm serve "$model" --port 8000 \
    --tensor-parallel-size 2 --max-model-len 2048 --weight-transfer-config '{"backend":"nccl"}' \
    --logprobs-mode processed_logprobs --max-logprobs -1 &
  server=$!
  trap 'kill "$server"' EXIT
fi
launch=(accelerate launch --config_file "$here/$shard.yaml" --num_processes "$ranks")
"${launch[@]}" -m trustclip doctor --distributed \
  --gradient-accumulation-steps 2 --steps-per-generation 4 --use-vllm
"${launch[@]}" "$here/train.py" --config "$here/atr.yaml" --model "$model" "${options[@]}" "$@"
