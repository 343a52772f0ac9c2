"""What `covey launch` prints without starting anything: plans, job scripts, tables and refusals, GPUs only claimed."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from covey.cli.main import main
from old_run import OLD

SERVE = "training.use_vllm=true training.vllm_mode=server"
PLANS = (
    "launch.gpus=0",
    "launch.gpus=0 launch.num_processes=2",
    "launch.gpus=1",
    "launch.gpus=8",
    "launch.gpus=8 training.use_cpu=true",
    f"launch.gpus=2 {SERVE}",
    f"launch.gpus=8 {SERVE} training.vllm_tensor_parallel_size=2",
    f"launch.gpus=8 {SERVE} model.lora.enabled=true model.lora.rank=12",
    f"launch.gpus=8 {SERVE} training.vllm_server_base_url=http://gpu-1:8000",
    "launch.gpus=4 training.use_vllm=true training.vllm_mode=colocate",
    "launch.gpus=8 launch.nodes=2",
    f"launch.gpus=8 launch.nodes=3 {SERVE} training.vllm_tensor_parallel_size=4",
    f"launch.gpus=8 launch.nodes=3 {SERVE} training.vllm_tensor_parallel_size=8",
    "launch.gpus=4 training.staleness=1",
    f"launch.gpus=4 training.staleness=2 {SERVE}",
    "launch.gpus=8 launch.accelerate=zero3",
    "launch.gpus=8 launch.accelerate=fsdp2 launch.nodes=2",
    'launch.gpus=4 model.mesh_shape=[[2,2],["dp","fsdp"]]',
    'launch.gpus=4 model.mesh_shape=[[2,2],["fsdp","tp"]]',
    f"launch.gpus=1 {SERVE}",
    f"launch.gpus=4 {SERVE} training.vllm_tensor_parallel_size=4",
    "launch.gpus=4 launch.num_processes=8",
    "{root}/recipes/qwen2.5_7b_instruct/grpo/math.yaml launch.gpus=8",
    "{root}/recipes/qwen2.5_1.5b_instruct/maxent/math.yaml launch.gpus=8 training.staleness=1",
)
JOBS = (
    "launch.gpus=8",
    "launch.gpus=0",
    f"launch.gpus=8 launch.nodes=4 {SERVE} launch.slurm.gres=gpu:h100:8",
    "launch.gpus=4 launch.slurm.account=lab launch.slurm.partition=gpu launch.slurm.time=3-12:00:00 "
    "launch.slurm.mem=64G launch.slurm.exclusive=false launch.slurm.requeue=false "
    "'launch.slurm.setup=[\"module load cuda\"]'",
)


def printed(words: str) -> tuple[int, str, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
        code = main(["launch", *shlex.split(words), "run_name=run"])
    return code, out.getvalue(), error.getvalue()


def masked(data: Any) -> Any:
    """Without what depends on the machine: the threads of several processes, and whether paths have to be quoted."""
    text = re.sub(r'("OMP_NUM_THREADS": )"\d+"', r'\1"CORES"', json.dumps(data))
    return json.loads(re.sub(r"'(/[^']*)'", r"\1", text))


def cases(folder: Path) -> dict[str, Any]:
    root, found = shlex.quote(str(Path(__file__).parents[3])), {}
    for words in PLANS:
        code, out, error = printed(f"{words.format(root=root)} --dry-run")
        found[f"--dry-run {words}"] = [code, yaml.safe_load(out), error]
    for words in JOBS:
        code, out, error = printed(f"{words} --slurm --dry-run")
        found[f"--slurm {words}"] = [code, out.splitlines(), error]
    for words in ("", "training.staleness=1", f"launch.nodes=2 training.staleness=2 {SERVE}"):
        code, out, error = printed(f"launch.gpus=8 {words} --plan --times {shlex.quote(str(OLD))}")
        found[f"--plan {words}"] = [code, out.splitlines(), error]
    assert not list(folder.iterdir())
    return {name: masked(data) for name, data in found.items()}
