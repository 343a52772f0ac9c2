#!/usr/bin/env bash
# Make .venv-deepspeed for `make test-deepspeed`: DeepSpeed beside what .venv has, and its extension for collectives on the
# CPU, compiled: a few minutes, once. Needs a C++ compiler.
#
# Environment variables:
#   PYTHON  the interpreter to make it with; default: that of .venv
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly env=.venv-deepspeed
# DeepSpeed, and those of its requirements that .venv lacks; pydantic is there or comes with them.
readonly -a wanted=('deepspeed==0.19.8' einops hjson msgpack ninja py-cpuinfo pydantic setuptools)
readonly stamp=$env/covey-setup

checksum() { { pwd && cat pyproject.toml constraints.txt scripts/setup_deepspeed.sh; } | cksum; }

if [[ -f $stamp && $(<"$stamp") == "$(checksum)" ]]; then exit 0; fi
printf 'covey: making %s with DeepSpeed: a few minutes, once.\n' "$env" >&2
"${PYTHON:-.venv/bin/python}" -m venv --clear "$env"

# What .venv has comes after it on the path: PyTorch is not installed a second time.
# `addsitedir` also reads the paths of editable packages, such as this one.
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf 'import site; site.addsitedir("%s")\n' "$site" \
  >"$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/covey-venv.pth"
DS_BUILD_OPS=0 "$env/bin/python" -m pip install --disable-pip-version-check --no-input --quiet \
  -c constraints.txt "${wanted[@]}"
printf 'covey: compiling its extension: a minute or more.\n' >&2
DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$PWD/$env/extensions PATH=$PWD/$env/bin:$PATH "$env/bin/python" -c '
from deepspeed.accelerator import get_accelerator

get_accelerator().create_op_builder("ShareMemCommBuilder").load()
' >"$env/extensions.log" 2>&1 || { tail -n 20 "$env/extensions.log" >&2 && exit 1; }
checksum >"$stamp"
