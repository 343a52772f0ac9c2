"""The vLLM server of a run: whether it has one, its address, and the command that starts it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from covey.config import Config, TrainingConfig
from covey.config.vllm import LARGE_SHARE, LOCAL_HOSTS, colocated_share, leaves_place_open
from covey.config.vllm_lora import served_rank
from covey.model.loading import resolve_model
from covey.model.starter import STARTERS

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


def placed(config: Config, gpus: int) -> tuple[Config, list[str]]:
    """The config with vLLM's place decided, and notes on it.

    Args:
        config: the run's config; `launch.vllm_own_gpu` leaves the place to the number of GPUs.
        gpus: GPUs of every node.
    """
    training, tensor = config.training, int(config.training.vllm_tensor_parallel_size)
    if leaves_place_open(config):
        if config.model.reasoning_vocab_size:
            return config, ["vLLM shares the training GPUs: a server cannot start with the reasoning vocabulary."]
        if gpus >= tensor + (config.launch.nodes == 1):
            served = TrainingConfig({**training.values, "vllm_mode": "server"})
            where = "of the node" if config.launch.nodes == 1 else "of the last node"
            return replace(config, training=served), [
                f"vLLM gets {tensor} of the {gpus} GPUs {where} for itself, as a server (training.vllm_mode=server): "
                "the recipe gave it GPUs of its own (launch.vllm_own_gpu). training.vllm_mode=colocate shares them "
                "with training."
            ]
        there = "no GPU" if not gpus else "one GPU" if gpus == 1 else f"{gpus} GPUs"
        return config, [
            f"vLLM runs in the training processes (training.vllm_mode=colocate): a server of its own takes {tensor} "
            f"GPU{'' if tensor == 1 else 's'} besides the one that trains, and there {'is' if gpus < 2 else 'are'} "
            f"{there}."
        ]
    if gpus > tensor and training.use_vllm and "vllm_mode" not in training.values:
        return config, [
            "vLLM shares the training GPUs and takes "
            f"{training.vllm_gpu_memory_utilization:.0%} of each (training.vllm_mode=colocate, TRL's default; "
            "training.vllm_gpu_memory_utilization). For GPUs of its own, as recipes of older TRL versions mean it: "
            "training.vllm_mode=server."
        ]
    share = colocated_share(config)
    if gpus and share is not None and share > LARGE_SHARE and not training.vllm_enable_sleep_mode:
        return config, [
            f"vLLM takes {share:.0%} of the memory of each training GPU: if training then lacks memory, lower "
            "training.vllm_gpu_memory_utilization, or give vLLM a GPU of its own (training.vllm_mode=server)."
        ]
    return config, []


def server_command(
    server: Server, config: Config, python: str, *, on_cpu: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Command and environment of the server: vLLM's own, with what TRL's trainer needs."""
    training, model = config.training, config.model
    words: dict[str, object] = {
        "--model": resolve_model(server.model) if server.model in STARTERS else server.model,
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
    rank, _ = served_rank(config)
    if rank:
        words["--max-lora-rank"] = rank
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
