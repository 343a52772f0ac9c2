"""Adapters on their way to vLLM: what is written, what is proven before the first sync, and a server's bookkeeping.

vLLM is a fake here: the base model with peft, which reads the folder. Real engines: tests/real_vllm.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import torch
from accelerate import Accelerator
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.distributed import DistributedBackend

from covey.errors import ConfigError, EngineError
from covey.log_once import begin_run
from covey.rollout.vllm import engine as vllm_engine
from covey.training.trl.engine_client import EngineClient
from covey.training.trl.engine_lora import PolicyAdapter, chosen_adapter, model_refusal, target_names
from covey.training.trl.vllm import EngineGeneration, trainer_logps
from forked import run_two

ROWS = [[5, 6, 7, 8], [9, 4, 11]]


def policy(model: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": "all-linear", **settings})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`")
        return get_peft_model(AutoModelForCausalLM.from_pretrained(model), config)


def fill(model: Any, spread: float = 0.3) -> None:
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=spread)


@pytest.fixture
def backend() -> DistributedBackend:
    return DistributedBackend(Accelerator(cpu=True))


def test_a_written_adapter_is_the_policys(tiny_model: str, tmp_path: Path) -> None:
    model = policy(tiny_model, use_rslora=True)
    fill(model)
    adapter = PolicyAdapter(model, tmp_path / "shared")
    name, folder = adapter.write(adapter.tensors(), 12)
    assert name.startswith("covey-v12-")
    assert folder.is_relative_to(tmp_path / "shared")
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), str(folder))
    assert trainer_logps(again, ROWS) == trainer_logps(model, ROWS)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 0.5 * sum(
        weights.nbytes for weights in model.parameters()
    )


def test_names_are_never_used_twice_and_old_folders_are_deleted(tiny_model: str) -> None:
    """vLLM finds cached prefixes by the adapter's name: a name of an earlier run would give that run's."""
    adapter = PolicyAdapter(policy(tiny_model))
    written = [adapter.write(adapter.tensors(), 3) for _ in range(3)]
    assert len({name for name, _ in written}) == 3
    assert [folder.is_dir() for _, folder in written] == [False, True, True]


def test_the_adapter_of_the_reference_is_left_out(tiny_model: str) -> None:
    model = policy(tiny_model)
    model.add_adapter("ref", LoraConfig(r=2, target_modules="all-linear"))
    adapter = PolicyAdapter(model)
    assert all(".lora_" in name and "ref" not in name for name in adapter.tensors())
    assert {weights.shape[0] for name, weights in adapter.tensors().items() if "lora_A" in name} == {4}


def test_random_weights_change_the_model_and_are_taken_back(tiny_model: str) -> None:
    model = policy(tiny_model)
    fill(model)
    state, before = torch.get_rng_state(), trainer_logps(model, ROWS)
    with PolicyAdapter(model).random(0.5):
        assert trainer_logps(model, ROWS) != before
    assert trainer_logps(model, ROWS) == before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": {"embed_tokens": [1, 2]}}, "rows of the embedding"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "an embedding"),
        ({"target_modules": ["q_proj", "lm_head"]}, "output layer"),
    ],
)
def test_what_an_adapter_cannot_hold_is_a_reason(
    settings: dict[str, Any], reason: str, tiny_model: str, backend: DistributedBackend
) -> None:
    assert reason in str(model_refusal(policy(tiny_model, **settings), backend))


def test_other_trained_weights_quantised_bases_and_pictures_are_reasons(
    tiny_model: str, backend: DistributedBackend
) -> None:
    model = policy(tiny_model)
    assert model_refusal(model, backend) is None
    assert target_names(model) == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    norm = next(weights for name, weights in model.named_parameters() if "norm" in name)
    norm.requires_grad = True
    assert "is trained besides it" in str(model_refusal(model, backend))
    norm.requires_grad = False
    config = model.get_base_model().config
    config.vision_config = {}
    assert "reads images" in str(model_refusal(model, backend))
    config.quantization_config = {}
    assert "quantised" in str(model_refusal(model, backend))


def test_auto_merges_with_a_reason_and_adapter_refuses(
    tiny_model: str, backend: DistributedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    begin_run()
    model, plain = policy(tiny_model), AutoModelForCausalLM.from_pretrained(tiny_model)
    assert chosen_adapter(model, backend, "merge", lambda _: None) is None
    assert chosen_adapter(plain, backend, "auto", lambda _: "never asked") is None
    assert not caplog.text
    found = chosen_adapter(model, backend, "auto", lambda rank: None if rank == 4 else "another rank")
    assert found is not None
    for _ in range(2):
        assert chosen_adapter(model, backend, "auto", lambda _: "the server is full") is None
    assert caplog.text.count("merged, not the adapter alone: the server is full") == 1
    with pytest.raises(ConfigError, match=r"vllm_lora_sync=adapter, .*: the server is full\. With auto or merge"):
        chosen_adapter(model, backend, "adapter", lambda _: "the server is full")
    with pytest.raises(ConfigError, match=r"trains none"):
        chosen_adapter(plain, backend, "adapter", lambda _: None)


class FakeVLLM:
    """An engine with the base model, which computes with the adapters that it is given."""

    def __init__(self, base: Any, *, forgets: str = "no layer") -> None:
        self.base, self.forgets, self.adapters = base, forgets, dict[int, Any]()
        self.llm_engine = SimpleNamespace(
            add_lora=self._add,
            remove_lora=self.adapters.pop,
            model_config=SimpleNamespace(dtype=torch.float32, max_model_len=64),
        )

    def _add(self, request: Any) -> None:
        base = AutoModelForCausalLM.from_config(self.base.config)
        base.load_state_dict(self.base.state_dict())
        model = PeftModel.from_pretrained(base, request.folder)
        for name, weights in model.named_parameters():
            if self.forgets in name and "lora_B" in name:
                weights.data.zero_()
        self.adapters[request.lora_int_id] = model

    def prompt_logps(self, rows: Any, request: Any) -> Any:
        return trainer_logps(self.base if request is None else self.adapters[request.lora_int_id], rows)


@pytest.fixture
def engine_of(monkeypatch: pytest.MonkeyPatch, tiny_model: str) -> Callable[..., Any]:
    """Makes an `EngineGeneration` around a fake."""
    monkeypatch.setattr(vllm_engine, "prompt_logps", lambda llm, rows, adapter: llm.prompt_logps(rows, adapter))
    monkeypatch.setattr(vllm_engine, "engine_errors", lambda _: nullcontext())
    monkeypatch.setattr(
        vllm_engine,
        "adapter_request",
        lambda name, number, folder: SimpleNamespace(lora_name=name, lora_int_id=number, folder=str(folder)),
    )
    monkeypatch.setattr(
        vllm_engine, "load_into", lambda llm, named: llm.base.load_state_dict(dict(named), strict=False)
    )

    def make(model: Any, llm: FakeVLLM, sync: str = "adapter") -> Any:
        begin_run()
        made = object.__new__(EngineGeneration)
        accelerator = Accelerator(cpu=True)
        made.__dict__ |= {
            **{"mode": "colocate", "enable_sleep_mode": False, "llm": llm, "model": model, "_gaps": [], "_syncs": 0},
            **{"accelerator": accelerator, "_dist": DistributedBackend(accelerator), "_sync_checks": {}},
            **{
                "processing_class": AutoTokenizer.from_pretrained(tiny_model),
                "_lora_sync": sync,
                "_adapter": PolicyAdapter(model),
            },
        }
        return made

    return make


def test_syncs_send_the_adapter_and_drop_the_one_before(tiny_model: str, engine_of: Callable[..., Any]) -> None:
    model = policy(tiny_model)
    llm = FakeVLLM(AutoModelForCausalLM.from_pretrained(tiny_model))
    engine = engine_of(model, llm)
    names = []
    for step in range(3):
        engine.step_now = lambda step=step: step
        fill(model, 0.1 * step + 1e-6)
        engine.sync_weights()
        assert llm.prompt_logps(ROWS, engine._request) == trainer_logps(model, ROWS)
        assert list(llm.adapters) == [engine._request.lora_int_id]
        names.append(engine._request.lora_name.rpartition("-")[0])
    assert names == ["covey-v0", "covey-v1", "covey-v2"]
    assert all(gap < 1e-6 for gap in engine.take_metrics().values())


@pytest.mark.parametrize("sync", ["adapter", "auto"])
def test_an_engine_that_leaves_out_a_layer_is_noticed_with_a_new_adapter(
    sync: str, tiny_model: str, engine_of: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The adapter is new and changes nothing: only random weights tell."""
    model = policy(tiny_model)
    llm = FakeVLLM(AutoModelForCausalLM.from_pretrained(tiny_model), forgets="layers.1.mlp.down_proj")
    engine = engine_of(model, llm, sync)
    if sync == "adapter":
        with pytest.raises(ConfigError, match=r"its log-probs differ .* random weights of the adapter"):
            engine.sync_weights()
        return
    engine.sync_weights()
    assert "random weights of the adapter" in caplog.text
    assert (engine._adapter, engine._request) == (None, None)
    fill(model)
    engine.sync_weights()  # merged, and checked
    assert torch.allclose(torch.tensor(llm.prompt_logps(ROWS, None)[0]), torch.tensor(trainer_logps(model, ROWS)[0]))


