"""Whole GRPO steps on a GPU that is only claimed: no tensor is on the wrong device, and the host hardly waits.

The numbers are real and computed on the CPU; the device of each tensor is what CUDA would have (`claimed_tensors`).
What CUDA's own kernels compute, and how fast, is not tested here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import claimed_guard
from completed import completed

FAST = (
    *("float32", "float32_cpu", "short", "long", "two_devices", "turn_short", "turn_long", "turn_cpu"),
    *("support_short", "support_long", "support_cpu"),
)
SLOW = (
    *("plain", "no_checkpointing", "float16", "beta", "maxent", "lora", "lora_beta", "bfloat16_weights", "max_tokens"),
    *("resampling", "iterations", "vocabulary", "vocabulary_generate", "not_shared", "overflow"),
    "device_check",
    *("vocabulary_short", "vocabulary_long", "lora_short", "lora_long"),
)
LAYERS = 4
"""Of the starter, which all cases train."""

Results = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What the script printed about a case; the cases of a kind run in one process, when the first is asked for."""
    if claimed_guard.compiler() is None:
        pytest.skip("needs a C++ compiler, for the claimed device")
    folder = tmp_path_factory.mktemp("claimed")
    library = claimed_guard.build(folder)
    script = Path(claimed_guard.__file__).with_name("claimed_steps.py")
    found: dict[str, dict[str, Any]] = {}

    def run(case: str) -> dict[str, Any]:
        if case not in found:
            cases = FAST if case in FAST else SLOW
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-W", "ignore", str(script), str(library), *cases]
            done = completed(command, env=environment, timeout=1200)
            assert done.returncode == 0, done.stderr[-3000:]
            for line in done.stdout.splitlines():
                if line.startswith('{"case"'):
                    one = json.loads(line)
                    found[one["case"]] = one
        assert "error" not in found[case], found[case]["traceback"]
        return found[case]

    return run


def test_float32_gives_the_numbers_of_the_cpu(results: Results) -> None:
    claimed, own = results("float32"), results("float32_cpu")
    assert (claimed["device"], own["device"]) == ("cuda", "cpu")
    for there, here in zip(claimed["logs"][:2], own["logs"][:2], strict=True):
        assert there["completions/mean_length"] == here["completions/mean_length"]
        for name in ("loss", "grad_norm", "entropy", "reward"):
            assert there[name] == pytest.approx(here[name], rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize(
    ("kind", "per_layer"),
    [
        ("", 100),
        pytest.param("vocabulary_", 110, marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param("lora_", 140, marks=pytest.mark.slow),
    ],
)
def test_what_a_sampled_token_costs(results: Results, kind: str, per_layer: int) -> None:
    short, long = results(f"{kind}short"), results(f"{kind}long")
    assert (short["logs"][0]["completions/max_length"], long["logs"][0]["completions/max_length"]) == (8, 40)
    assert sum(short["casts"].values()) == sum(long["casts"].values()) > 0  # none of them per token
    assert long["kernels"] - short["kernels"] <= 32 * LAYERS * per_layer
    for where in {*short["waits"], *long["waits"]}:  # ended completions are looked for at every sixteenth token
        assert long["waits"].get(where, 0) - short["waits"].get(where, 0) <= 2, where


def test_a_second_turn_costs_no_more_for_each_token(results: Results) -> None:
    short, long, own = (results(f"turn_{kind}") for kind in ("short", "long", "cpu"))
    assert long["ids"] == own["ids"]
    for there, here in zip(long["logps"], own["logps"], strict=True):
        assert there == pytest.approx(here, rel=1e-5, abs=1e-5)
    assert max(map(len, long["ids"])) - max(map(len, short["ids"])) == 32
    assert long["kernels"] - short["kernels"] <= 32 * LAYERS * 100
    for where in {*short["waits"], *long["waits"]}:
        assert long["waits"].get(where, 0) - short["waits"].get(where, 0) <= 2, where
    assert sum(short["waits"].values()) <= 5  # completions end at three lengths; then they are read


def test_supports_and_seeds_of_rows_cost_no_wait_for_each_token(results: Results) -> None:
    short, long, own = (results(f"support_{kind}") for kind in ("short", "long", "cpu"))
    assert long["ids"] == own["ids"]
    assert [list(map(sorted, one)) for one in long["supports"]] == [list(map(sorted, one)) for one in own["supports"]]
    sizes = [sum(token >= 0 for token in place) for one in long["supports"] for place in one]
    assert (min(sizes), max(sizes)) == (1, 20)
    for there, here in zip(long["logps"], own["logps"], strict=True):
        assert there == pytest.approx(here, rel=1e-5, abs=1e-5)
    assert max(map(len, long["ids"])) - max(map(len, short["ids"])) == 32
    assert long["kernels"] - short["kernels"] <= 32 * LAYERS * 100
    for where in {*short["waits"], *long["waits"]}:  # every sixteenth token
        assert long["waits"].get(where, 0) - short["waits"].get(where, 0) <= 2, where


def test_waits_of_scoring_and_of_a_micro_batch(results: Results) -> None:
    waits = results("short")["waits"]
    steps, accumulation = 1, 2
    scoring = sum(count for where, count in waits.items() if "training/scoring" in where)
    assert scoring == steps * accumulation  # one for each forward
    micro_batches = sum(count for where, count in waits.items() if "training/microbatch" in where)
    assert micro_batches == steps  # one for each generation batch


def test_a_model_on_two_devices_is_not_scored_packed(results: Results) -> None:
    found = results("two_devices")
    assert "cuda:1" in found["raised"]  # what the refusal prevents
    assert found["refused"]


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in SLOW if not case.endswith(("_short", "_long", "_check"))])
def test_every_path_of_training(results: Results, case: str) -> None:
    found = results(case)
    assert found["device"] == "cuda"
    logs = [log for log in found["logs"] if "loss" in log]
    assert len(logs) == (4 if case == "iterations" else 2)
    packing = [where for where in found["waits"] if "training/scoring" in where and where.startswith("cuda to cpu")]
    scoring = sum(found["waits"][where] for where in packing)
    assert scoring <= found["forwards"]


@pytest.mark.slow
def test_the_checks_of_a_device_hold_on_the_claimed_one(results: Results) -> None:
    checks = {check["name"]: check for check in results("device_check")["checks"]}
    assert [name for name, check in checks.items() if not check["ok"]] == []
    assert sum("bfloat16" in name for name in checks) == 13
    # The scores of sampling are summed in float32, so its gap is that of rounding weights and states.
    assert checks["sampling, bfloat16: gap to the scorer"]["error"] < 0.01


@pytest.mark.slow
def test_float16_skips_a_step_that_overflows(results: Results) -> None:
    """The first scale is so large that gradients overflow, in every chunk: weights stay, the run goes on."""
    found = results("overflow")
    assert found["skipped"] == [True, True]
    assert found["moved"] == 0.0
    assert results("float16")["skipped"] == [False, False]
    assert results("float16")["moved"] > 0
