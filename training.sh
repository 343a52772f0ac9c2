#!/usr/bin/env bash
# Train with Covey. The first call makes the environment (a minute or two); later ones start at once.
#
#   bash training.sh                             the built-in starter model on arithmetic: minutes, without a GPU
#   bash training.sh RECIPE [key=value …]        a recipe, with changes
#   bash training.sh dataset=gsm8k dataset.path=FILE
#
# Everything after `training.sh` goes to `covey train`; files and folders are looked for from where you are.
#
# Environment variables:
#   CONFIG=RECIPE      the recipe, in place of the first argument
#   RUN_NAME=NAME      the run's name, as run_name=NAME
#   PYTHON, COVEY_ENV, COVEY_TORCH_INDEX   how the environment is made: see scripts/setup.sh
set -euo pipefail

# The folder of this file, also when it is called through a symbolic link. Not so under `sbatch training.sh`: Slurm runs
# a copy from its spool folder, and home is then where the job was submitted (SLURM_SUBMIT_DIR) or what scontrol names.
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

root=$(find_root)
if [[ ! -f $root/scripts/setup.sh ]]; then
  echo "covey: training.sh works from inside its repository, and $root is not that: there is no scripts/setup.sh." \
    "Call it where it is, or through a symbolic link; a copy cannot find the rest." >&2
  exit 2
fi

case ${1:-} in
  '' | *=* | [-+~]*) ;; # no recipe among the arguments
  *)
    if [[ -n ${CONFIG:-} ]]; then
      echo "covey: the recipe is named twice: '$CONFIG' in the environment variable CONFIG, and '$1' on the command" \
        "line. Leave one of them out." >&2
      exit 2
    fi
    ;;
esac
if [[ -n ${RUN_NAME:-} ]]; then # quoted, so that 007 stays a name; the command line comes later and wins
  set -- "run_name='${RUN_NAME//\'/\\\'}'" "$@"
fi
if [[ -n ${CONFIG:-} ]]; then
  set -- "$CONFIG" "$@"
fi

bash "$root/scripts/setup.sh"
environment=.venv
if [[ ${COVEY_ENV:-} == conda ]]; then environment=.conda; fi
exec "$root/$environment/bin/covey" train "$@"
