#!/usr/bin/env bash
# Build the wheel and the source distribution into dist/, install the wheel into an empty environment outside of the
# repository, and train with it there, to find what is missing from the wheel.
#
#   scripts/try_wheel.sh [FOLDER]      FOLDER: where the environment is made (and left); default: one that is removed
#
# Environment variables: PYTHON, COVEY_TORCH_INDEX, as for scripts/setup.sh.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
folder=${1:-}
if [[ -z $folder ]]; then
  folder=$(mktemp -d)
  trap 'rm -rf -- "$folder"' EXIT
fi
mkdir -p "$folder"
folder=$(CDPATH='' cd -- "$folder" && pwd -P)
options=(--disable-pip-version-check --quiet -c "$root/constraints.txt")
if [[ -n ${COVEY_TORCH_INDEX:-} ]]; then options+=(--extra-index-url "$COVEY_TORCH_INDEX"); fi

"${PYTHON:-python3}" -I -m venv "$folder/build" "$folder/env"
"$folder/build/bin/python" -I -m pip install --disable-pip-version-check --quiet build
rm -rf "$root/dist"
"$folder/build/bin/python" -I -m build --outdir "$root/dist" "$root"
"$folder/env/bin/python" -I -m pip install "${options[@]}" "$root"/dist/*.whl

cd "$folder"
env/bin/covey --version
env/bin/covey train run_name=tried training.max_steps=2 training.per_device_train_batch_size=8 \
  training.gradient_accumulation_steps=1 dataset.train_size=16 dataset.test_size=16 dataset.hard_size=0 \
  evaluation.every_steps=2
env/bin/covey eval out/tried evaluation=greedy evaluation.max_problems=8
env/bin/covey export out/tried model
env/bin/python -I -c "
import covey, importlib.resources as resources
assert '$folder' in covey.__file__, covey.__file__
assert (resources.files('covey') / 'py.typed').is_file()
"
test -s out/tried/report.html -a -s model/model.safetensors -a -s model/README.md
echo "covey: the wheel works: $(basename "$root"/dist/*.whl)"
