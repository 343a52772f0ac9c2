"""The schema of the config itself: documented, agreeing with what it mirrors, and light to load."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from completed import completed
from covey.answers import EXTRACTORS
from covey.config import Config, build, document, known_keys
from covey.config.groups import dataset as covey_dataset
from covey.config.groups.training import FIELDS_FILE, OWNED_ELSEWHERE, training_fields
from covey.errors import ConfigError
from load_scripts import load_script

SCRIPT = Path(__file__).parents[2] / "scripts" / "training_fields.py"


def test_every_key_is_documented():
    assert "training.max_steps" in known_keys()
    assert "training.seed" not in known_keys()
    undocumented = [key for key in known_keys() if len(document(key).doc) < 10]
    assert undocumented == []
    shown = document("model.dtype")
    assert (shown.default, shown.origin) == (None, "covey")
    assert "bfloat16" in shown.type
    explained = document("training.beta")
    assert explained.origin == "trl"
    assert "KL" in explained.doc
    with pytest.raises(ConfigError, match=r"mean training\.max_steps"):
        document("max_step")


def test_values_that_are_written_twice_agree():
    assert tuple(EXTRACTORS) == covey_dataset.EXTRACTORS
    assert set(OWNED_ELSEWHERE) <= set(training_fields())
    assert isinstance(build({"dataset": {"task": "arithmetic"}}), Config)


def test_loading_imports_nothing_heavy():
    code = (
        "import json, sys; from covey.config import load, to_yaml; to_yaml(load(['model=qwen3_0.6b']));"
        "print(json.dumps([m for m in ('torch', 'transformers', 'trl', 'datasets', 'accelerate') if m in sys.modules]))"
    )
    done = completed([sys.executable, "-c", code], check=True)
    assert json.loads(done.stdout) == []


def test_the_snapshot_is_the_installed_trl():
    """Names, types, defaults and choices."""
    script = load_script("scripts/training_fields.py")
    installed = json.loads(json.dumps(script.snapshot()["fields"]))
    written = json.loads(FIELDS_FILE.read_text(encoding="utf-8"))["fields"]
    assert written == installed, f"run `python {SCRIPT.name}` in scripts/ after changing the version of TRL"
