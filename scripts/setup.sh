#!/usr/bin/env bash
# Create, repair or update the environment that Covey runs in. Prints nothing when there is nothing to do.
#
#   scripts/setup.sh [EXTRA …]         for example: scripts/setup.sh dev docs
#
# Environment variables:
#   PYTHON             the interpreter that .venv is made with; default: python3 if new enough, else the newest found
#   COVEY_ENV=conda    a conda environment in .conda, made from environment.yml, instead of .venv
#   COVEY_TORCH_INDEX  an additional package index for PyTorch, for another build of it (such as CPU only)
#
# Exit codes: 0 the environment is ready, 2 a wrong call, 3 no usable Python or conda, 4 installing failed.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly root
readonly state=$root/.setup
readonly log=$state/install.log

say() { printf 'covey: %s\n' "$*" >&2; }

fail() {
  local code=$1
  shift
  say "$*"
  exit "$code"
}

# --- State ------------------------------------------------------------------------------------------------------------

checksum() {
  if [[ $kind == conda ]]; then set -- environment.yml; fi
  (cd "$root" && cat pyproject.toml constraints.txt "$@" | cksum)
}

# The stamp, written last, records what an environment holds: a checksum of the requirements, the folder (an environment
# does not survive being moved) and the extras.
read_stamp() {
  stamped_sum='' stamped_root='' stamped_extras=''
  if [[ -f $stamp ]]; then
    { read -r stamped_sum && IFS= read -r stamped_root && read -r stamped_extras; } <"$stamp" || true
  fi
}

write_stamp() { # checksum
  printf '%s\n%s\n%s\n' "$1" "$root" "$extras" >"$stamp.new"
  mv -f "$stamp.new" "$stamp"
}

is_ready() {
  local extra
  read_stamp
  [[ $stamped_sum == "$(checksum)" && $stamped_root == "$root" && -x $env/bin/covey ]] || return 1
  for extra in $wanted; do
    [[ " $stamped_extras " == *" $extra "* ]] || return 1
  done
  "$env/bin/python" -I -c '' 2>/dev/null
}

