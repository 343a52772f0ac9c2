"""TRL's Triton head, which GPUs score with, under Triton's interpreter: as the dense computation."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from completed import completed

SCRIPT = Path(__file__).parents[2] / "support" / "triton_head.py"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which PyTorch's CPU build leaves out")
def test_the_triton_head_equals_the_dense_one() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = completed([sys.executable, "-W", "ignore", str(SCRIPT)], env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    cases = {one.pop("case"): one for one in map(json.loads, done.stdout.splitlines())}
    assert set(cases) == {"no bias", "reasoning vocabulary"}
    for case in cases.values():
        assert case.pop("kernel") == "InterpretedFunction"
        assert set(case) == {"log-probs", "entropy", "gradient of hidden", "gradient of weight"}
        assert max(case.values()) < 1e-5
