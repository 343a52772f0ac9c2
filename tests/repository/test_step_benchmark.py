"""`benchmarks/step.py`: it compares the same work, and its parts measure what they should."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def side_by_side(root: Path) -> None:
    """The benchmark's own package, which is not installed."""
    sys.path.insert(0, str(root / "benchmarks"))


def test_lengths_are_forced_whatever_the_order_of_the_rows() -> None:
    from side_by_side.lengths import ForcedLengths

    eos, vocabulary, prompts = 1, 50, [[5, 6, 7]] * 2 + [[8, 9, 10]] * 2
    forced = ForcedLengths(eos)
    forced.plan(prompts, [9, 7, 8, 6])
    torch.manual_seed(0)
    ids = torch.tensor(prompts)
    ended: dict[int, list[int]] = {5: [], 8: []}
    while len(ids):
        scores = forced(ids, torch.randn(len(ids), vocabulary))
        drawn = torch.distributions.Categorical(logits=scores).sample()
        ids = torch.cat([ids, drawn.unsqueeze(1)], dim=1)
        for row in ids[drawn == eos].tolist():
            ended[row[0]].append(len(row) - 3)
        ids = ids[drawn != eos].flip(0)  # as an engine does that drops and reorders rows
    assert {prompt: sorted(lengths) for prompt, lengths in ended.items()} == {5: [7, 9], 8: [6, 8]}


def test_the_mean_length_is_half_of_the_longest_in_every_step() -> None:
    from side_by_side.settings import Setting

    setting = Setting(size="1m", prompt_length=256, completion_length=512, generations=8)
    assert setting.prompts == 8
    first, second = setting.lengths(0), setting.lengths(1)
    assert sorted(first) == sorted(second) == [6, *(4 + 8 * i for i in range(1, 64))]
    assert first != second


def test_a_part_within_a_part_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from side_by_side import clock

    ticks = iter([0.0, 1.0, 3.0, 7.0, 15.0, 31.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(ticks))
    watch = clock.Clock(lambda: None)
    watch.start()
    with watch.part("scoring"), watch.part("backward"):
        pass
    assert watch.stop() == {"rest": 1.0 + 16.0, "scoring": 2.0 + 8.0, "backward": 4.0, "step": 31.0}


def test_the_least_work_counts_a_prompt_once() -> None:
    from side_by_side.settings import Setting
    from side_by_side.work import least_work

    setting = Setting(size="1m", prompt_length=3, completion_length=2, generations=2)
    work = least_work(setting, body=1000, rows=[(3, 2), (3, 1)])
    weights = 2 * 1000 * 3 + 2 * (1000 + 128 * 512) * (2 + 1)
    meetings = (1 + 2 + 3) + (4 + 5) + 4  # each token with itself and those before it: prompt, first and second row
    assert work.generation == weights + 4 * 4 * 4 * 32 * meetings
    assert work.learning == 3 * work.generation


@pytest.mark.slow
@pytest.mark.long
def test_both_engines_do_the_same_work(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "found.json"
    command = [sys.executable, "benchmarks/step.py", "--shape", "short", "--size", "1m", "--generations", "4"]
    command += ["--prompts", "2", "--completion-length", "96", "--steps", "1", "--warmup", "0"]
    command += ["--baseline", "generate"]
    subprocess.run([*command, "--json", str(target)], cwd=root, check=True, capture_output=True, timeout=300)
    found = json.loads(target.read_text(encoding="utf-8"))
    assert found["tokens"]["trl"] == found["tokens"]["covey"] == {"sampled": 8 * 48, "trained": 8 * 48}
    rows = {row["row"]: row for row in found["rows"]}
    for name in ("step", "generation", "scoring", "backward", "rewards"):
        assert rows[name]["ratio"] == pytest.approx(rows[name]["trl_s"] / rows[name]["covey_s"])
    parts = ("generation", "scoring", "backward", "rewards", "rest")
    for engine in ("trl", "covey"):
        assert sum(rows[part][f"{engine}_s"] for part in parts) == pytest.approx(rows["step"][f"{engine}_s"])
        assert 0 < rows["step"][f"{engine}_of_machine"] < 1
        assert rows["tokens per second"][f"{engine}_per_s"] == pytest.approx(384 / rows["step"][f"{engine}_s"])
        assert rows["peak memory"][f"{engine}_bytes"] > rows["peak memory above the start"][f"{engine}_bytes"] > 0
    assert found["machine"]["flops_per_s"] > 0
