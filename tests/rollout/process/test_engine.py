"""The engine in a process of its own: bit for bit what the engine of this process gives, whatever dies meanwhile."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.errors import DataError, EngineError
from covey.rollout import Completion, LocalEngine, SamplingSettings, complete
from covey.rollout.generate import check_engine, make_engine
from covey.rollout.process.engine import ProcessEngine, default_threads
from covey.rollout.weight_folder import write_folder

PROMPTS = [[5, 6, 7]] * 4 + [[8, 9]] * 3
SAMPLING = SamplingSettings(24, temperature=1.2, top_k=20, repetition_penalty=1.1, logprobs=True)
ENDLESS = SamplingSettings(100_000, temperature=5.0)
"""More tokens than are ever computed here."""
SECONDS = 60.0


def loaded(folder: str) -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def other_weights(model: Any, scale: float) -> list[tuple[str, torch.Tensor]]:
    return [(name, weight.detach() * scale) for name, weight in model.named_parameters()]


def local(model: Any, tokenizer: Any, weights: Any) -> LocalEngine:
    engine = LocalEngine(type(model)(model.config), tokenizer)
    engine.model.generation_config = model.generation_config
    engine.sync(weights, 0)
    return engine


def plain(found: Sequence[Completion]) -> list[Any]:
    """All of these completions, to be compared."""
    return [
        (
            one.ids,
            one.truncated,
            one.logps,
            one.text,
            one.unfinished,
            None if one.support is None else one.support.tolist(),
        )
        for one in found
    ]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def parts(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any, ProcessEngine]]:
    """A model, its tokenizer, and an engine with its weights, in a process that is shared by the tests below."""
    model, tokenizer = loaded(tiny_model)
    engine = ProcessEngine(model, tokenizer, threads=torch.get_num_threads(), folder=tmp_path_factory.mktemp("rollout"))
    engine.sync(model.named_parameters(), 0)
    yield model, tokenizer, engine
    engine.close()


def test_its_completions_are_those_of_the_local_engine(parts: tuple[Any, Any, ProcessEngine]) -> None:
    model, tokenizer, engine = parts
    own = LocalEngine(model, tokenizer)
    check_engine(engine, "engine")
    assert engine.capabilities == own.capabilities
    for version, weights in enumerate((other_weights(model, 1.0), other_weights(model, 1.5)), start=1):
        engine.sync(iter(weights), version)
        assert engine.version == version
        expected = local(model, tokenizer, weights).generate(PROMPTS, SAMPLING, seed=version)
        assert engine.generate(PROMPTS, SAMPLING, seed=version) == expected
        assert all(one.logps is not None and len(one.logps) == one.length for one in expected)
    limits = [3, 24, 1, 5, 2, 24, 7]
    expected = local(model, tokenizer, weights).generate(PROMPTS, SAMPLING, seed=3, max_lengths=limits)
    assert complete(engine, PROMPTS, SAMPLING, seed=3, max_lengths=limits) == expected
    assert engine.generate([], SAMPLING, seed=0) == []


@pytest.mark.parametrize("cuts", [{"top_k": 5}, {"top_p": 0.6, "support_top_k": 8}, {}])
def test_seeds_of_rows_and_supports(parts: tuple[Any, Any, ProcessEngine], cuts: dict[str, Any]) -> None:
    model, tokenizer, engine = parts
    weights = other_weights(model, 2.0)
    engine.sync(weights, 30)
    sampling = SamplingSettings(16, temperature=0.8, logprobs=True, support=True, **cuts)
    seeds = [2**62 + place for place in range(len(PROMPTS))]
    options: dict[str, Any] = {"seed": seeds, "max_lengths": [9, 16, 2, 16, 16, 1, 16]}
    expected = local(model, tokenizer, weights).generate(PROMPTS, sampling, **options)
    assert plain(engine.generate(PROMPTS, sampling, **options)) == plain(expected)
    assert all((one.support is not None) == bool(cuts) for one in expected)


def test_completions_are_reported_as_they_end(parts: tuple[Any, Any, ProcessEngine]) -> None:
    _, _, engine = parts
    reported: list[tuple[int, Completion]] = []
    limits = [5, 2, 9, 7, 3, 8, 4]
    rows = {"seed": list(range(7)), "max_lengths": limits}
    found = engine.generate(PROMPTS, SAMPLING, **rows, on_ended=lambda *one: reported.append(one))  # type: ignore[arg-type]
    assert plain([one for _, one in sorted(reported, key=lambda one: one[0])]) == plain(found)
    lengths = [one.length for _, one in reported]
    assert lengths == sorted(lengths)  # all rows grow by a token at a time


def test_an_interrupted_call_is_replayed_and_goes_on(parts: tuple[Any, Any, ProcessEngine]) -> None:
    """What it wrote is what the local engine writes in as many tokens; the rest is written by other weights."""
    model, tokenizer, engine = parts
    weights = other_weights(model, 1.0)
    engine.sync(weights, 40)
    seeds, ended = list(range(70, 77)), list[int]()
    limits = [3000, 3000, 30, 3000, 3000, 3000, 3000]
    sampling = SamplingSettings(3000, temperature=4.0, logprobs=True)
    found = engine.generate(
        *(PROMPTS, sampling),
        seed=seeds,
        max_lengths=limits,
        interrupted=lambda: bool(ended),
        on_ended=lambda row, _: ended.append(row),
    )
    assert [row for row, one in enumerate(found) if not one.unfinished] == ended
    lengths = [one.length for one in found]
    assert 30 <= max(lengths) < 3000
    assert len({one.length for one in found if one.unfinished}) == 1
    expected = local(model, tokenizer, weights).generate(PROMPTS, sampling, seed=seeds, max_lengths=lengths)
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert [one.logps for one in found] == [one.logps for one in expected]
    engine.sync(other_weights(model, 1.5), 41)
    begun = [[*ids, *one.ids] for ids, one in zip(PROMPTS, found, strict=True)]
    short = SamplingSettings(5, temperature=4.0)
    more = engine.generate(begun, short, seed=seeds)
    assert plain(more) == plain(local(model, tokenizer, other_weights(model, 1.5)).generate(begun, short, seed=seeds))
    at_once = engine.generate(PROMPTS, sampling, seed=seeds, interrupted=lambda: True)
    assert all(one.unfinished for one in at_once)


def test_a_callers_error_leaves_the_engine_usable(parts: tuple[Any, Any, ProcessEngine]) -> None:
    """The rest of that call is not taken for the next one's."""
    model, tokenizer, engine = parts
    engine.sync(model.named_parameters(), 50)
    expected = LocalEngine(model, tokenizer).generate(PROMPTS, SAMPLING, seed=1)

    def fail(row: int, one: Completion) -> None:
        raise KeyError(row)

    for failing in ({"on_ended": fail}, {"interrupted": lambda: fail(3, expected[0])}):
        with pytest.raises(KeyError):
            engine.generate(PROMPTS, ENDLESS, seed=0, max_lengths=[2, *[100_000] * 6], **failing)  # type: ignore[arg-type]
        assert engine.generate(PROMPTS, SAMPLING, seed=1) == expected


