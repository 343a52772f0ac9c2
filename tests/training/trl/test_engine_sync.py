"""The weight-sync check: gaps by hand, stale engines, and several processes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.errors import EngineError
from covey.rollout.vllm import engine as vllm_engine
from covey.training.trl.vllm import EngineGeneration, Gap, WeightSyncCheck, probe_rows, trainer_logps
from forked import run_two


def test_the_gap_is_the_mean_difference_over_all_tokens() -> None:
    check = WeightSyncCheck(None, {"float32"})
    gap = check.compare([[-1.0, -2.0], [-3.0]], [[-1.1, -1.8], [-3.3]])
    assert gap.mean == pytest.approx((0.1 + 0.2 + 0.3) / 3)
    assert gap.largest == pytest.approx(0.3)
    assert (gap.moved, gap.frozen) == (0.0, False)


@pytest.mark.parametrize(
    ("tolerance", "types", "first", "later"),
    [
        (None, {"float32"}, 1e-3, 1e-3),
        (None, {"float32", "bfloat16"}, 0.5, 0.1),
        (None, {"float16"}, 0.5, 0.1),
        (0.02, {"bfloat16"}, 0.02, 0.02),
    ],
)
def test_the_tolerance_is_that_of_the_coarser_type(
    tolerance: float | None, types: set[str], first: float, later: float
) -> None:
    check = WeightSyncCheck(tolerance, types)
    assert check.tolerance == pytest.approx(first)
    assert check.error(check.compare([[-1.0]], [[-1.0001]]), 0) is None
    assert check.tolerance == pytest.approx(later)


def test_a_deep_model_in_16_bits_is_judged_by_its_first_gap() -> None:
    check = WeightSyncCheck(None, {"bfloat16"})
    assert check.error(check.compare([[-1.0]], [[-1.15]]), 0) is None  # 0.15, above the usual 0.1
    assert check.tolerance == pytest.approx(0.75)
    assert check.error(check.compare([[-1.1]], [[-1.8]]), 1) is None
    error = check.error(check.compare([[-1.0]], [[-1.81]]), 2)
    assert "launch.sync_tolerance (0.75, 5 times the first gap)" in str(error)
    other = WeightSyncCheck(None, {"bfloat16"})
    error = other.error(other.compare([[-1.0]], [[-1.6]]), 0)
    assert "launch.sync_tolerance (0.5, 5 times the usual, at the first sync)" in str(error)


def test_a_gap_beyond_the_tolerance_is_an_error_and_one_within_is_not() -> None:
    check = WeightSyncCheck(0.01, {"float32"})
    assert check.error(Gap(0.01, 0.5, 0.0, False), 7) is None
    error = check.error(Gap(0.0101, 0.5, 0.0, False), 7)
    assert isinstance(error, EngineError)
    assert "sync at step 7" in str(error)
    assert "launch.sync_tolerance (0.01)" in str(error)


def test_nan_from_either_side_is_an_infinite_gap() -> None:
    check = WeightSyncCheck(1e9, {"float32"})
    for own, engine in (([[-1.0]], [[math.nan]]), ([[math.nan]], [[-1.0]]), ([[-1.0]], [[-math.inf]])):
        gap = check.compare(own, engine)
        assert gap.mean == math.inf
        assert check.error(gap, 1) is not None


def test_an_engine_that_stays_the_same_while_the_trainer_moves_is_caught_within_any_tolerance() -> None:
    check = WeightSyncCheck(10.0, {"float32"})
    assert check.error(check.compare([[-1.0, -2.0]], [[-1.0, -2.0]]), 0) is None
    gap = check.compare([[-1.001, -2.0]], [[-1.0, -2.0]])
    assert gap.moved == pytest.approx(0.0005)
    assert "bit for bit" in str(check.error(gap, 1))


def test_an_engine_that_moves_along_or_a_trainer_that_stays_is_no_error() -> None:
    for own, engine in (([[-1.001]], [[-1.0011]]), ([[-1.0]], [[-1.0]]), ([[-1.000001]], [[-1.0]])):
        check = WeightSyncCheck(0.01, {"float32"})
        check.compare([[-1.0]], [[-1.0]])
        assert check.error(check.compare(own, engine), 1) is None


def test_another_number_of_tokens_is_another_model() -> None:
    with pytest.raises(EngineError, match="2 tokens where 1 were asked for"):
        WeightSyncCheck(None, {"float32"}).compare([[-1.0]], [[-1.0, -2.0]])


def test_the_probe_is_drawn_once_and_from_ordinary_tokens(tiny_model: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    random_state = torch.get_rng_state()
    rows = probe_rows(tokenizer)
    assert rows == probe_rows(tokenizer)
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(2 <= len(row) <= 32 for row in rows)
    assert len(rows) == 5
    assert not set(rows[-1]) & set(tokenizer.all_special_ids)
    assert all(len(row) <= 9 for row in probe_rows(tokenizer, max_length=9))


def test_the_trainers_log_probs_are_those_of_the_next_token_with_dropout_off(tiny_model: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.5)
    model.train()
    model.lm_head.eval()
    row = [3, 7, 5, 11]
    found = trainer_logps(model, [row, row[:2]])
    assert model.training
    assert model.model.layers[0].training
    assert not model.lm_head.training  # as it was
    model.eval()
    with torch.no_grad():
        probabilities_TV = torch.softmax(model(torch.tensor([row])).logits[0].double(), dim=-1)
    expected = [math.log(probabilities_TV[t, row[t + 1]]) for t in range(3)]
    assert found[0] == pytest.approx(expected, abs=1e-5)
    assert found[1] == pytest.approx(expected[:1], abs=1e-5)


@pytest.mark.slow
def test_an_engine_that_is_stale_in_one_process_stops_both(tiny_model: str, tmp_path: Path) -> None:
    """An error of one process reaches the other, which does not hang."""
    run_two("sync_processes.py", tiny_model, tmp_path, folder=tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    errors = {name: error for name, (error, _) in first.items()}
    assert errors == {name: error for name, (error, _) in second.items()}
    wrong = "After the weight sync at step 0, vLLM's log-probs are the same as before the sync"
    for name in ("the first is stale", "the second is stale", "the server is stale"):
        assert errors.pop(name).startswith(wrong), name
    assert "does not read the same tokens" in errors.pop("the second reads other tokens")
    assert errors.pop("the server refuses") == "The server refused."
    assert "did not answer the probe" not in errors.pop("the server is lost in the probe")  # it was synced again
    assert set(errors.values()) == {""}
    assert all(gap < 1e-6 for name in errors for _, gap in (first[name], second[name]))


class SleepingLLM:
    """Sleeps and wakes as vLLM's executor does; computes only when all of it is awake."""

    def __init__(self) -> None:
        self.asleep = {"weights", "kv_cache"}
        self.warnings = 0

    def wake_up(self, tags: list[str]) -> None:
        if not self.asleep or not set(tags) <= self.asleep:
            self.warnings += 1  # and does nothing else
            return
        self.asleep -= set(tags)

    def prompt_logps(self, rows: list[list[int]]) -> list[list[float]]:
        assert not self.asleep, f"{self.asleep} sleep"
        return [[-1.0] * (len(row) - 1) for row in rows]


def test_the_check_wakes_the_cache_of_a_sleeping_engine(monkeypatch: pytest.MonkeyPatch, tiny_model: str) -> None:
    generation = object.__new__(EngineGeneration)
    llm = SleepingLLM()
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    generation.__dict__ |= {
        **{"mode": "colocate", "enable_sleep_mode": True, "llm": llm, "model": model, "_gaps": [], "_syncs": 0},
        "accelerator": Accelerator(cpu=True),
        "_dist": SimpleNamespace(fsdp_version=2),
        "_rows": [[1, 2, 3]],
        "_sync_checks": {"": WeightSyncCheck(1e9, {"float32"})},
    }
    monkeypatch.setattr(vllm_engine, "prompt_logps", lambda llm, rows, adapter: llm.prompt_logps(rows))
    llm.wake_up(["weights"])  # as TRL does before it sends them
    generation._check_sync()
    assert generation.take_metrics()
    llm.wake_up(["kv_cache"])  # as TRL does before it generates
    assert (llm.asleep, llm.warnings) == (set(), 1)
