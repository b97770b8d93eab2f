#!/usr/bin/env bash
# One GPU: vLLM shares it with training. Not tested on GPUs.
#   recipes/launch/1gpu.sh [RECIPE] [--SECTION.NAME VALUE ...]
set -euo pipefail
recipe=${1:-recipes/paper-qwen3-1.7b.yaml}
shift || true
trustclip doctor --distributed "$recipe"
exec trustclip run "$recipe" --rl.use_vllm true \
  --trl.vllm_mode colocate --trl.vllm_gpu_memory_utilization 0.3 "$@"
