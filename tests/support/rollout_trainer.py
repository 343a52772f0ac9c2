"""A trainer that is to be killed while its rollout process generates: arguments are a model, and a file for its id."""

from __future__ import annotations

import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.rollout import SamplingSettings
from covey.rollout.process.engine import ProcessEngine

if __name__ == "__main__":
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
    engine = ProcessEngine(
        model, AutoTokenizer.from_pretrained(sys.argv[1]), folder=Path(sys.argv[2]).parent / "rollout"
    )
    engine.sync(model.named_parameters(), 0)
    assert engine.pid is not None
    sign = Path(sys.argv[2])
    sign.with_suffix(".part").write_text(str(engine.pid))
    sign.with_suffix(".part").rename(sign)
    engine.generate([[5, 6, 7]] * 64, SamplingSettings(100_000, temperature=5.0), seed=0)
