"""Training with tools and environments: the numbers of TRL, and those without the fast paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2ForCausalLM

from batches import PLAIN
from chat_templates import make_tokenizer
from covey import GRPOTrainer
from covey.config import SpeedConfig
from covey.objective import AdaptiveKL, MaxEnt
from covey.rollout import Capabilities, Completion, SamplingSettings
from tool_trainers import (
    COUNTING,
    SCRIPTS,
    TOOLS,
    Counter,
    Scripted,
    ScriptedCovey,
    ScriptedTRL,
    asked,
    lengths,
    tool_trainer,
)

ROWS = asked("one,answer,two,wrong", "unknown,malformed,endless,markup", "answer", "raises,list,long,two")
"""Groups of different lengths; the third has no signal."""


@pytest.fixture(autouse=True)
def without_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


def row_of(trainer: Any) -> dict[str, Any]:
    """What was logged at the first step, but for times and Covey's own metrics."""
    row = next(row for row in trainer.state.log_history if "loss" in row)
    return {name: v for name, v in row.items() if "time" not in name and not name.startswith("environment/")}


def assert_same_gradient(found: Any, expected: Any, **tolerance: float) -> None:
    assert found.gradient.keys() == expected.gradient.keys()
    assert any(one.abs().max() > 1e-4 for one in expected.gradient.values())
    for name, gradient in expected.gradient.items():
        torch.testing.assert_close(found.gradient[name], gradient, **(tolerance or {"rtol": 0.0, "atol": 0.0}))


STEP: dict[str, Any] = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "max_grad_norm": 0.0}


def test_a_step_is_trls(tmp_path: Path) -> None:
    stock = tool_trainer(ScriptedTRL, tmp_path / "trl", ROWS, **STEP, beta=0.1)
    stock.train()
    covey = tool_trainer(ScriptedCovey, tmp_path / "covey", ROWS, **STEP, beta=0.1, more={"speed": PLAIN})
    covey.train()
    assert_same_gradient(covey, stock)
    assert row_of(covey) == pytest.approx(row_of(stock), nan_ok=True)
    assert covey.seen == stock.seen  # the same turns in the same batches
    row = row_of(covey)
    # one: 1 call; two: 2, twice; wrong: 2, one of which fails; unknown, list and raises: 1, which fails; endless: 4
    # before its fifth turn; markup: 1; long: 1, whose result does not fit
    assert row["tools/call_frequency"] == pytest.approx((1 + 4 + 2 + 3 + 4 + 1 + 1) / 16)
    assert row["tools/failure_frequency"] == pytest.approx(4 / 16)


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_type": "dapo", "beta": 0.1},
        {"loss_type": "grpo", "num_iterations": 2, "beta": 0.05},
        {"loss_type": "dr_grpo", "mask_truncated_completions": True},
        {"loss_type": "dapo", "maxent": True, "beta": 0.1},
        {"loss_type": "grpo", "maxent": True, "beta": 0.1, "kl": True},
        {"loss_type": "dapo", "max_tokens": 1500},
    ],
    ids=["dapo", "grpo", "truncated", "maxent", "adaptive-kl", "chunks"],
)
def test_the_fast_paths_change_nothing(tmp_path: Path, settings: dict[str, Any]) -> None:
    settings = dict(settings)
    objective, kl = settings.pop("maxent", False), settings.pop("kl", False)
    fast = SpeedConfig(max_tokens=settings.pop("max_tokens", None))
    trainers = []
    for speed in (PLAIN, fast):
        more = {
            "speed": speed,
            "objective": MaxEnt() if objective else None,
            "kl_controller": AdaptiveKL(target=0.01, horizon=2) if kl else None,
        }
        trainer = tool_trainer(
            ScriptedCovey, tmp_path / str(len(trainers)), ROWS, **STEP, max_steps=2, **settings, more=more
        )
        trainer.train()
        trainers.append(trainer)
    plain, quick = trainers
    assert_same_gradient(quick, plain, rtol=1e-4, atol=1e-6)
    rows = [[row for row in one.state.log_history if "loss" in row] for one in trainers]
    for found, expected in zip(rows[1], rows[0], strict=True):
        skipped = ("entropy", "clip_ratio", "kl")  # means over micro-batches, which hold other rows
        compared = [
            key for key in expected if "time" not in key and "seconds" not in key and not key.startswith(skipped)
        ]
        for key in compared:
            assert found[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-6, nan_ok=True), key


