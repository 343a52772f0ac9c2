"""Engines by name: the built-in ones, and classes that are no engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.errors import ConfigError
from covey.rollout import LocalEngine, SamplingSettings
from covey.rollout.generate import make_engine

FAKE = str(Path(__file__).parents[1] / "support" / "fake_engine.py") + ":FakeEngine"
KEY = "evaluation.engine"
PARTS = """class Engine:
    def __init__(self, **_): self.version = None
    sync = close = print
    {generate}
    {capabilities}
"""


def test_the_local_engine_by_name_has_the_models_weights(tiny_model: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    options = {"dtype": None, "batch_size": 2, "revision": None, "trust_remote_code": False}
    engine = make_engine("local", KEY, model_name=tiny_model, tokenizer=tokenizer, **options)
    other = LocalEngine(AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32), tokenizer, batch_size=2)
    prompts = [[5, 6, 7]] * 3
    assert engine.generate(prompts, SamplingSettings(8), seed=1) == other.generate(prompts, SamplingSettings(8), seed=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Engine:\n    pass", r"cannot be made: TypeError: Engine\(\) takes no arguments"),
        ("class Engine:\n    def __init__(self, **_): raise KeyError('no server')", "KeyError: 'no server'"),
        ("class Engine:\n    def __init__(self, **_): self.version = None", "has no generate, sync, close, capabil"),
        (PARTS.format(generate="x = 0", capabilities="capabilities = None"), "has no generate. See"),
        (PARTS.format(generate="generate = 0", capabilities="capabilities = None"), "has no method generate. See"),
        (
            PARTS.format(generate="generate = print", capabilities="capabilities = None"),
            r"capabilities must be a covey\.rollout\.Capabilities, not of type NoneType",
        ),
        (
            PARTS.format(generate="generate = print", capabilities="capabilities = property(lambda self: 1 / 0)"),
            r"is not an inference engine: ZeroDivisionError: division by zero \(.*mine\.py, line 5\)",
        ),
        ("class Other:\n    pass", "has no Engine; it has Other"),
    ],
)
def test_a_class_that_is_no_engine_is_an_error(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match=message):
        make_engine(f"{tmp_path / 'mine.py'}:Engine", KEY, model_name="m", tokenizer=None)  # type: ignore[arg-type]


def test_a_reasoning_vocabulary_needs_an_engine_that_masks_it(wide_starter: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(wide_starter)
    with pytest.raises(ConfigError, match="FakeEngine does not say"):
        make_engine(FAKE, KEY, model_name=str(wide_starter), tokenizer=tokenizer)
    assert make_engine("local", KEY, model_name=str(wide_starter), tokenizer=tokenizer).capabilities.reasoning_vocab
