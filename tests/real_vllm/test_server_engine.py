"""A vLLM server as an engine beside training: seeds, log-probs, supports, interruption, and a lost server."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from covey.rollout import Completion, SamplingSettings
from covey.rollout.vllm.server_engine import ServerEngine
from covey.training.trl.engine_client import EngineClient
from servers import Server, StartServer

pytestmark = pytest.mark.vllm

PROMPTS = [[5, 6, 7]] * 4 + [[8, 9]] * 4
SEEDS = [2**62 + place for place in range(8)]
LONG = SamplingSettings(230, temperature=1.9, logprobs=True)


def engine_of(server: Server) -> ServerEngine:
    server.wait()
    client = EngineClient(base_url=f"http://127.0.0.1:{server.port}", connection_timeout=240.0)
    client.init_communicator("cpu")
    return ServerEngine(client, vocab_size=10_000)


@pytest.fixture(scope="module")
def engine(start_server: StartServer, tied_model: str) -> ServerEngine:
    return engine_of(start_server(tied_model))


def weights_of(folder: str, scale: float) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale)
    return model.eval()


def forward_logps(model: Any, prompt: list[int], one: Completion, temperature: float) -> torch.Tensor:
    """Log-probabilities of a completion's tokens, over its support if it has one."""
    with torch.no_grad():
        logits_TV = model(torch.tensor([prompt + one.ids])).logits[0, len(prompt) - 1 : -1] / temperature
    if one.support is not None:
        kept_TV = torch.zeros(len(one.ids), logits_TV.shape[1] + 1, dtype=torch.bool)
        kept_TV.scatter_(1, one.support.long() % kept_TV.shape[1], True)
        logits_TV = logits_TV.masked_fill(~kept_TV[:, :-1], -torch.inf)
    return logits_TV.log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None])[:, 0]


@pytest.mark.parametrize("cuts", [{}, {"top_k": 5}, {"top_p": 0.7, "support_top_k": 12}, {"min_p": 0.1, "top_k": 9}])
def test_log_probs_are_the_models(engine: ServerEngine, tied_model: str, cuts: dict[str, Any]) -> None:
    model = weights_of(tied_model, 1.5)
    engine.sync(model.named_parameters(), 3)
    assert engine.version == 3
    sampling = SamplingSettings(20, temperature=0.7, logprobs=True, support=True, **cuts)
    limits = [20, 3, 20, 1, 20, 20, 7, 20]
    found = engine.generate(PROMPTS, sampling, seed=SEEDS, max_lengths=limits)
    assert all(1 <= one.length <= limit for one, limit in zip(found, limits, strict=True))
    for prompt, one in zip(PROMPTS, found, strict=True):
        assert (one.support is not None) == bool(cuts)
        difference = forward_logps(model, prompt, one, 0.7) - torch.tensor(one.logps)
        assert difference.abs().max() < 1e-4
    assert [one.ids for one in engine.generate(PROMPTS, sampling, seed=SEEDS, max_lengths=limits)] == [
        one.ids for one in found
    ]
    others = engine.generate(PROMPTS, sampling, seed=[seed + 1 for seed in SEEDS])
    assert [one.ids for one in others] != [one.ids for one in found]
    assert len({tuple(one.ids) for one in engine.generate([[5, 6, 7]] * 8, sampling, seed=1)}) > 1


def test_an_interrupted_call(engine: ServerEngine, tied_model: str) -> None:
    """Each row has what was written so far, and goes on with other weights."""
    model = weights_of(tied_model, 1.0)
    engine.sync(model.named_parameters(), 4)
    reported, began = [], time.monotonic()
    found = engine.generate(
        *(PROMPTS * 8, LONG),
        seed=SEEDS * 8,
        max_lengths=[*[230] * 63, 2],
        interrupted=lambda: bool(reported) or time.monotonic() > began + 60,
        on_ended=lambda row, _: reported.append(row),
    )
    unfinished = [one for one in found if one.unfinished]
    assert unfinished
    assert sorted(reported) == [row for row, one in enumerate(found) if not one.unfinished]
    assert 63 in reported
    assert max(one.length for one in unfinished) > 0
    for prompt, one in zip(PROMPTS * 8, found, strict=True):
        assert one.logps is not None
        assert len(one.logps) == one.length < 230
        if one.ids:
            assert (forward_logps(model, prompt, one, 1.9) - torch.tensor(one.logps)).abs().max() < 1e-4
    engine.sync(weights_of(tied_model, 1.2).named_parameters(), 5)
    begun = [[*ids, *one.ids] for ids, one in zip(PROMPTS, found, strict=False)]
    more = engine.generate(begun, SamplingSettings(4, logprobs=True), seed=SEEDS)
    assert all(not one.unfinished for one in more)  # the server is not paused any more
    nothing = engine.generate(PROMPTS, LONG, seed=SEEDS, interrupted=lambda: True)
    assert all(one.unfinished for one in nothing)


def test_the_requests_of_a_lost_server_are_repeated(
    start_server: StartServer, tied_model: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed while it generates: another one gets the weights first."""
    server = start_server(tied_model)
    engine = engine_of(server)
    model = weights_of(tied_model, 1.5)
    engine.sync(model.named_parameters(), 7)
    expected = engine.generate(PROMPTS, LONG, seed=SEEDS)

    def replace() -> None:
        server.kill()
        start_server(tied_model, port=server.port)

    killer = threading.Timer(0.1, replace)
    killer.start()
    reported: list[int] = []
    with caplog.at_level(logging.WARNING, logger="covey"):
        found = engine.generate(PROMPTS * 8, LONG, seed=SEEDS * 8, on_ended=lambda row, _: reported.append(row))
    killer.join()
    assert "Its requests are repeated" in caplog.text
    assert sorted(reported) == list(range(64))
    assert [one.ids for one in found[:8]] == [one.ids for one in expected]
    for prompt, one in zip(PROMPTS, found, strict=False):
        assert (forward_logps(model, prompt, one, 1.9) - torch.tensor(one.logps)).abs().max() < 1e-4
