"""A server as an engine beside training: a request per completion, aborted, repeated, and never from other weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from completion_server import SLOW, CompletionServer, FakeClient, choice
from covey.errors import EngineError
from covey.rollout import Completion, SamplingSettings, complete
from covey.rollout.generate import check_engine
from covey.rollout.vllm.server_engine import ServerEngine
from covey.rollout.weight_folder import write_folder

PROMPTS = [[7, 8], [9]] * 4
SEEDS = list(range(100, 108))
SAMPLING = SamplingSettings(8, temperature=0.7, top_p=0.9, repetition_penalty=1.1, stop_token_ids=(4,), logprobs=True)


@pytest.fixture
def servers() -> Iterator[list[CompletionServer]]:
    started = [CompletionServer(), CompletionServer("second")]
    yield started
    for server in started:
        server.released.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def client(servers: list[CompletionServer]) -> FakeClient:
    return FakeClient(servers[0])


@pytest.fixture
def engine(client: FakeClient) -> Iterator[ServerEngine]:
    made = ServerEngine(client, vocab_size=50)
    yield made
    made.close()
    client.session.close()


def test_every_completion_is_a_request(servers: list[CompletionServer], engine: ServerEngine) -> None:
    check_engine(engine, "engine")
    limits = [8, 1, 8, 2, 8, 8, 3, 8]
    reported: list[int] = []
    found = complete(
        engine, PROMPTS, SAMPLING, seed=SEEDS, max_lengths=limits, on_ended=lambda row, _: reported.append(row)
    )
    assert sorted(reported) == list(range(8))
    asked = servers[0].received
    assert len(asked) == 8
    assert len({one["seed"] for one in asked}) == 8
    assert {tuple(one["prompt"]) for one in asked} == {(7, 8), (9,)}
    values = {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1, "stop_token_ids": [4], "logprobs": 0}
    assert all(values.items() <= one.items() for one in asked)
    by_tokens = {tuple(choice(one)["token_ids"]): one["max_tokens"] for one in asked}
    assert [by_tokens[tuple(one.ids)] for one in found] == limits
    for one, limit in zip(found, limits, strict=True):
        assert one.logps == [-0.7] * one.length
        assert one.truncated == (one.length == limit)
        assert not one.unfinished
    assert complete(engine, PROMPTS, SAMPLING, seed=SEEDS, max_lengths=limits) == found
    begun = [[*ids, *one.ids] for ids, one in zip(PROMPTS, found, strict=True)]
    engine.generate(begun, SAMPLING, seed=SEEDS)
    assert len({one["seed"] for one in asked}) == 16  # no number is used twice
    assert len({tuple(one.ids) for one in engine.generate([[7]] * 8, SAMPLING, seed=3)}) == 8
    assert engine.generate(PROMPTS, SAMPLING) != engine.generate(PROMPTS, SAMPLING)
    assert engine.generate([], SAMPLING) == []


def test_supports(servers: list[CompletionServer], engine: ServerEngine) -> None:
    """Two of three tokens have a finite log-probability."""
    sampling = SamplingSettings(8, top_p=0.9, logprobs=True, support=True, support_top_k=3)
    (one,) = engine.generate([[7]], sampling, seed=[1])
    assert (servers[0].received[0]["top_k"], servers[0].received[0]["logprobs"]) == (3, 3)
    assert one.support is not None
    assert one.support.tolist() == [[token, token + 1] for token in one.ids]
    assert one.logps == pytest.approx([torch.tensor(0.5).log().item()] * one.length)


def test_an_interrupted_call(servers: list[CompletionServer], client: FakeClient) -> None:
    """Those in flight have what was written, those that wait nothing; the server goes on afterwards."""
    engine = ServerEngine(client, vocab_size=50, concurrency=4)
    prompts = [[7], [SLOW, 8], [SLOW, 8], [SLOW], [SLOW, 9], [SLOW, 9]]
    reported: list[int] = []
    found = engine.generate(
        *(prompts, SAMPLING),
        seed=SEEDS[:6],
        interrupted=lambda: bool(reported) and len(servers[0].received) >= 5,
        on_ended=lambda row, _: reported.append(row),
    )
    assert reported == [0]
    assert [one.unfinished for one in found] == [False, *[True] * 5]
    assert [one.length for one in found[1:]] == [1, 1, 1, 1, 0]
    assert all(one.logps is not None and len(one.logps) == one.length for one in found)
    assert servers[0].commands[-1] == "/resume"
    assert servers[0].commands.count("/resume") == 1
    assert engine.generate(PROMPTS, SAMPLING, seed=SEEDS)
    engine.close()


def test_the_requests_of_a_lost_server_are_repeated(
    servers: list[CompletionServer], client: FakeClient, engine: ServerEngine, tmp_path: Path
) -> None:
    """By another one, which gets the weights first; what the first has answered is kept."""
    first, second = servers
    write_folder(tmp_path, [("weight", torch.ones(2))])
    engine.sync_folder(tmp_path, 5)
    assert engine.version == 5
    expected = engine.generate(PROMPTS, SAMPLING, seed=SEEDS)
    first.received.clear()
    first.dies_after = 3
    client.next_server = second
    reported: list[int] = []
    assert engine.generate(PROMPTS, SAMPLING, seed=SEEDS, on_ended=lambda row, _: reported.append(row)) == expected
    assert sorted(reported) == list(range(8))
    assert len(second.received) == 5
    assert client.loaded == [["00000.safetensors"]] * 2


def test_completions_of_another_server_do_not_count(
    servers: list[CompletionServer], client: FakeClient, engine: ServerEngine, tmp_path: Path
) -> None:
    """One that has taken the place of the first has other weights, until it is synced."""
    engine.sync([("weight", torch.ones(2))], 5)
    servers[0].instance = "third"
    client.next_server = servers[1]
    assert len(engine.generate(PROMPTS, SAMPLING, seed=SEEDS)) == 8
    assert len(servers[1].received) == 8
    servers[1].instance, client.next_server = "fourth", None
    with pytest.raises(EngineError, match=r"in 5 tries: the completions came from another server"):
        engine.generate(PROMPTS[:1], SAMPLING, seed=SEEDS[:1])
    client.lost = ["it did not take the weights"] * 7
    with pytest.raises(EngineError, match=r"sent to a vLLM server in 5 tries: it did not take the weights"):
        engine.sync([("weight", torch.ones(2))], 6)
    assert engine.version == 5


def test_a_refused_request_ends_the_others(servers: list[CompletionServer], engine: ServerEngine) -> None:
    with pytest.raises(EngineError, match=r"refused a request \(400\): .*too long"):
        engine.generate([[SLOW]] * 4 + [[0]], SAMPLING, seed=SEEDS[:5])
    assert servers[0].commands[-1] == "/resume"


def test_closing_ends_a_call(servers: list[CompletionServer], engine: ServerEngine) -> None:
    raised: list[str] = []

    def generate() -> None:
        try:
            engine.generate([[SLOW]] * 4, SAMPLING, seed=SEEDS[:4])
        except EngineError as error:
            raised.append(str(error))

    thread = threading.Thread(target=generate)
    thread.start()
    while len(servers[0].received) < 4:
        time.sleep(0.01)
    engine.close()
    thread.join(60)
    assert raised == ["The engine was closed."]
    assert servers[0].commands[-1] == "/resume"


def test_no_answer_while_interrupted(servers: list[CompletionServer], client: FakeClient) -> None:
    """Whoever is interrupted does not wait for another server."""
    servers[0].dies_after = 0
    engine = ServerEngine(client, vocab_size=50)
    found = engine.generate([[7]] * 3, SAMPLING, seed=SEEDS[:3], interrupted=lambda: True)
    assert found == [Completion([], truncated=False, logps=[], unfinished=True)] * 3
    engine.close()
