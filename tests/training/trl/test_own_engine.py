"""Training and evaluation by an engine of the user's own: a fake one, whose completions say which weights it had."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey import GRPOTrainer
from covey.cli.main import main
from covey.errors import ConfigError, EngineError
from covey.model.starter.tokenizer import VOCAB_SIZE as VOCABULARY
from covey.rollout import Capabilities, Completion
from covey.runlog.completions import read_completions
from covey.runlog.evaluations import read_evaluation
from fake_engine import FakeEngine
from stopped_runs import contents
from trainers import build_trainer

ENGINE = str(Path(__file__).parents[2] / "support" / "fake_engine.py") + ":FakeEngine"
SMALL = (
    *("dataset=arithmetic", "dataset.test_size=6", "dataset.hard_size=0", "dataset.train_size=12"),
    *("training.max_steps=3", "training.per_device_train_batch_size=8", "training.gradient_accumulation_steps=1"),
    *("training.num_generations=4", "training.max_completion_length=40", "training.save_steps=1"),
    *("evaluation.every_steps=1", "logging.completions_every_steps=1", "training.learning_rate=0.01"),
)


ADAPTED = "model.layers.0.self_attn.q_proj.weight"


def engine_of_run() -> Any:
    """The engine that the newest run made: the file was imported under a name of its own."""
    (module,) = (m for name, m in sys.modules.items() if name.startswith("covey_user_fake_engine"))
    return module.FakeEngine.newest


REWARD = '''
def digit(completions, **columns):
    """The answer, which the engine draws."""
    return [float(one[-1]["content"].split("<answer>")[1][0]) for one in completions]
'''


def train(model: str, folder: Path, *words: str) -> int:
    reward = folder / "reward.py"
    reward.write_text(REWARD, encoding="utf-8")
    own = (f"model.name={model}", f"output_dir={folder}", "run_name=run", f"rewards.funcs=[{reward}:digit]")
    return main(["train", *SMALL, *own, *words])


@pytest.fixture(scope="module")
def run(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    assert train(tiny_model, folder, f"rollout.engine={ENGINE}") == 0
    return folder / "run"


def test_the_recorded_completions_are_the_engines(run: Path) -> None:
    rows = read_completions(run / "completions")
    assert len(rows) == 3 * 8
    for row in rows:
        assert row["completion"][0]["content"].startswith(f"version {row['step'] - 1}: <answer>")
    assert len({row["completion"][0]["content"][-12:] for row in rows}) > 1


def test_evaluations_during_training_are_the_engines(run: Path) -> None:
    for step in range(4):
        lines = (run / "evaluation" / f"test-step-{step:06d}.jsonl").read_text().splitlines()
        assert len(lines) == 6
        for line in lines:
            assert json.loads(line)["completion"].startswith(f"version {step}: <answer>")


def test_the_engine_gets_the_trained_weights_and_is_closed(run: Path, tiny_model: str) -> None:
    engine = engine_of_run()
    assert engine.closed
    assert engine.model_name == tiny_model
    assert engine.options == {"dtype": None, "batch_size": 8, "revision": None, "trust_remote_code": False}
    saved = load_file(run / "final_model" / "model.safetensors")
    assert set(engine.weights) == set(saved)
    assert all(torch.equal(engine.weights[name], tensor) for name, tensor in saved.items())
    start = load_file(Path(tiny_model) / "model.safetensors")
    assert not all(torch.equal(start[name], tensor) for name, tensor in saved.items())


def test_a_stopped_run_resumes_to_the_same_completions(run: Path, tiny_model: str, tmp_path: Path) -> None:
    words = (f"rollout.engine={ENGINE}",)
    assert train(tiny_model, tmp_path, *words, "stop_after_steps=1") == 0
    assert train(tiny_model, tmp_path, *words) == 0
    straight, resumed = (read_completions(folder / "completions") for folder in (run, tmp_path / "run"))
    assert [row["completion"] for row in resumed] == [row["completion"] for row in straight]
    ours, theirs = (contents(folder / "checkpoint-3") for folder in (run, tmp_path / "run"))
    assert torch.equal(ours["random"], theirs["random"])
    assert all(torch.equal(ours["weights"][name], tensor) for name, tensor in theirs["weights"].items())


def test_covey_eval_samples_by_the_engine(tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*SMALL[:4], "training.max_completion_length=40", f"evaluation.engine={ENGINE}")
    assert main(["eval", tiny_model, *words, "--out", str(tmp_path / "out")]) == 0
    stored = read_evaluation(tmp_path / "out")
    assert stored.settings["engine"] == ENGINE
    assert all(item["completion"].startswith("version None: <answer>") for item in stored.completions())
    assert len({item["completion"] for item in stored.completions()}) > 1
    assert engine_of_run().closed


def test_adapters_arrive_merged(tiny_model: str, tmp_path: Path) -> None:
    engine = FakeEngine(tiny_model, AutoTokenizer.from_pretrained(tiny_model))
    more = {"engine": engine, "peft_config": LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)}
    settings = {"max_completion_length": 40, "max_steps": 1, "save_strategy": "no"}
    trainer = build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=4, more=more, **settings)
    merged = dict(copy.deepcopy(trainer.model).merge_and_unload().named_parameters())
    trainer.train()  # one step: the engine has the weights before it
    assert set(engine.weights) == set(merged)
    assert all(torch.equal(engine.weights[name], tensor) for name, tensor in merged.items())
    base = dict(AutoModelForCausalLM.from_pretrained(tiny_model).named_parameters())
    assert not torch.equal(engine.weights[ADAPTED], base[ADAPTED])


class Faulty(FakeEngine):
    fault = ""
    capabilities = Capabilities()

    def generate(self, *args: Any, **kwargs: Any) -> list[Completion]:
        found = super().generate(*args, **kwargs)
        wrong: dict[str, Any] = {
            "empty": Completion([], truncated=False),
            "logps": Completion([5], truncated=False, logps=[0.0, 0.0]),
            "list": [5, 6],
            "tensor": Completion(torch.tensor([5, 6]), truncated=False),  # type: ignore[arg-type]
            "float": Completion([5, 6.0], truncated=False),  # type: ignore[list-item]
            "negative": Completion([5, -1], truncated=False),
            "vocabulary": Completion([5, VOCABULARY], truncated=False),
            "long": Completion([5] * 41, truncated=True),
        }
        if self.fault == "raises":
            raise RuntimeError("no\nserver")
        return found[1:] if self.fault == "few" else None if self.fault == "none" else [wrong[self.fault]] * len(found)

    def sync(self, weights: Any, version: int) -> None:
        if self.fault == "sync":
            raise KeyError("weights")
        if self.fault != "old":
            super().sync(weights, version)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("few", "returned 3 completions of 4 prompts"),
        ("empty", "without tokens"),
        ("logps", "one for each token"),
        ("old", "has version None after"),
        ("raises", r"engine Faulty failed in generate: RuntimeError: no server \(.*test_own_engine\.py, line \d+\)\."),
        ("sync", r"engine Faulty failed in sync: KeyError: 'weights' \(.*test_own_engine\.py, line \d+\)\."),
        ("none", "returned an object of type NoneType: it must be a list of covey.rollout.Completion"),
        ("list", "a list with an element of type list: it must be a list of covey.rollout.Completion"),
        ("tensor", r"completion 0 \(the first is 0\) ids of type Tensor"),
        ("float", r"the token id 6\.0 of type float: ids are integers"),
        ("negative", f"the token id -1: the vocabulary's ids are 0 to {VOCABULARY - 1}"),
        ("vocabulary", f"the token id {VOCABULARY}: the vocabulary's ids are 0 to {VOCABULARY - 1}"),
        ("long", "41 tokens: sampling.max_completion_length is 40"),
    ],
)
def test_an_engine_that_breaks_the_protocol_is_an_error(
    tiny_model: str, tmp_path: Path, fault: str, message: str
) -> None:
    engine = Faulty(tiny_model, AutoTokenizer.from_pretrained(tiny_model))
    engine.fault = fault
    settings = {"max_steps": 1, "max_completion_length": 40}
    trainer = build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=4, more={"engine": engine}, **settings)
    assert trainer.model.config.vocab_size == VOCABULARY
    with pytest.raises(EngineError, match=message):
        trainer.train()


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (object(), "engine=object is not an inference engine: it has no generate, sync, close, version, capabilities"),
        (FakeEngine, "engine=FakeEngine is not an inference engine: it is a class, not an instance"),
    ],
)
def test_an_object_that_is_no_engine_is_an_error(tiny_model: str, tmp_path: Path, engine: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=4, more={"engine": engine}, max_steps=1)


def test_capabilities_of_another_type_are_an_error(tiny_model: str, tmp_path: Path) -> None:
    engine = FakeEngine(tiny_model, AutoTokenizer.from_pretrained(tiny_model))
    engine.capabilities = None  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"must be a covey\.rollout\.Capabilities, not of type NoneType"):
        build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=4, more={"engine": engine}, max_steps=1)


def test_settings_that_the_engine_could_not_follow_are_an_error(tiny_model: str, tmp_path: Path) -> None:
    engine = FakeEngine(tiny_model, AutoTokenizer.from_pretrained(tiny_model))
    settings = {"generation_kwargs": {"no_repeat_ngram_size": 2}, "max_steps": 1}
    trainer = build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=4, more={"engine": engine}, **settings)
    with pytest.raises(ConfigError, match="no_repeat_ngram_size=2"):
        trainer.train()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rollout.engine=vllm",), "training.use_vllm=true"),
        (("rollout.engine=sglang",), "rollout.engine=sglang is not possible: it must be one of local, vllm, file.py"),
        (("evaluation.engine=sglang",), "evaluation.engine=sglang is not possible"),
        ((f"rollout.engine={ENGINE}", "training.use_vllm=true"), "name two engines"),
        ((f"rollout.engine={ENGINE[:-10]}Engine",), "has no Engine; it has"),
        ((f"rollout.engine={ENGINE[:-10]}Capabilities",), "cannot be made: TypeError"),
    ],
)
def test_a_name_that_is_no_engine_is_an_error(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert train(tiny_model, tmp_path, *words) != 0
    assert message in " ".join(capsys.readouterr().err.split())
