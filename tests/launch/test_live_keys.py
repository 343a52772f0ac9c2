"""Keys of the launcher and of vLLM: one with an effect changes a plan or a job, one without does not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.support.dead_keys import FACTS

from covey.config.live import is_live
from covey.launch.plan import as_text
from covey.launch.slurm import job_options, render
from covey.launch.supervise import Limits
from plans import SERVE, config, plan

FAR = (*SERVE, "training.vllm_server_host=far")
LORA = ("model.lora.rank=4",)
LOCAL = ("training.use_vllm=true", "training.vllm_mode=colocate")

PLANNED = (
    # a key; words beside which it changes the plan of four GPUs; words beside which it does not
    ("launch.vllm_model=a/b", SERVE, LOCAL),
    ("launch.vllm_model=a/b", SERVE, ()),
    ("launch.server_timeout=9", SERVE, ()),
    ("training.vllm_server_port=8123", SERVE, ()),
    ("training.vllm_group_port=8123", SERVE, LOCAL),
    ("training.vllm_tensor_parallel_size=2", SERVE, FAR),
    ("training.vllm_gpu_memory_utilization=0.5", SERVE, FAR),
    ("training.vllm_max_model_length=77", SERVE, FAR),
    ("training.vllm_model_impl=transformers", SERVE, ()),
    ("training.vllm_lora_sync=merge", (*SERVE, *LORA), SERVE),
    ("model.revision=v2", (*SERVE, "model.name=a/b"), ()),
    ("training.vllm_enable_sleep_mode=true", (), SERVE),
    ("launch.num_processes=2", (), ()),
    ("launch.main_process_port=7777", (), ()),
    ("launch.accelerate=fsdp2", (), ()),
    ("launch.log_dir=elsewhere", (), ()),
    ("launch.stop_timeout=9", (), ()),
    ("launch.nodes=2", (), ()),
)


@pytest.mark.parametrize(("word", "within", "without"), PLANNED)
def test_a_key_changes_the_plan_where_it_is_said_to(
    word: str, within: tuple[str, ...], without: tuple[str, ...]
) -> None:
    key = word.partition("=")[0]
    for words in (within, without):
        changed = as_text(plan(4, *words, word)) != as_text(plan(4, *words))
        assert changed == (is_live(key, config(*words), FACTS) and not _only_in_trainer(key, words))


def _only_in_trainer(key: str, words: tuple[str, ...]) -> bool:
    """Whether a live key reaches the training processes by their config alone."""
    return key.startswith("training.") and words in ((), LOCAL, FAR)


@pytest.mark.parametrize(
    "word",
    [
        *("account=me", "partition=p", "qos=q", "constraint=c", "gres=gpu:1", "cpus=3", "mem=3G", "time=1:00:00"),
        *("exclusive=false", "signal_seconds=9", "requeue=false", "options=[--overcommit]", "setup=[module load x]"),
    ],
)
def test_every_key_of_a_job_changes_its_script(word: str) -> None:
    def script(*words: str) -> str:
        return render(config(*words), "r", 2, ["covey"], Path("/tmp"))

    assert script(f"launch.slurm.{word}") != script()
    assert job_options(config("launch.gpus=1"), "r", 1) != job_options(config("launch.gpus=2"), "r", 2)


def test_what_supervises_a_run_has_its_keys() -> None:
    assert {field.name for field in dataclasses.fields(Limits)} == {
        *("server_timeout", "server_restarts", "step_timeout", "hang_restarts", "stop_timeout")
    }
