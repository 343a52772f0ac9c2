#!/usr/bin/env bash
#SBATCH --job-name=covey-baseline
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=24:00:00
#SBATCH --output=logs/slurm_%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#
# Qwen3 0.6B with its own vocabulary, on DeepScaleR's problems: what train_reasoning.sh is compared with.
# Submit it from the repository; arguments after the script's name are passed to the run:
#
#   sbatch slurm/train_baseline.sh [key=value …]
#
# It runs training.sh, and reads the same environment variables. Without Slurm: bash slurm/train_baseline.sh
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
if [[ ! -f $root/training.sh ]]; then root=${SLURM_SUBMIT_DIR:-$PWD}; fi # Slurm runs a copy from its spool folder
if [[ ! -f $root/training.sh ]]; then
  echo "covey: submit this script from the folder of the repository: there is no training.sh in $root." >&2
  exit 2
fi
exec bash "$root/training.sh" "$root/recipes/qwen3_0.6b/grpo/deepscaler.yaml" "$@"
