"""Rewards start in worker processes while the models still score, give the same, and are dropped if scoring fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covey import GRPOTrainer
from covey.errors import RewardError
from covey.rewards.runner import RewardRunner
from covey.training.recording import EarlyRewards
from trainers import build_trainer, question

REWARDS = '''
import time
from pathlib import Path
here = Path(__file__).parent
def waits_for_scoring(prompts, completions, **kwargs):
    """Ends only once the scoring has begun."""
    (here / "begun").touch()
    while not (here / "scored").exists(): time.sleep(0.005)
    return [1.0] * len(completions)
def logs(prompts, completions, completion_ids, number, trainer_state, log_extra, log_metric, **kwargs):
    log_extra("tokens", [len(ids) for ids in completion_ids])
    log_metric("seen", trainer_state.num_input_tokens_seen + trainer_state.global_step)
    return [len(set(c[0]["content"])) + n for c, n in zip(completions, number)]
def raises(prompts, completions, **kwargs):
    raise ValueError("no way")
def spins(prompts, completions, **kwargs):
    (here / "begun").touch()
    while not (here / "go").exists(): pass
    return [1.0] * len(completions)
def touches(prompts, completions, **kwargs):
    (here / "touched").touch()
    return [2.0] * len(completions)
'''


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    file = tmp_path / "own_rewards.py"
    file.write_text(REWARDS, encoding="utf-8")
    return file


def wait_for(file: Path) -> None:
    give_up = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < give_up, f"{file.name} was never there"
        time.sleep(0.005)


class ScoringTrainer(GRPOTrainer):
    """Calls `on_scoring` whenever log-probabilities are scored outside the loss."""

    on_scoring: Callable[[], None] = staticmethod(lambda: None)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        if not self._keeps_loss_logps and args[0] is self.ref_model:
            self.on_scoring()
        return super()._get_per_token_logps_and_entropies(*args, **kwargs)


def trainer_with(runner: RewardRunner, model: str, folder: Path, **settings: Any) -> ScoringTrainer:
    rows = [{**question(n), "number": n, "answer": str(2 * n)} for n in range(8)]
    settings = {"max_steps": 1, "save_strategy": "no", "beta": 0.05, **settings}  # a reference to be scored
    out = folder / "out"
    return build_trainer(ScoringTrainer, model, out, prompts=rows, reward=runner.functions, **settings)


def test_rewards_and_the_reference_run_concurrently(tiny_model: str, tmp_path: Path, rewards: Path) -> None:
    """The reward ends only once the scoring has begun, and the scoring only once the reward has begun."""
    order: list[str] = []

    def on_scoring() -> None:
        wait_for(tmp_path / "begun")
        order.append("scored")
        (tmp_path / "scored").touch()

    with RewardRunner([f"{rewards}:waits_for_scoring"], workers=1, batch_timeout=60) as runner:
        trainer = trainer_with(runner, tiny_model, tmp_path)
        trainer.on_scoring = on_scoring
        trainer.train()
        assert runner.pool.counts["calls"] == 1  # type: ignore[union-attr]  # not once more when it was collected
    assert order == ["scored"]
    assert trainer.state.log_history[0]["rewards/waits_for_scoring/mean"] == 1.0


@pytest.mark.slow
def test_the_numbers_are_those_of_rewards_that_start_late(
    tiny_model: str, tmp_path: Path, rewards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    early = EarlyRewards.begin

    def counting(self: EarlyRewards, prompts: Any, completions: Any, **more: Any) -> None:
        early(self, prompts, completions, **more)
        begun.append(len(completions))

    rows, extra = [], []
    for begin in (counting, lambda *_, **__: None):
        monkeypatch.setattr(EarlyRewards, "begin", begin)
        with RewardRunner(["accuracy", f"{rewards}:logs"], workers=2) as runner:
            trainer = trainer_with(runner, tiny_model, tmp_path, max_steps=3)
            trainer.train()
            assert runner._batches == []
        history = trainer.state.log_history
        rows.append([{k: v for k, v in r.items() if "time" not in k and "_per_" not in k} for r in history])
        extra.append(trainer.latest_completions)
    assert begun == [4] * 3
    assert rows[0] == rows[1]
    assert extra[0] == extra[1]
    assert rows[0][-2]["seen"] > rows[0][0]["seen"] > 0
    assert any(name.startswith("grader/") for name in rows[0][0])
    assert len(extra[0]["tokens"]) > 0


def test_an_error_is_raised_where_rewards_are_collected(tiny_model: str, tmp_path: Path, rewards: Path) -> None:
    scored: list[int] = []
    with RewardRunner([f"{rewards}:raises"], workers=1) as runner:
        trainer = trainer_with(runner, tiny_model, tmp_path)
        trainer.on_scoring = lambda: scored.append(1)
        with pytest.raises(RewardError, match="The reward raises failed: it raised ValueError: no way"):
            trainer.train()
        assert scored == [1]
        assert runner._batches == []


def test_a_scoring_that_fails_drops_its_rewards(tiny_model: str, tmp_path: Path, rewards: Path) -> None:
    def out_of_memory() -> None:
        assert len(runner._batches) == 1
        raise MemoryError("no room for the reference")

    with RewardRunner([f"{rewards}:touches"], workers=1) as runner:
        trainer = trainer_with(runner, tiny_model, tmp_path)
        trainer.on_scoring = out_of_memory
        with pytest.raises(MemoryError):
            trainer.train()
        assert runner._batches == []


def test_a_dropped_batch_is_not_computed(tmp_path: Path, rewards: Path) -> None:
    with RewardRunner([f"{rewards}:touches"], workers=1) as runner:
        busy = runner.pool.submit_call(f"{rewards}:spins", {"prompts": ["p"], "completions": ["c"]})
        wait_for(tmp_path / "begun")  # the only worker is busy
        dropped, kept = ["c"], ["d", "e"]
        runner.begin(["p"], dropped, {})
        runner.drop(dropped)
        (tmp_path / "go").touch()
        assert busy.result(60)[0].values == [1.0]
        other = runner.pool.submit_call(f"{rewards}:spins", {"prompts": ["p"], "completions": ["c"]})
        assert other.result(60)[0].values == [1.0]
        assert not (tmp_path / "touched").exists()
        runner.begin(["p"] * 2, kept, {})
        assert runner.functions[0](["p"] * 2, kept) == [2.0, 2.0]
        assert (tmp_path / "touched").exists()
        assert runner.pool.counts["calls"] == 3  # type: ignore[union-attr]


def test_without_workers_nothing_starts_early(tmp_path: Path, rewards: Path) -> None:
    with RewardRunner([f"{rewards}:touches"], workers=0) as runner:
        early = EarlyRewards([runner.functions[0], print, runner.functions[0]])
        with early.batch_of([{"prompt": "p"}]):
            early.begin(["p"], ["c"])
        assert not (tmp_path / "touched").exists()
