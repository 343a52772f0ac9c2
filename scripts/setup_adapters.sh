#!/usr/bin/env bash
# Make .venv-adapters for `make test-adapters`: the libraries of environments beside what .venv has. A minute or two,
# once. A separate environment, because openenv-core needs an older pillow than the tested one.
#
# Environment variables:
#   PYTHON  the interpreter to make it with; default: that of .venv
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly env=.venv-adapters
readonly -a wanted=('reasoning-gym==0.1.25' 'openenv-core==0.3.*')
readonly stamp=$env/covey-setup

checksum() { { pwd && cat pyproject.toml constraints.txt scripts/setup_adapters.sh; } | cksum; }

if [[ -f $stamp && $(<"$stamp") == "$(checksum)" ]]; then exit 0; fi
printf 'covey: making %s with reasoning-gym and openenv-core: a minute or two, once.\n' "$env" >&2
"${PYTHON:-.venv/bin/python}" -m venv --clear "$env"

constraints=$env/constraints.txt
grep -v '^pillow==' constraints.txt >"$constraints"
"$env/bin/python" -m pip install --disable-pip-version-check --no-input --quiet -c "$constraints" "${wanted[@]}"
# What .venv has comes after it on the path; written last, so that pip does not take those packages for its own.
# `addsitedir` also reads the paths of editable packages, such as this one.
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf 'import site; site.addsitedir("%s")\n' "$site" \
  >"$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/covey-venv.pth"
checksum >"$stamp"