# What an environment needs before pip can do the rest. An incomplete one lacks it, or one whose Python is gone.
is_usable() {
  [[ -z $stamped_root || $stamped_root == "$root" ]] &&
    "$env/bin/python" -I -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# Only one installation at a time; the kernel releases the lock when its last holder ends, in whatever way.
take_lock() {
  if ! mkdir -p "$state" 2>/dev/null || [[ ! -w $state ]]; then
    fail 4 "cannot write in $root, where the environment is kept: make that folder writable, or clone Covey into one" \
      "that is, and run the same command again."
  fi
  exec 9>"$state/lock"
  if ! command -v flock >/dev/null; then
    say "the command flock is missing: do not start a second installation at the same time."
  elif ! flock -n 9; then
    say "another installation is running in $root: waiting for it to end."
    flock 9
  fi
}

# --- .venv ------------------------------------------------------------------------------------------------------------

# Sets `python` and `version`. A Python without venv is skipped if there is another one.
find_python() {
  local candidate old='' bare=''
  local candidates=(python3 python3.14 python3.13 python3.12 python3.11 python)
  if [[ -n ${PYTHON:-} ]]; then candidates=("$PYTHON"); fi
  for candidate in "${candidates[@]}"; do
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    if ! "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
      old+="${old:+, }$candidate is $version"
    elif ! "$candidate" -I -c 'import ensurepip, venv' 2>/dev/null; then
      bare=${bare:-$version}
    else
      python=$candidate
      return
    fi
  done
  if [[ -n $bare ]]; then
    fail 3 "Python $bare lacks the module venv or ensurepip, which makes environments. On Debian and" \
      "Ubuntu the package python$bare-venv has it (apt install python$bare-venv); elsewhere install a complete" \
      "Python 3.11 or newer and name it in the environment variable PYTHON."
  fi
  if [[ -n ${PYTHON:-} ]]; then
    fail 3 "the environment variable PYTHON names '$PYTHON', which is not Python 3.11 or newer${old:+ ($old)}:" \
      "name one that is, or unset PYTHON to search for one."
  fi
  fail 3 "Covey needs Python 3.11 or newer, and there is none on the PATH${old:+ ($old)}: install one, or, if it is" \
    "elsewhere, name it in the environment variable PYTHON, for example PYTHON=/opt/python3.12/bin/python3."
}

make_venv() {
  local python version
  find_python
  say "making .venv with $python (Python $version)."
  "$python" -I -m venv --clear "$env" >"$log" 2>&1 || failed "making the environment"
}

# --- .conda -----------------------------------------------------------------------------------------------------------

# Sets `conda`. In many shells conda is only a function; CONDA_EXE and MAMBA_EXE name the program behind it.
find_conda() {
  for conda in mamba micromamba conda "${MAMBA_EXE:-}" "${CONDA_EXE:-}"; do
    if [[ -n $conda ]] && command -v "$conda" >/dev/null; then return; fi
  done
  fail 3 "COVEY_ENV=conda asks for a conda environment, but none of mamba, micromamba and conda is on the PATH:" \
    "install one of them, or unset COVEY_ENV to use Python's own venv."
}

make_conda() {
  local conda
  local -a command=(env create)
  find_conda
  if [[ ${conda##*/} == micromamba* ]]; then command=(create); fi
  say "making .conda from environment.yml with ${conda##*/}: some minutes, once (progress in .setup/install.log)."
  rm -rf -- "$env"
  if [[ -n ${COVEY_TORCH_INDEX:-} ]]; then
    local -x PIP_EXTRA_INDEX_URL="${PIP_EXTRA_INDEX_URL:-} $COVEY_TORCH_INDEX"
  fi
  (cd "$root" && CONDA_ALWAYS_YES=true MAMBA_ALWAYS_YES=true \
    "$conda" "${command[@]}" --prefix "$env" --file environment.yml) >"$log" 2>&1 </dev/null ||
    failed "making the environment"
}

# --- Installing -------------------------------------------------------------------------------------------------------

failed() { # what was being done
  local hint="The lines above are the end of .setup/install.log: fix what they name"
  tail -n 15 "$log" >&2
  if grep -qi 'no space left\|disk quota' "$log"; then
    hint="The disk is full: free some space (about 2 GB; 8 GB with PyTorch's GPU builds)"
  elif grep -qi 'name resolution\|network is unreachable\|connection \(refused\|broken\)\|timed out' "$log"; then
    hint="The package index could not be reached: check the network, or pip's own settings"
  fi
  fail 4 "$1 failed. $hint, and run the same command again; it resumes from here."
}

# On a terminal, shows pip's current step in one line.
follow() {
  local line
  if [[ ! -t 2 ]]; then
    cat >>"$log"
    return
  fi
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$log"
    line=${line#"${line%%[! ]*}"}
    case $line in
      Collecting* | Downloading* | Installing* | Building*) printf '\r\033[K  %.70s' "$line" >&2 ;;
    esac
  done
  printf '\r\033[K' >&2
}

install() {
  local constraints=constraints.txt
  local spec=.${extras:+"[${extras// /,}]"}
  local -a options=(--disable-pip-version-check --no-input)
  if [[ " $extras " == *" vllm "* ]]; then # vLLM needs an older transformers than the tested one
    constraints=$state/constraints.txt
    grep -v '^transformers==' "$root/constraints.txt" >"$constraints"
  fi
  if [[ -n ${COVEY_TORCH_INDEX:-} ]]; then options+=(--extra-index-url "$COVEY_TORCH_INDEX"); fi
  say "installing Covey and its dependencies into ${env##*/}${extras:+ (with $extras)}: a minute or two, once."
  : >"$log"
  # -I and PIP_USER=0: keep the caller's Python settings out of the environment.
  (cd "$root" && PIP_USER=0 "$env/bin/python" -I -m pip install "${options[@]}" -c "$constraints" -e "$spec" 2>&1) |
    follow || failed "installing"
}

main() {
  local extra
  kind=venv
  case ${COVEY_ENV:-venv} in
    venv) env=$root/.venv ;;
    conda) kind=conda env=$root/.conda ;;
    *) fail 2 "COVEY_ENV is '$COVEY_ENV'; it can be 'conda', or 'venv', which is the default." ;;
  esac
  stamp=$env/covey-setup
  wanted=$*
  if is_ready; then return; fi
  take_lock
  if is_ready; then return; fi # the installation we waited for has done it

  extras=$stamped_extras # extras stay: `make setup`, then `training.sh`, loses no developer tools
  for extra in $wanted; do
    if [[ " $extras " != *" $extra "* ]]; then extras+="${extras:+ }$extra"; fi
  done
  trap 'say "interrupted: run the same command again to resume."; exit 130' INT TERM
  is_usable || "make_$kind"
  write_stamp unfinished
  install
  write_stamp "$(checksum)"
  say "ready."
}

main "$@"
