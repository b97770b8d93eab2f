#!/usr/bin/env bash
# DDP with exact continuation after a kill: a whole recipe under torch's launcher. Tested with two
# ranks on a CPU; not tested on GPUs. Start the same command again to continue.
#   RANKS=8 recipes/launch/torchrun.sh RECIPE [--SECTION.NAME VALUE ...]
set -euo pipefail
recipe=$1
shift
launch=(torchrun --standalone --nproc-per-node "${RANKS:-8}" --shutdown-timeout 10 -m trustclip)
"${launch[@]}" doctor --distributed "$recipe"
exec "${launch[@]}" run "$recipe" "$@"
