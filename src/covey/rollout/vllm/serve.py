"""A vLLM server for training: `python -m covey.rollout.vllm.serve --model MODEL`.

It executes vLLM's own server (`vllm serve`) with what a trainer needs: processed log-probabilities, the development
endpoints, weight transfer (NCCL on GPUs, a folder on CPUs), and an instance id in a header of every response, so that a
trainer notices when the server was replaced. Arguments that are not listed here are passed on to `vllm serve`.
"""

from __future__ import annotations

import argparse
import hmac
import importlib.metadata
import ipaddress
import json
import os
import socket
import sys
import uuid
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from covey.advice import install
from covey.config.secrets import ENGINE_KEY
from covey.config.vllm import RANKS, lora_options
from covey.errors import CoveyError, EngineError
from covey.rollout.vllm.engine import WORKER, cpu_options, installed, thinking_processors

INSTANCE_HEADER = "x-covey-engine"
"""Header of every response: the id of the server's process."""
INSTANCE_VARIABLE = "COVEY_ENGINE_INSTANCE"

_SIGTERM_SHIELD = Path(__file__).with_name("sigterm_shield.py")
"""Runs vLLM's module such that SIGTERM stays blocked if the launcher blocked it."""

_CPU_SEQUENCES = 64
"""Concurrent sequences on a CPU, where more of them are not faster."""

Message = MutableMapping[str, Any]


class Instance:
    """ASGI middleware that adds `INSTANCE_HEADER` to every response, and requires the key if one is set.

    vLLM's own `--api-key` protects `/v1/…` only, not the development endpoints, which run methods by name.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        key = os.environ.get(ENGINE_KEY)
        self._required = f"Bearer {key}".encode() if key else None
        self._header = (INSTANCE_HEADER.encode(), os.environ.get(INSTANCE_VARIABLE, uuid.uuid4().hex).encode())

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Pass the request on, and add the header to its response."""

        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), self._header]
            await send(message)

        if scope["type"] in ("http", "websocket") and not self._is_authorized(scope):
            await _refuse(scope["type"], send)
            return
        await self._app(scope, receive, send_with_header if scope["type"] == "http" else send)

    def _is_authorized(self, scope: Message) -> bool:
        if self._required is None or scope.get("path") == "/health":
            return True
        sent = dict(scope.get("headers") or ()).get(b"authorization", b"")
        return hmac.compare_digest(sent, self._required)


async def _refuse(kind: str, send: Callable[[Message], Awaitable[None]]) -> None:
    if kind == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"text/plain")]})
    body = f"This vLLM server requires the key that it was started with ({ENGINE_KEY}).".encode()
    await send({"type": "http.response.body", "body": body})