def test_results_of_tools_have_no_gradient(tmp_path: Path) -> None:
    """The gradient is the same whatever targets stand in the places of results: only sampled tokens are scored."""
    trainer = tool_trainer(ScriptedCovey, tmp_path, asked("one,answer,two,wrong"), beta=0.1, more={"speed": PLAIN})
    trainer.train()
    batch = trainer._buffered_inputs[0] if trainer._buffered_inputs else None
    assert batch is not None
    decode = trainer.processing_class.decode
    for ids, mask, tools in zip(batch["completion_ids"], batch["completion_mask"], batch["tool_mask"], strict=True):
        sampled = decode([int(t) for t, m, s in zip(ids, mask, tools, strict=True) if m and s])
        given = decode([int(t) for t, m, s in zip(ids, mask, tools, strict=True) if m and not s])
        assert "<tool_response>" not in sampled
        assert "<tool_call>" not in given
        assert given.count("<tool_response>") == sampled.count("<tool_call>")
    assert int(batch["tool_mask"].mul(batch["completion_mask"]).sum()) == int(batch["num_items_in_batch"])


def counting(*scripts: str, **columns: Any) -> list[dict[str, Any]]:
    return [{**row, **columns} for row in asked(*scripts)]


def environment_trainer(kind: Any, folder: Path, rows: list[dict[str, Any]], more: Any = None, **settings: Any) -> Any:
    given = {"tools": None, "reward_funcs": None, "environment_factory": Counter, **(more or {})}
    return tool_trainer(kind, folder, rows, more=given, **settings)


def test_environments_are_trls(tmp_path: Path) -> None:
    rows = counting("reach,miss,none,reach", "miss,none,reach,none", goal=2, tells=True)
    trainers = []
    for kind in (ScriptedTRL, ScriptedCovey):
        trainer = environment_trainer(kind, tmp_path / kind.__name__, rows, per_device_train_batch_size=8)
        trainer.train()
        trainers.append(trainer)
    assert_same_gradient(trainers[1], trainers[0], rtol=1e-4, atol=1e-6)
    row = row_of(trainers[1])
    assert row["rewards/Counter/mean"] == pytest.approx(3 / 8)
    assert row["tools/call_frequency"] == pytest.approx((2 + 1 + 2 + 1 + 2) / 8)
    logged = next(row for row in trainers[1].state.log_history if "loss" in row)
    assert logged["environment/turns"] == pytest.approx((3 + 2 + 1 + 3 + 2 + 1 + 3 + 1) / 8)
    assert logged["environment/timeouts"] == logged["environment/crashes"] == 0


def test_prompts_that_are_text_are_the_users_message(tmp_path: Path) -> None:
    rows = [{"prompt": "Follow the script reach,miss,none,reach.", "goal": 2, "tells": True}]
    trainer = environment_trainer(ScriptedCovey, tmp_path, rows)
    trainer.train()
    said = "Follow the script reach,miss,none,reach. Count to 2."
    assert trainer.latest_completions["prompt"] == [[{"role": "user", "content": said}]] * 4
    with_tools = tool_trainer(ScriptedCovey, tmp_path, [{"prompt": "Follow the script one,answer,two,wrong."}])
    with_tools.train()
    assert row_of(with_tools)["tools/call_frequency"] == pytest.approx(5 / 4)


class Asking(Counter):
    """Makes its own prompt."""

    def reset(self, **row: Any) -> str:
        super().reset(**row)
        return "Follow the script reach,miss,none,reach."


class Silent:
    """No reward of its own, and a tool of another name."""

    def reset(self, **row: Any) -> None:
        self.said: list[str] = []

    def shout(self, text: str) -> str:
        """
        Make a text louder.

        Args:
            text: The text.
        """
        self.said.append(text)
        return text.upper()