def test_without_a_seed_every_call_has_another_one(parts: tuple[Any, Any, ProcessEngine]) -> None:
    _, _, engine = parts
    state = torch.get_rng_state()
    assert engine.generate(PROMPTS, SAMPLING) != engine.generate(PROMPTS, SAMPLING)
    assert torch.equal(state, torch.get_rng_state())


def test_weights_from_a_folder_that_others_have_written(parts: tuple[Any, Any, ProcessEngine], tmp_path: Path) -> None:
    model, tokenizer, engine = parts
    weights = other_weights(model, 0.5)
    write_folder(tmp_path, weights)
    engine.sync_folder(tmp_path, 11)
    assert engine.version == 11
    expected = local(model, tokenizer, weights).generate(PROMPTS, SAMPLING, seed=5)
    assert engine.generate(PROMPTS, SAMPLING, seed=5) == expected
    assert len(list(tmp_path.iterdir())) == 1


def test_what_is_wrong_is_said_here(parts: tuple[Any, Any, ProcessEngine], tmp_path: Path) -> None:
    model, tokenizer, engine = parts
    pid, version = engine.pid, engine.version
    with pytest.raises(EngineError, match=r"no weight model\.other of shape \[2\]"):
        engine.sync([("model.other", torch.zeros(2))], 90)
    with pytest.raises(EngineError, match=r"lack 24 of the model's, lm_head|lack 2\d of the model's, model\."):
        engine.sync_folder(tmp_path, 91)  # where nothing is
    assert engine.version == version
    engine.sync(model.named_parameters(), 92)
    with pytest.raises(EngineError, match=r"failed: .*prompt has no tokens"):
        engine.generate([[]], SAMPLING, seed=0)
    engine.sync(model.named_parameters(), 12)
    expected = LocalEngine(model, tokenizer).generate(PROMPTS, SAMPLING, seed=6)
    assert engine.generate(PROMPTS, SAMPLING, seed=6) == expected
    assert engine.pid == pid  # none of it ended the process


