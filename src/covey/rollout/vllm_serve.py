"""A vLLM server as Covey and TRL train with it: `python -m covey.rollout.vllm_serve --model MODEL`.

It becomes vLLM's own server (`vllm serve`), with what a trainer needs of it: log-probabilities as they were sampled,
the development endpoints, a way for new weights (NCCL on GPUs, a folder on CPUs), and a number of its own in the
header of every answer, so that a trainer notices when another server has taken its place. Arguments that are not
listed here are passed on to `vllm serve`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import socket
import sys
import uuid
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from covey.errors import CoveyError, EngineError
from covey.rollout.vllm_engine import cpu_options, installed, thinking_masks

INSTANCE_HEADER = "x-covey-engine"
"""Header of every answer: which start of a server it came from."""
INSTANCE_VARIABLE = "COVEY_ENGINE_INSTANCE"
WORKER = "covey.rollout.vllm_worker.FolderWeights"
"""What a server on a CPU takes its weights with."""

_OUTLAST = Path(__file__).with_name("vllm_outlast.py")
"""Runs vLLM's module such that a launcher's shield from SIGTERM holds."""

_CPU_SEQUENCES = 64
"""Sequences at a time on a CPU, where more of them make nothing faster."""

Message = MutableMapping[str, Any]


class Instance:
    """ASGI middleware that puts `INSTANCE_HEADER` on every answer."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._header = (INSTANCE_HEADER.encode(), os.environ.get(INSTANCE_VARIABLE, uuid.uuid4().hex).encode())

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Pass the request on; mark the beginning of its answer."""

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), self._header]
            await send(message)

        await self._app(scope, receive, marked if scope["type"] == "http" else send)


def parser() -> argparse.ArgumentParser:
    """The arguments of this command."""
    made = argparse.ArgumentParser(
        prog="python -m covey.rollout.vllm_serve",
        description="Start a vLLM server to train with. Further arguments are passed on to `vllm serve`.",
    )
    made.add_argument("--model", required=True, help="folder or hub name of the model that is trained")
    made.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    made.add_argument("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
    made.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs that share the model")
    made.add_argument("--max-model-len", type=int, help="longest prompt and completion together, in tokens")
    made.add_argument(
        "--gpu-memory-utilization", type=float, default=0.9, help="share of the memory to use (default: %(default)s)"
    )
    made.add_argument("--dtype", default="auto", help="number type; auto is float32 on a CPU, vLLM's choice on a GPU")
    made.add_argument("--log-file", type=Path, help="write everything that the server says into this file")
    return made


def command(
    args: argparse.Namespace, more: Sequence[str], *, on_cpu: bool, distribution: str, version: tuple[int, ...]
) -> list[str]:
    """The command of vLLM's own server.

    Args:
        args: what `parser` read.
        more: what it did not know, for vLLM.
        on_cpu: whether this vLLM computes on the CPU.
        distribution: the name that vLLM was installed under. Its command line looks for `vllm` and no other, and builds
            for the CPU have other names; there the module behind `vllm serve` is called.
        version: of vLLM, as numbers.
    """
    dtype = "float32" if on_cpu and args.dtype == "auto" else args.dtype
    if distribution == "vllm":
        words = ["vllm.entrypoints.cli.main", "serve", args.model]
    else:
        words = ["vllm.entrypoints.openai.api_server", "--model", args.model]
    made = [sys.executable, str(_OUTLAST), *words]
    made += ["--host", args.host, "--port", str(args.port), "--dtype", dtype]
    made += ["--tensor-parallel-size", str(args.tensor_parallel_size)]
    made += ["--gpu-memory-utilization", str(args.gpu_memory_utilization)]
    if args.max_model_len is not None:
        made += ["--max-model-len", str(args.max_model_len)]
    made += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
    made += ["--middleware", "covey.rollout.vllm_serve.Instance"]
    for mask in thinking_masks(args.model):
        made += ["--logits-processors", mask]
    if on_cpu:  # compiling takes minutes there, and makes small models no faster
        made += ["--enforce-eager", "--worker-extension-cls", WORKER]
    else:
        made += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
    if version >= (0, 30):
        made.append("--enable-scale-out")  # the endpoints for prompts with pictures
    return [*made, *more]


def cpu_cache(args: argparse.Namespace, more: Sequence[str]) -> list[str]:
    """The size of the cache of a server on the CPU: room for some sequences, not its share of the machine's memory.

    Raises:
        EngineError: vLLM on a CPU cannot compute this model, or there is none.
    """
    from transformers import AutoConfig

    if any(text.startswith(("--kv-cache-memory-bytes", "--kv_cache_memory_bytes")) for text in more):
        return []
    try:
        config = AutoConfig.from_pretrained(args.model, trust_remote_code="--trust-remote-code" in more)
    except (OSError, ValueError) as error:
        raise EngineError(f"--model {args.model} cannot be loaded: {' '.join(str(error).split())}") from error
    sizes = cpu_options(
        config,
        max_model_len=args.max_model_len,
        max_num_seqs=_CPU_SEQUENCES,
        gpu_memory_utilization=args.gpu_memory_utilization,
        dtype="float32" if args.dtype == "auto" else args.dtype,
    )
    return ["--kv-cache-memory-bytes", str(sizes["kv_cache_memory_bytes"]), "--max-num-seqs", str(_CPU_SEQUENCES)]


def main(argv: Sequence[str] | None = None) -> int:
    """Become the server; returns only if that cannot be done."""
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
        "VLLM_SERVER_DEV_MODE": "1",  # without it there are no endpoints for weights
        INSTANCE_VARIABLE: uuid.uuid4().hex,
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
            "vLLM is not installed in this environment, so there is nothing to serve with: install it with "
            "`pip install 'covey[vllm]'` on a machine with a GPU, or see docs/vllm.md for one without."
        )
    if args.tensor_parallel_size < 1:
        raise EngineError(f"--tensor-parallel-size {args.tensor_parallel_size} must be 1 or more.")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: a port just left is free
        try:
            probe.bind((args.host, args.port))
        except OSError as error:
            raise EngineError(
                f"--port {args.port} on {args.host} cannot be listened on ({error.strerror}): choose another port, or "
                "end what holds it."
            ) from error


def _distribution() -> dict[str, Any]:
    """What brings the package `vllm`, and in which version, as numbers."""
    name = importlib.metadata.packages_distributions().get("vllm", ["vllm"])[0]
    parts = importlib.metadata.version(name).split("+")[0].split(".")
    return {"distribution": name, "version": tuple(int(part) for part in parts[:2] if part.isdigit())}


if __name__ == "__main__":
    sys.exit(main())
