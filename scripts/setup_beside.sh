#!/usr/bin/env bash
# Make an environment beside .venv for tests of packages that .venv lacks: those packages, and after them on the path what
# .venv has, so that PyTorch is not installed a second time. A minute or two, once.
#
#   scripts/setup_beside.sh ENV [--without PACKAGE] REQUIREMENT …
#
# Environment variables:
#   PYTHON  the interpreter to make it with; default: that of .venv
# With `--without`, that package may have another version than in .venv.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly env=$1 stamp=$1/covey-setup
shift
without=''
if [[ $1 == --without ]]; then
  without=$2
  shift 2
fi

checksum() { { pwd && printf '%s\n' "$@" && cat pyproject.toml constraints.txt scripts/setup_beside.sh; } | cksum; }

if [[ -f $stamp && $(<"$stamp") == "$(checksum "$@")" ]]; then exit 0; fi
printf 'covey: making %s with %s: a minute or two, once.\n' "$env" "$*" >&2
"${PYTHON:-.venv/bin/python}" -m venv --clear "$env"

constraints=$env/constraints.txt
grep -v "^$without==" constraints.txt >"$constraints"
"$env/bin/python" -m pip install --disable-pip-version-check --no-input --quiet -c "$constraints" "$@"
# Written last, so that pip does not take .venv's packages for its own. `addsitedir` also reads the paths of editable
# packages, such as this one.
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf 'import site; site.addsitedir("%s")\n' "$site" \
  >"$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/covey-venv.pth"
checksum "$@" >"$stamp"