def test_rows_without_a_prompt_and_mixed_environments(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": [{"role": "user", "content": ""}], "environment": "asking", "goal": 2},
        {"prompt": asked("two,answer,two,markup")[0]["prompt"], "environment": "silent", "goal": 0},
    ]
    factories = {"asking": Asking, "silent": Silent}
    more = {"environment_factory": factories, "tools": TOOLS[:1], "reward_funcs": lengths}
    trainers = []
    for kind in (ScriptedTRL, ScriptedCovey):
        trainer = environment_trainer(kind, tmp_path / kind.__name__, rows, more, per_device_train_batch_size=8)
        trainer.train()
        trainers.append(trainer)
    assert_same_gradient(trainers[1], trainers[0], rtol=1e-4, atol=1e-6)
    own = environment_trainer(
        ScriptedCovey, tmp_path / "own", [{"goal": 2}, {"goal": 1}], {"environment_factory": Asking}
    )
    own.train()
    assert own.latest_completions["prompt"][0][0]["content"] == "Follow the script reach,miss,none,reach."
    assert len(COUNTING) == 3


@pytest.mark.parametrize("environment", [True, False], ids=["environment", "tools"])
@pytest.mark.parametrize("objective", [None, MaxEnt()], ids=["grpo", "maxent"])
def test_a_resampled_step_is_that_of_the_final_batch(
    tmp_path: Path, environment: bool, objective: MaxEnt | None
) -> None:
    """The first group has no signal; the third is drawn in its place."""
    scripts = ("none", "reach,miss,none,reach", "miss,none,reach,none")
    rows = (
        counting(*scripts, tells=True, goal=2)
        if environment
        else asked("answer", "one,two,answer,wrong", "two,one,one,markup")
    )
    trainers = []
    for index, (given, most) in enumerate(((rows, 1), ([rows[2], rows[1]], 0))):
        make = environment_trainer if environment else tool_trainer
        more = {"resample_groups": most, "objective": objective, "speed": PLAIN}
        settings = {"per_device_train_batch_size": 8, "beta": 0.1, "max_grad_norm": 0.0}
        trainer = make(ScriptedCovey, tmp_path / str(index), given, more=more, **settings)
        trainer.train()
        trainers.append(trainer)
    resampled, plain = trainers
    assert_same_gradient(resampled, plain)
    found, expected = row_of(resampled), row_of(plain)
    assert found["resampling/groups_replaced"] == 1
    ignored = ("resampling/", "num_tokens", "epoch")
    assert {k: v for k, v in found.items() if not k.startswith(ignored)} == pytest.approx(
        {k: v for k, v in expected.items() if not k.startswith(ignored)}, nan_ok=True
    )
    assert resampled.latest_completions == plain.latest_completions
    logged = next(row for row in resampled.state.log_history if "loss" in row)
    assert logged["environment/turns"] > 1
    assert plain.state.num_input_tokens_seen < resampled.state.num_input_tokens_seen


def test_rollout_functions_are_trls(tmp_path: Path) -> None:
    """Their environment tokens are masked, and a reward gets what they return besides."""

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        ids, images, fields = trainer._tokenize_prompts(prompts)
        found, _ = trainer._generate_single_turn(ids, images, fields, 4)
        more = trainer.processing_class(" and so on")["input_ids"]
        return {
            "prompt_ids": ids,
            "completion_ids": [one + more for one in found],
            "logprobs": None,
            "env_mask": [[1] * len(one) + [0] * len(more) for one in found],
            "marks": [float(index) for index in range(len(found))],
        }

    def marked(completions: list[Any], marks: list[float], **_: Any) -> list[float]:
        return marks

    trainers = []
    for kind in (ScriptedTRL, ScriptedCovey):
        more = {"tools": None, "rollout_func": rollout}
        trainer = tool_trainer(kind, tmp_path / kind.__name__, asked("one,answer,two,wrong"), reward=marked, more=more)
        trainer.train()
        trainers.append(trainer)
    assert_same_gradient(trainers[1], trainers[0], rtol=1e-4, atol=1e-6)
    assert row_of(trainers[1])["reward"] == 1.5


