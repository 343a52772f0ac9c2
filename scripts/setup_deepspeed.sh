#!/usr/bin/env bash
# Make .venv-deepspeed for `make test-deepspeed`: DeepSpeed beside what .venv has, and its extension for collectives on the
# CPU, compiled: a few minutes, once. Needs a C++ compiler.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly env=.venv-deepspeed
# DeepSpeed, and those of its requirements that .venv lacks; pydantic is there or comes with them.
DS_BUILD_OPS=0 bash scripts/setup_beside.sh "$env" \
  'deepspeed==0.19.8' einops hjson msgpack ninja py-cpuinfo pydantic setuptools
if [[ -d $env/extensions ]]; then exit 0; fi
printf 'covey: compiling its extension: a minute or more.\n' >&2
DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$PWD/$env/extensions PATH=$PWD/$env/bin:$PATH "$env/bin/python" -c '
from deepspeed.accelerator import get_accelerator

get_accelerator().create_op_builder("ShareMemCommBuilder").load()
' >"$env/extensions.log" 2>&1 ||
  { tail -n 20 "$env/extensions.log" >&2 && rm -rf "$env/extensions" && exit 1; }
