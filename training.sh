#!/usr/bin/env bash
#SBATCH --job-name=covey
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=01:00:00
#SBATCH --output=logs/slurm_%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#
# Train with Covey. The first call makes the environment (a minute or two); later ones start at once.
#
#   bash training.sh                             the built-in starter model on arithmetic: minutes, without a GPU
#   bash training.sh RECIPE [key=value …]        a recipe, with changes
#   bash training.sh dataset=gsm8k dataset.path=FILE
#   sbatch training.sh                           the same as a Slurm job. The lines above ask for what the starter needs;
#                                                options of sbatch override them, and a larger recipe needs them:
#   sbatch --gres=gpu:7 --cpus-per-task=64 --mem=256G --time=72:00:00 --exclusive training.sh RECIPE [key=value …]
#   covey launch RECIPE --slurm launch.gpus=7    the same; what it asks for is in the recipe, as launch.slurm.*
#
# Before its time limit a job writes a checkpoint and is requeued.
#
# Everything after `training.sh` is passed to `covey launch`; paths are relative to the current folder. It comes after
# the overrides from the environment variables, so it wins.
#
# Environment variables:
#   CONFIG=RECIPE      the recipe, instead of the first argument
#   RUN_NAME=NAME      the run's name, as run_name=NAME
#   MAXENT=1           the maximum-entropy objective, as objective=maxent
#   CONFIG_FILE=FILE   an accelerate config, as launch.accelerate=FILE
#   VLLM_MODEL, VLLM_PORT, VLLM_TP_SIZE, VLLM_MAX_LEN, VLLM_MEM_UTIL
#                      launch.vllm_model and training.vllm_{server_port, tensor_parallel_size, max_model_length,
#                      gpu_memory_utilization}, and launch.vllm_own_gpu=true: a recipe with vLLM gets a server for it
#   TRAIN_ENTRYPOINT=FILE   a Python script that is run instead of `covey launch`, with the same arguments. Where there
#                      is no such file, src/grpo.py means objective=grpo and src/maxent-grpo.py objective=maxent
#   PYTHON, COVEY_ENV, COVEY_TORCH_INDEX   how the environment is made: see scripts/setup.sh
set -euo pipefail

# The folder of this file, also if called through a symbolic link. Under `sbatch training.sh` Slurm runs a copy from its
# spool folder; the root is then where the job was submitted (SLURM_SUBMIT_DIR), or what scontrol names.
find_root() {
  local self=${BASH_SOURCE[0]} target
  while [[ -L $self ]]; do
    target=$(readlink -- "$self")
    case $target in
      /*) self=$target ;;
      *) self=$(dirname -- "$self")/$target ;;
    esac
  done
  CDPATH='' cd -- "$(dirname -- "$self")" && pwd -P
}

# The path of the script as it was given to sbatch.
submitted_script() {
  scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/^ *Command=\(.*training\.sh\).*/\1/p' | head -n 1
}

root=$(find_root)
if [[ ! -f $root/scripts/setup.sh && -n ${SLURM_JOB_ID:-} ]]; then
  root=${SLURM_SUBMIT_DIR:-$PWD}
  if [[ ! -f $root/scripts/setup.sh ]]; then root=$(dirname -- "$(readlink -f -- "$(submitted_script)")"); fi
fi
if [[ ! -f $root/scripts/setup.sh ]]; then
  echo "covey: training.sh must be in its repository, and $root is not that: it has no scripts/setup.sh." \
    "Call it in the repository, or through a symbolic link; a copy cannot find the other files." >&2
  exit 2
fi

fail() {
  echo "covey: $*" >&2
  exit 2
}

recipe=()
case ${1:-} in
  '' | *=* | [-+~]*) ;; # no recipe among the arguments
  *)
    if [[ -n ${CONFIG:-} ]]; then
      fail "the recipe is named twice: '$CONFIG' in the environment variable CONFIG, and '$1' on the command line." \
        "Leave one of them out."
    fi
    recipe=("$1")
    shift
    ;;
esac
if [[ -n ${CONFIG:-} ]]; then recipe=("$CONFIG"); fi

# The environment variables as overrides.
asked=()
set_text() { # key, value; quoted, so that 007 stays a name
  local value=$2
  if [[ -z $value ]]; then return; fi
  value=${value//\\\'/\\\\\'} # within Hydra's quotes a backslash is literal, except before a quote
  if [[ $value == *\\ ]]; then value+=\\; fi
  asked+=("$1='${value//\'/\\\'}'")
}
set_number() { # key, environment variable
  local value=${!2:-}
  if [[ -z $value ]]; then return; fi
  if [[ ! $value =~ ^[0-9]*\.?[0-9]+$ ]]; then fail "the environment variable $2 is '$value', which is not a number."; fi
  asked+=("$1=$value")
}
set_text run_name "${RUN_NAME:-}"
entrypoint=${TRAIN_ENTRYPOINT:-} objective=
if [[ -n $entrypoint && ! -f $entrypoint ]]; then # the MaxEnt-GRPO project's scripts, one for each objective
  case ${entrypoint##*/} in
    grpo.py) objective=grpo ;;
    maxent-grpo.py | maxent_grpo.py) objective=maxent ;;
    *)
      fail "the environment variable TRAIN_ENTRYPOINT names '$entrypoint', and there is no such file (seen from" \
        "$PWD). Name a Python script, or src/grpo.py or src/maxent-grpo.py for the objective."
      ;;
  esac
  entrypoint=
fi
case ${MAXENT:-0} in
  0) ;;
  1)
    if [[ $objective == grpo ]]; then
      fail "MAXENT=1 asks for the maximum-entropy objective and TRAIN_ENTRYPOINT=$TRAIN_ENTRYPOINT for GRPO:" \
        "leave one of them out."
    fi
    objective=maxent
    ;;
  *) fail "the environment variable MAXENT is '$MAXENT'; it must be 1, for the maximum-entropy objective, or 0." ;;
esac
if [[ -n $objective ]]; then asked+=("objective=$objective"); fi
set_text launch.accelerate "${CONFIG_FILE:-}"
if [[ -n ${VLLM_MODEL:-}${VLLM_PORT:-}${VLLM_TP_SIZE:-}${VLLM_MAX_LEN:-}${VLLM_MEM_UTIL:-} ]]; then
  asked+=(launch.vllm_own_gpu=true)
fi
set_text launch.vllm_model "${VLLM_MODEL:-}"
set_number training.vllm_server_port VLLM_PORT
set_number training.vllm_tensor_parallel_size VLLM_TP_SIZE
set_number training.vllm_max_model_length VLLM_MAX_LEN
set_number training.vllm_gpu_memory_utilization VLLM_MEM_UTIL
set -- ${recipe[@]+"${recipe[@]}"} ${asked[@]+"${asked[@]}"} "$@" # old bash's `set -u` treats an empty list as unset

# A job with the CPUs and memory of the header: the launcher says what a larger model needs.
if [[ -n ${SLURM_JOB_ID:-} && ${SLURM_CPUS_PER_TASK:-} == 4 && ${SLURM_MEM_PER_NODE:-} == 8192 ]]; then
  export COVEY_STARTER_JOB=$SLURM_JOB_ID
fi

bash "$root/scripts/setup.sh"
environment=.venv
if [[ ${COVEY_ENV:-} == conda ]]; then environment=.conda; fi
if [[ -n $entrypoint ]]; then exec "$root/$environment/bin/python" "$entrypoint" "$@"; fi
exec "$root/$environment/bin/covey" launch "$@"