def test_other_base_weights_are_replaced_once_and_without_the_adapter(
    tiny_model: str, engine_of: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    model = policy(tiny_model)
    fill(model)
    other = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        for weights in other.parameters():
            weights += 0.1 * torch.randn_like(weights)
    llm = FakeVLLM(other)
    engine = engine_of(model, llm)
    with caplog.at_level(logging.INFO):
        engine.sync_weights()
        engine.sync_weights()
    assert caplog.text.count("base weights are not the trainer's") == 1
    with model.disable_adapter():
        assert llm.prompt_logps(ROWS, None) == trainer_logps(model, ROWS)


def test_an_adapter_that_does_not_arrive_stops_the_run(
    tiny_model: str, engine_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = policy(tiny_model)
    engine = engine_of(model, FakeVLLM(AutoModelForCausalLM.from_pretrained(tiny_model)))
    engine.sync_tolerance = 1e6
    engine.sync_weights()
    fill(model, 1e-3)
    monkeypatch.setattr(EngineGeneration, "_load_adapter", lambda *_: None)
    with pytest.raises(EngineError, match=r"bit for bit"):
        engine.sync_weights()


class Answers(BaseHTTPRequestHandler):
    """A server that takes adapters, except those with `bad` in their folder's name."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.calls.append((self.path, body))  # type: ignore[attr-defined]
        self.send_response(500 if "bad" in body else 200)
        self.send_header("x-covey-engine", "one")
        self.end_headers()
        self.wfile.write(b"no such folder" if "bad" in body else b"{}")

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def client() -> Iterator[Any]:
    """A client of such a server; `calls` are the requests."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.calls = []  # type: ignore[attr-defined]
    Thread(target=server.serve_forever, daemon=True).start()
    made = object.__new__(EngineClient)
    made._requests = Counter[str]()
    made.__dict__ |= {
        "_held": [],
        "session": requests.Session(),
        "model": "base",
        "base_model": "base",
        "_synced": "one",
    }
    made.__dict__ |= {"base_url": f"http://127.0.0.1:{server.server_port}", "_replicas": 1, "_lora": None}
    made.__dict__ |= {"_device": torch.device("cpu"), "calls": server.calls}  # type: ignore[attr-defined]
    yield made
    server.shutdown()
    server.server_close()


def test_old_adapters_are_dropped_when_no_request_uses_them(client: Any, tmp_path: Path) -> None:
    def unloaded() -> list[str]:
        return [body.split('"')[3] for path, body in client.calls if "unload" in path]

    client.load_adapter("v1", tmp_path)
    client._requests["v1"] += 1  # a request that is still answered
    client.load_adapter("v2", tmp_path)
    assert (client.model, client._held, unloaded()) == ("v2", ["v1", "v2"], [])
    client._requests["v1"] -= 1
    client.load_adapter("v3", tmp_path)
    assert (client.model, client._held, unloaded()) == ("v3", ["v3"], ["v1", "v2"])
    client.drop_adapters()
    assert (client.model, client._held, unloaded()[2:]) == ("base", [], ["v3"])


def test_an_adapter_that_a_server_refuses_is_an_error_and_a_lost_server_is_noted(client: Any, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"does not take the adapter \(500, load_lora_adapter\): no such folder"):
        client.load_adapter("v1", tmp_path / "bad")
    assert (client.model, len(client.calls)) == ("base", 1), "asked once: it is no passing failure"
    client.base_url = "http://127.0.0.1:9"
    client.load_adapter("v1", tmp_path)
    assert "did not take the adapter" in client.take_lost()


@pytest.mark.parametrize(
    ("lora", "replicas", "reason"),
    [
        (None, 1, "started without adapters: start it with .*--max-lora-rank 8"),
        ({"max_lora_rank": 4, "target_modules": ["q_proj"]}, 1, "ranks up to 4"),
        ({"max_lora_rank": 8, "target_modules": ["q_proj"]}, 2, "one of the 2 replicas"),
        ({"max_lora_rank": 8, "target_modules": None}, 1, "output layer"),
        ({"max_lora_rank": 8, "target_modules": ["q_proj"]}, 1, None),
    ],
)
def test_what_a_server_was_started_with_decides(client: Any, lora: Any, replicas: int, reason: str | None) -> None:
    client._lora, client._replicas = lora, replicas
    found = client.adapter_refusal(8)
    assert (found is None) == (reason is None)
    if reason is not None:
        assert re.search(reason, found)


@pytest.mark.slow
def test_a_sharded_adapter_is_sent_whole(tmp_path: Path) -> None:
    run_two("sharded_adapters.py", str(tmp_path), folder=tmp_path)
    assert [(tmp_path / rank).read_text() for rank in ("0", "1")] == ["same", "same"]
