#!/usr/bin/env bash
# Two machines of eight GPUs: start it on both, with NODE=0 on the first and NODE=1 on the second,
# and the first one's address in MASTER. Not tested on GPUs.
#   NODE=0 MASTER=10.0.0.1 SHARD=ddp|fsdp2|zero2|zero3 recipes/launch/2x8gpu.sh [--NAME VALUE ...]
# SAMPLER=server: vLLM is on a third machine, SERVER, started there by
#   VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --tensor-parallel-size 8 --max-model-len 2048 \
#     --weight-transfer-config '{"backend":"nccl"}' --logprobs-mode processed_logprobs --max-logprobs -1
# If a rank is lost or hangs, the job ends after ddp_timeout (in atr.yaml).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
shard=${SHARD:-fsdp2}
model=${MODEL:-Qwen/Qwen3-8B-Base}
options=(--vllm_mode colocate)
if [ "${SAMPLER:-colocate}" = server ]; then
  options=(--vllm_mode server --vllm_server_host "$SERVER" --vllm_server_port 8000)
fi
launch=(accelerate launch --config_file "$here/$shard.yaml" --num_processes 16 --num_machines 2
  --machine_rank "$NODE" --main_process_ip "$MASTER" --main_process_port 29500)
"${launch[@]}" -m trustclip doctor --distributed \
  --gradient-accumulation-steps 1 --steps-per-generation 2 --use-vllm
"${launch[@]}" "$here/train.py" --config "$here/atr.yaml" --model "$model" \
  --gradient_accumulation_steps 1 --steps_per_generation 2 "${options[@]}" "$@"
