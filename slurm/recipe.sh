#!/usr/bin/env bash
# Train by one of the repository's recipes, wherever it is called from: what the jobs' scripts beside this one share.
#
#   bash slurm/recipe.sh qwen3_0.6b/grpo/deepscaler.yaml [key=value …]
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
exec bash "$root/training.sh" "$root/recipes/$1" "${@:2}"