@pytest.mark.slow
def test_a_call_goes_on_in_another_process_when_one_is_killed(
    parts: tuple[Any, Any, ProcessEngine], caplog: pytest.LogCaptureFixture
) -> None:
    model, tokenizer, engine = parts
    weights = other_weights(model, 1.25)
    engine.sync(weights, 20)
    long = SamplingSettings(3000, temperature=3.0, logprobs=True)
    first = engine.pid
    assert first is not None
    killer = threading.Timer(0.3, os.kill, (first, signal.SIGKILL))
    killer.start()
    reported: list[int] = []
    found = engine.generate(
        *(PROMPTS, long),
        seed=8,
        max_lengths=[3000, 3, 3000, 3000, 7, 3000, 3000],
        on_ended=lambda row, _: reported.append(row),
    )
    killer.join()
    assert sorted(reported) == list(range(7))  # each once
    assert {reported[0], reported[1]} == {1, 4}
    assert found == local(model, tokenizer, weights).generate(
        PROMPTS, long, seed=8, max_lengths=[3000, 3, 3000, 3000, 7, 3000, 3000]
    )
    assert engine.pid != first
    assert engine.version == 20
    assert "was ended by the signal SIGKILL while it generated" in caplog.text
    assert not psutil.pid_exists(first)


@pytest.mark.slow
@pytest.mark.long
def test_a_process_that_dies_again_and_again(tiny_model: str, tmp_path: Path) -> None:
    """The end of its output says why."""
    model, tokenizer = loaded(tiny_model)
    engine = ProcessEngine(model, tokenizer, folder=tmp_path)
    engine.sync(model.named_parameters(), 0)
    stop = threading.Event()

    def kill() -> None:
        while not stop.wait(0.01):
            process = engine._process
            if process is not None and process.ready and psutil.pid_exists(process.pid):
                os.kill(process.pid, signal.SIGSEGV)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(EngineError, match=r"while it generated, 3 times in a row\. The end of its output: .*child"):
            engine.generate(PROMPTS, ENDLESS, seed=0)
    finally:
        stop.set()
        killer.join()
    assert engine.generate(PROMPTS, SAMPLING, seed=0)  # it can be asked again
    engine.close()


@pytest.mark.slow
def test_closing_ends_a_call_and_the_process(tiny_model: str) -> None:
    model, tokenizer = loaded(tiny_model)
    engine = ProcessEngine(model, tokenizer)
    engine.sync(model.named_parameters(), 0)
    raised: list[BaseException] = []

    def generate() -> None:
        try:
            engine.generate(PROMPTS, ENDLESS, seed=0)
        except EngineError as error:
            raised.append(error)

    thread = threading.Thread(target=generate)
    thread.start()
    time.sleep(0.3)
    pid = engine.pid
    engine.close()
    thread.join(SECONDS)
    assert [str(error) for error in raised] == ["The rollout engine was closed."]
    assert pid is not None
    assert not psutil.pid_exists(pid)
    with pytest.raises(EngineError, match="was closed"):
        engine.generate(PROMPTS, SAMPLING)
    engine.close()