def parser() -> argparse.ArgumentParser:
    """The arguments of this command."""
    made = argparse.ArgumentParser(
        prog="python -m covey.rollout.vllm.serve",
        description="Start a vLLM server to train with. Further arguments are passed on to `vllm serve`.",
    )
    made.add_argument("--model", required=True, help="folder or hub id of the model that is trained")
    made.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    made.add_argument("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
    made.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs that share the model")
    made.add_argument("--max-model-len", type=int, help="longest prompt and completion together, in tokens")
    made.add_argument(
        "--gpu-memory-utilization", type=float, default=0.9, help="share of the memory to use (default: %(default)s)"
    )
    made.add_argument(
        "--dtype",
        default="auto",
        help="dtype of weights and computation; auto is float32 on a CPU, vLLM's choice on a GPU",
    )
    made.add_argument(
        "--max-lora-rank",
        type=int,
        help="serve LoRA adapters of up to this rank, which a trainer then sends alone (training.vllm_lora_sync)",
    )
    made.add_argument("--enable-lora", action="store_true", help="the same, of up to rank 16")
    made.add_argument("--log-file", type=Path, help="write the server's output into this file")
    return made


def command(
    args: argparse.Namespace, more: Sequence[str], *, on_cpu: bool, distribution: str, version: tuple[int, ...]
) -> list[str]:
    """The command of vLLM's own server.

    Args:
        args: from `parser`.
        more: the remaining arguments, for vLLM.
        on_cpu: whether this vLLM computes on the CPU.
        distribution: the name of vLLM's package. Its command line requires `vllm`, and builds for the CPU have other
            names; for them the module behind `vllm serve` is run.
        version: of vLLM, as numbers.
    """
    dtype = "float32" if on_cpu and args.dtype == "auto" else args.dtype
    if distribution == "vllm":
        words = ["vllm.entrypoints.cli.main", "serve", args.model]
    else:
        words = ["vllm.entrypoints.openai.api_server", "--model", args.model]
    made = [sys.executable, str(_SIGTERM_SHIELD), *words]
    made += ["--host", _address(args.host), "--port", str(args.port), "--dtype", dtype]
    made += ["--tensor-parallel-size", str(args.tensor_parallel_size)]
    made += ["--gpu-memory-utilization", str(args.gpu_memory_utilization)]
    if args.max_model_len is not None:
        made += ["--max-model-len", str(args.max_model_len)]
    made += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
    made += ["--middleware", "covey.rollout.vllm.serve.Instance"]
    for mask in thinking_processors(args.model):
        made += ["--logits-processors", mask]
    if args.enable_lora or args.max_lora_rank is not None:
        made += _lora_arguments(args, more)
    if on_cpu:  # compilation takes minutes there, and does not make small models faster
        made += ["--enforce-eager", "--worker-extension-cls", WORKER]
    else:
        made += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
    if version >= (0, 30):
        made.append("--enable-scale-out")  # the endpoints for prompts with pictures
    return [*made, *more]


def _lora_arguments(args: argparse.Namespace, more: Sequence[str]) -> list[str]:
    """The arguments for adapters: on all linear layers but the output layer, whose adapters vLLM leaves out of the
    log-probs of prompts; on a CPU it fails with them. Raises an `EngineError` if the model cannot be loaded."""
    options = lora_options(args.max_lora_rank or 16)
    made = ["--enable-lora", "--max-lora-rank", str(options["max_lora_rank"])]
    if "--max-loras" not in more:
        made += ["--max-loras", str(options["max_loras"])]
    if "--lora-target-modules" not in more:
        made += ["--lora-target-modules", *_linear_layers(args.model, more)]
    return made


def _linear_layers(model: str, more: Sequence[str]) -> list[str]:
    """The last parts of the names of a model's linear layers, without the output layer's."""
    import torch
    from transformers import AutoModelForCausalLM

    from covey.model.device import on_meta

    with on_meta():
        made = AutoModelForCausalLM.from_config(_config(model, more), trust_remote_code="--trust-remote-code" in more)
    head = made.get_output_embeddings()
    linear = [(name, module) for name, module in made.named_modules() if isinstance(module, torch.nn.Linear)]
    return sorted({name.rpartition(".")[2] for name, module in linear if module is not head})


def _config(model: str, more: Sequence[str]) -> Any:
    """transformers' config of the model. Raises an `EngineError` if it cannot be loaded."""
    from transformers import AutoConfig

    revision = more[more.index("--revision") + 1] if "--revision" in more else "main"
    try:
        return AutoConfig.from_pretrained(model, revision=revision, trust_remote_code="--trust-remote-code" in more)
    except (OSError, ValueError) as error:
        raise EngineError(f"--model {model} cannot be loaded: {' '.join(str(error).split())}") from error


def cpu_cache(args: argparse.Namespace, more: Sequence[str]) -> list[str]:
    """The size of the KV cache of a server on the CPU: room for its sequences, not a share of the machine's memory.
    Raises an `EngineError` if the model cannot be loaded, or vLLM does not support it on a CPU."""
    if any(text.startswith(("--kv-cache-memory-bytes", "--kv_cache_memory_bytes")) for text in more):
        return []
    sizes = cpu_options(
        _config(args.model, more),
        max_model_len=args.max_model_len,
        max_num_seqs=_CPU_SEQUENCES,
        gpu_memory_utilization=args.gpu_memory_utilization,
        dtype="float32" if args.dtype == "auto" else args.dtype,
    )
    return ["--kv-cache-memory-bytes", str(sizes["kv_cache_memory_bytes"]), "--max-num-seqs", str(_CPU_SEQUENCES)]


def main(argv: Sequence[str] | None = None) -> int:
    """Execute the server in place of this process; returns only on failure."""
    args, more = parser().parse_known_args(argv)
    try:
        _check(args)
    except CoveyError as error:
        print(f"covey: {error}", file=sys.stderr)
        return error.exit_code
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    environment = {
        **os.environ,
        "VLLM_SERVER_DEV_MODE": "1",  # enables the endpoints for weights
        INSTANCE_VARIABLE: uuid.uuid4().hex,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",  # has an effect with --enable-lora only
    }
    try:
        made = command(args, [*more, *(cpu_cache(args, more) if on_cpu else ())], on_cpu=on_cpu, **_distribution())
    except CoveyError as error:
        print(f"covey: {error}", file=sys.stderr)
        return error.exit_code
    if args.log_file is not None:
        args.log_file.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(args.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
    os.execve(sys.executable, made, environment)


def _check(args: argparse.Namespace) -> None:
    if not installed():
        raise EngineError(
            "vLLM is not installed in this environment: install it with "
            f"`{install('vllm')}` on a machine with a GPU, or see docs/vllm.md for one without."
        )
    if args.tensor_parallel_size < 1:
        raise EngineError(f"--tensor-parallel-size {args.tensor_parallel_size} must be 1 or more.")
    if args.max_lora_rank is not None and not 1 <= args.max_lora_rank <= RANKS[-1]:
        raise EngineError(f"--max-lora-rank {args.max_lora_rank} must be from 1 to {RANKS[-1]}, vLLM's highest.")
    if not _is_loopback(args.host) and not os.environ.get(ENGINE_KEY):
        raise EngineError(
            f"--host {args.host} lets every machine in the network load weights and call methods of the server: set "
            f"the environment variable {ENGINE_KEY} to a long random string, here and for the trainer, or listen on "
            "127.0.0.1."
        )
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as the server does: a port that was just closed is free
        try:
            probe.bind((_address(args.host), args.port))
        except OSError as error:
            raise EngineError(
                f"--port {args.port} on {args.host} cannot be used ({error.strerror}): choose another port, or stop "
                "the process that uses it."
            ) from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(host: str) -> str:
    """The address to listen on. A host often resolves its own name to loopback, which others cannot reach."""
    try:
        ipaddress.ip_address(host)
        return host
    except ValueError:
        pass
    try:
        found = socket.gethostbyname(host)
    except OSError:  # binding the port reports it
        return host
    return found if host == "localhost" or not _is_loopback(found) else "0.0.0.0"


def _distribution() -> dict[str, Any]:
    """The distribution of the package `vllm`, and its version as numbers."""
    name = importlib.metadata.packages_distributions().get("vllm", ["vllm"])[0]
    parts = importlib.metadata.version(name).split("+")[0].split(".")
    return {"distribution": name, "version": tuple(int(part) for part in parts[:2] if part.isdigit())}


if __name__ == "__main__":
    sys.exit(main())