@pytest.mark.parametrize("kind", [ScriptedTRL, ScriptedCovey])
def test_a_replaced_generate_writes_the_turns(tmp_path: Path, kind: Any) -> None:
    """As TRL's own tests of tools have it, with default settings."""
    base = kind.__mro__[2]
    trainer = tool_trainer(base, tmp_path, asked("one"), per_device_train_batch_size=2, num_generations=2)
    encode, pad = trainer.processing_class, trainer.processing_class.pad_token_id
    turns = [[SCRIPTS["one"][0], SCRIPTS["answer"][0]], [SCRIPTS["one"][1]]]
    shapes: list[tuple[int, ...]] = []

    def generate(input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        shapes.append(tuple(input_ids.shape))
        written = [encode(text)["input_ids"] for text in turns[len(shapes) - 1]]
        longest = max(map(len, written))
        padded = [one + [pad] * (longest - len(one)) for one in written]
        return torch.cat([input_ids, torch.tensor(padded)], dim=1)

    trainer.model.generate = generate
    trainer.train()
    row = row_of(trainer)
    assert [rows for rows, _ in shapes] == [2, 1]
    assert row["tools/call_frequency"] == 1 / 2
    assert row["tools/failure_frequency"] == 0
    assert [one[-1]["content"] for one in trainer._logs["completion"]] == ["Four.", "Four."]


def test_a_call_that_is_nested_too_deep_to_parse_is_text(tmp_path: Path) -> None:
    """TRL's parser raises a RecursionError."""
    trainer = tool_trainer(ScriptedCovey, tmp_path, asked("deep,answer,one,answer"), max_completion_length=2000)
    trainer.train()
    assert [len(one) for one in trainer.latest_completions["completion"]] == [1, 1, 3, 1]
    assert "[[[" in trainer.latest_completions["completion"][0][0]["content"]


class TwoTokens(Scripted):
    """An engine that writes the scripts' turns, and says that in each place the next token of the vocabulary could have
    been sampled too."""

    capabilities = Capabilities(logprobs=True, support=True)
    version: int | None = None

    def __init__(self, tokenizer: Any) -> None:
        self.processing_class = tokenizer

    def generate(self, prompts: Any, sampling: SamplingSettings, *, seed: int | None = None) -> list[Completion]:
        assert sampling.support
        assert sampling.logprobs
        found = []
        for place, prompt in enumerate(prompts):
            ids = self.reply(list(prompt), place)[: sampling.max_completion_length]
            pairs = torch.tensor([[token + 1, token] for token in ids], dtype=torch.int32)
            found.append(Completion(ids, truncated=False, logps=[-0.5] * len(ids), support=pairs))
        return found

    def sync(self, weights: Any, version: int) -> None:
        self.version = version

    def close(self) -> None:
        pass


class KeepsBatch(GRPOTrainer):
    batch: dict[str, Any]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self.batch = super()._generate_and_score_completions(inputs)
        return self.batch


def test_results_of_tools_have_no_support(tmp_path: Path) -> None:
    """Turns are scored over what could be sampled, results not at all, and turns that are cut off to their limit."""
    engine = TwoTokens(make_tokenizer("qwen3"))
    settings = {"top_k": 2, "vllm_importance_sampling_mode": "token_truncate", "max_completion_length": 150}
    scripts = asked("one,answer,two,endless")
    trainer = tool_trainer(KeepsBatch, tmp_path, scripts, more={"engine": engine}, **settings)
    trainer.train()
    before = Qwen2ForCausalLM.from_pretrained(tmp_path / "model")
    batch = trainer.batch
    ids, mask, sampled = batch["completion_ids"], batch["completion_mask"].bool(), batch["tool_mask"].bool()
    sampled &= mask
    assert int((mask & ~sampled).sum()) > 0
    assert (batch["support"][~sampled] == -1).all()
    assert torch.equal(batch["support"][sampled], torch.stack([ids[sampled] + 1, ids[sampled]], 1).int())
    tokens = torch.cat([batch["prompt_ids"], ids], 1)
    read = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    with torch.no_grad():
        places = (read.cumsum(1) - 1).clamp(min=0)
        logits = before(input_ids=tokens, attention_mask=read, position_ids=places).logits
        logits = logits[:, -ids.shape[1] - 1 : -1].double()
    pairs = logits.gather(2, torch.stack([ids, (ids + 1).clamp(max=logits.shape[2] - 1)], 2))
    expected = pairs.log_softmax(-1)[..., 0]
    torch.testing.assert_close(batch["old_per_token_logps"][sampled].double(), expected[sampled], rtol=0, atol=1e-5)
    ratio = (expected + 0.5).exp().clamp(max=3.0)
    torch.testing.assert_close(batch["importance_sampling_ratio"][sampled].double(), ratio[sampled], rtol=1e-4, atol=0)
    row = next(row for row in trainer.state.log_history if "loss" in row)
    assert row["sampling/logp_gap"] == pytest.approx(float((expected + 0.5).abs()[sampled].mean()), rel=1e-4)
