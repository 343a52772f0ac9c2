"""The vLLM server of a run: its address, and the command that starts it."""

from __future__ import annotations

from dataclasses import dataclass

from covey.config import Config
from covey.model.loading import resolve_model
from covey.model.starter import STARTER_NAME

LOCAL_HOSTS = ("0.0.0.0", "127.0.0.1", "localhost", "::")  # the first is TRL's default, for this machine
LEAST_LENGTH = 2048
"""Default of the server's maximum length, prompt and completion together, in tokens."""
MEMORY_SHARE = 0.90
"""Default share of its GPUs' memory that the server takes: nothing else runs there."""


@dataclass(frozen=True, slots=True)
class Server:
    """A vLLM server."""

    url: str
    host: str
    port: int
    group_port: int
    model: str
    is_ours: bool
    """Whether the launcher starts it, or only waits for it."""

    @property
    def health(self) -> str:
        return f"{self.url}/health"

    @classmethod
    def of(cls, config: Config, host: str, port: int, group_port: int) -> Server | None:
        """The server that the config asks for; None for generation in the training processes.

        Args:
            config: the run's config.
            host: the address of the node that serves.
            port: a free port there, in case the config's is taken.
            group_port: another one, for the weight sync.
        """
        training = config.training
        if not training.use_vllm or training.vllm_mode != "server":
            return None
        model = config.launch.vllm_model or config.model.name
        if training.vllm_server_base_url is not None:
            url = training.vllm_server_base_url.rstrip("/")
            return cls(url, url, 0, int(training.vllm_group_port), model, is_ours=False)
        if training.vllm_server_host not in LOCAL_HOSTS:
            host, port = training.vllm_server_host, int(training.vllm_server_port)
            return cls(f"http://{host}:{port}", host, port, int(training.vllm_group_port), model, is_ours=False)
        return cls(f"http://{host}:{port}", host, port, group_port, model, is_ours=True)


def server_command(
    server: Server, config: Config, python: str, *, on_cpu: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Command and environment of the server: vLLM's own, with what TRL's trainer needs."""
    training, model = config.training, config.model
    words: dict[str, object] = {
        "--model": resolve_model(server.model) if server.model == STARTER_NAME else server.model,
        "--host": server.host,  # on several nodes only the address by which the others reach it
        "--port": server.port,
        "--tensor-parallel-size": training.vllm_tensor_parallel_size,
        "--max-model-len": max_model_length(config),
        "--gpu-memory-utilization": training.values.get("vllm_gpu_memory_utilization", MEMORY_SHARE),
        "--dtype": server_dtype(config, on_cpu=on_cpu),
    }
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = (python, "-m", "covey.rollout.vllm.serve")
    if model.revision:
        words["--revision"] = model.revision
    if training.vllm_model_impl != "vllm":
        words["--model-impl"] = training.vllm_model_impl
    flags = [text for name, value in words.items() for text in (name, str(value))]
    if model.trust_remote_code:
        flags.append("--trust-remote-code")
    return (*command, *flags), environment


def max_model_length(config: Config) -> int:
    """The server's maximum length, prompt and completion together, in tokens."""
    training = config.training
    if training.vllm_max_model_length is not None:
        return int(training.vllm_max_model_length)
    prompt = config.dataset.max_prompt_length or 0
    return max(LEAST_LENGTH, prompt + int(training.max_completion_length or 0))


def server_dtype(config: Config, *, on_cpu: bool) -> str:
    """The dtype of the server's weights: the trainer's where that is known."""
    if config.model.dtype not in (None, "auto"):
        return str(config.model.dtype)
    if on_cpu:
        return "float32" if config.model.dtype is None else "auto"
    return "float16" if config.training.fp16 else "auto" if config.training.bf16 is False else "bfloat16"