@pytest.mark.slow
def test_signals_of_the_terminal_are_the_trainers(tiny_model: str) -> None:
    """The process is in a session of its own, and outlives the thread that asked first."""
    model, tokenizer = loaded(tiny_model)
    engine = ProcessEngine(model, tokenizer, threads=torch.get_num_threads())
    thread = threading.Thread(target=engine.sync, args=(list(model.named_parameters()), 0))
    thread.start()
    thread.join(SECONDS)
    pid = engine.pid
    assert pid is not None
    assert os.getsid(pid) == pid
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    assert engine.generate(PROMPTS, SAMPLING, seed=1) == LocalEngine(model, tokenizer).generate(
        PROMPTS, SAMPLING, seed=1
    )
    assert engine.pid == pid
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_trainer(tiny_model: str, tmp_path: Path, number: signal.Signals) -> None:
    """While it generates."""
    sign = tmp_path / "pid"
    trainer = subprocess.Popen([sys.executable, "-m", "tests.support.rollout_trainer", tiny_model, str(sign)])
    until(sign.exists)
    time.sleep(0.5)
    child = psutil.Process(int(sign.read_text()))
    assert child.is_running()
    trainer.send_signal(number)
    trainer.wait(SECONDS)
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.slow
def test_a_reasoning_vocabulary(wide_starter: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its tokens are masked there too; and what the process logs is logged here."""
    model, tokenizer = loaded(str(wide_starter))
    engine = ProcessEngine(model, tokenizer, threads=torch.get_num_threads(), shared_prefill=True)
    engine.sync(model.named_parameters(), 0)
    sampling = SamplingSettings(60, logprobs=True)
    assert engine.generate(PROMPTS, sampling, seed=2) == LocalEngine(model, tokenizer).generate(
        PROMPTS, sampling, seed=2
    )
    with pytest.raises(DataError, match="reasoning token"):
        engine.generate([[model.config.vocab_size - 1]], sampling, seed=2)
    with caplog.at_level(logging.INFO):
        model.generation_config.num_beams = 2
        slow = ProcessEngine(model, tokenizer)
        with pytest.raises(EngineError, match="no weights"):
            slow.generate(PROMPTS, sampling)
        slow.sync(model.named_parameters(), 0)
        slow.generate(PROMPTS, SamplingSettings(3), seed=0)
    assert "num_beams" in caplog.text
    for one in (engine, slow):
        one.close()


@pytest.mark.slow
def test_a_model_by_name(tiny_model: str) -> None:
    """As `rollout.engine` makes engines."""
    model, tokenizer = loaded(tiny_model)
    options = {"dtype": None, "batch_size": 3, "revision": None, "trust_remote_code": False}
    options["threads"] = torch.get_num_threads()  # with another number, sums are rounded in another order
    name = "covey.rollout.process.engine:ProcessEngine"
    engine = make_engine(name, "rollout.engine", model_name=tiny_model, tokenizer=tokenizer, **options)
    own = LocalEngine(model, tokenizer, batch_size=3)
    assert engine.version is None
    assert engine.generate(PROMPTS, SAMPLING, seed=4) == own.generate(PROMPTS, SAMPLING, seed=4)
    engine.close()
    with pytest.raises(EngineError, match="The rollout process failed: "):
        make_engine(name, "rollout.engine", model_name=f"{tiny_model}/none", tokenizer=tokenizer, **options)


@pytest.mark.slow
def test_an_engine_that_is_forgotten(tiny_model: str) -> None:
    """It leaves neither a process nor a folder."""
    model, tokenizer = loaded(tiny_model)
    engine = ProcessEngine(model, tokenizer)
    engine.sync(model.named_parameters(), 0)
    pid, folder = engine.pid, engine._folder
    assert pid is not None
    assert folder.is_dir()
    del engine
    gc.collect()
    assert not psutil.pid_exists(pid)
    assert not folder.exists()


def test_what_cannot_be_sent_and_what_was_closed(tiny_model: str) -> None:
    model, tokenizer = loaded(tiny_model)
    engine = ProcessEngine(model, tokenizer)
    engine.close()
    with pytest.raises(EngineError, match=r"^The rollout engine was closed\.$"):
        engine.generate(PROMPTS, SAMPLING)
    tokenizer.helper = lambda: None
    with pytest.raises(EngineError, match=r"cannot be sent to the rollout process: .* Their classes must be"):
        ProcessEngine(model, tokenizer)


def test_the_threads() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert default_threads() == max(1, cores // 2)


def test_the_process_sees_only_the_gpu_that_the_launcher_has_left_to_it(
    tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer with several visible GPUs would spread its model over them, so it does not see this one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setenv("COVEY_SAMPLING_GPU", "GPU-8a")
    engine = ProcessEngine(*loaded(tiny_model))
    try:
        assert engine.pid is not None
        found = psutil.Process(engine.pid).environ()
        assert found["CUDA_VISIBLE_DEVICES"] == "GPU-8a"
        assert "COVEY_SAMPLING_GPU" not in found
    finally:
        engine.close()
