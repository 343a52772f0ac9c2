"""A plan knows the model by its `config.json` alone: tensor-parallel sizes that vLLM takes, boxes, memory, the batch.

The lists are by hand, from vLLM's rules: the heads and the vocabulary, padded to a multiple of 64, are split evenly;
key-value heads too, or each is copied equally often.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from covey.cli.main import main
from covey.config.vllm import tensor_parallel_sizes
from covey.errors import ConfigError
from covey.launch.overview import Measured, as_table, split_of, suggested
from covey.model.load import check_tensor_parallel, read_model_config
from covey.runlog.overlap import Round
from covey.training.checks.needs import check_supported
from plans import SERVE, config, plan

QWEN = {"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152_064}
SMALL = {
    **{"num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32_000, "hidden_size": 1024},
    **{"intermediate_size": 4096, "num_hidden_layers": 10, "tie_word_embeddings": True},
}


def saved(folder: Path, values: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(values if isinstance(values, str) else json.dumps(values), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize(
    ("heads", "shared", "words", "legal"),
    [
        (28, 4, 152_064, [1, 2, 4]),  # Qwen2.5-7B: 28 is a multiple of both, and does not divide the vocabulary
        (14, 2, 151_936, [1, 2]),  # Qwen2.5-0.5B
        (32, 8, 128_256, [1, 2, 4, 8, 16, 32]),  # Llama-3.1-8B: from 16 on each key-value head is copied
        (9, 3, 49_152, [1, 3]),  # SmolLM2-135M
        (16, 1, 256_000, [1, 2, 4, 8, 16]),  # one key-value head, copied everywhere
        (28, 4, 400, [1, 2, 4, 28]),  # padded to 448 = 28 · 16
        (28, None, 448, [1, 2, 4, 7, 14, 28]),  # none named: as many as heads
        (28, 4, None, [1, 2, 4, 28]),
    ],
)
def test_legal_sizes_by_hand(
    tmp_path: Path, heads: int, shared: int | None, words: int | None, legal: list[int]
) -> None:
    values = {"num_attention_heads": heads, "num_key_value_heads": shared, "vocab_size": words}
    assert tensor_parallel_sizes(read_model_config(saved(tmp_path / "m", values))) == legal
    inside = {"vocab_size": 7, "vision_config": {"num_attention_heads": 5}, "text_config": values}
    if words is not None:
        assert tensor_parallel_sizes(read_model_config(saved(tmp_path / "m", inside))) == legal


@pytest.mark.parametrize(
    "values",
    [
        {**QWEN, "kv_lora_rank": 512},
        {**QWEN, "layer_types": ["linear_attention", "full_attention"]},
        {**QWEN, "layer_types": 28},
        {**QWEN, "mamba_d_state": 16},
        {**SMALL, "num_attention_heads": 0},
        {**QWEN, "num_attention_heads": [28, 14]},
        {"n_head": 12},
        "[28, 4]",
        '{"num_attention_he',
        '{"text_config": 4}',
    ],
)
def test_other_kinds_get_a_note(tmp_path: Path, values: Any) -> None:
    words = (*SERVE, "training.vllm_tensor_parallel_size=5", f"model.name={saved(tmp_path / 'm', values)}")
    (note,) = plan(8, *words).notes[:1]
    assert "m by training.vllm_tensor_parallel_size=5 is not known: its" in note
    text = as_table(plan(8, *words), config(*words), None, 4)
    assert "memory not estimated" in text
    assert "[T][T][T][S][S][S][S][S]" in text


def test_sliding_windows_are_plain_attention() -> None:
    assert tensor_parallel_sizes({**QWEN, "layer_types": ["sliding_attention", "full_attention"]}) == [1, 2, 4]


@pytest.mark.parametrize("option", ["--plan", "--dry-run", "--slurm"])
def test_a_size_that_vllm_refuses_is_refused_by_every_launch(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["training.use_vllm=true", "training.vllm_mode=server", f"model.name={saved(tmp_path / 'm', QWEN)}"]
    for nodes in (1, 4):  # on one node 8 GPUs would not do either: with 9 they would, and then it would be refused
        code = main(
            ["launch", option, *words, "launch.gpus=8", f"launch.nodes={nodes}", "training.vllm_tensor_parallel_size=8"]
        )
        said = capsys.readouterr()
        assert (code, said.out) == (2, "")
        assert "28 attention heads, 4 key-value heads" in said.err
        assert "Legal sizes: 1, 2, 4. (Set by the override `training.vllm_tensor_parallel_size=8`.)" in said.err
        assert said.err.count("\n") == 1


def test_the_model_that_is_served_decides(tmp_path: Path) -> None:
    qwen = saved(tmp_path / "m", QWEN)
    other = saved(tmp_path / "o", {**QWEN, "num_attention_heads": 32, "num_key_value_heads": 8})
    size = "training.vllm_tensor_parallel_size=8"
    served = config(*SERVE, size, f"model.name={qwen}", f"launch.vllm_model={other}")
    assert check_tensor_parallel(served) == []
    colocated = ("training.use_vllm=true", "training.vllm_mode=colocate", size, f"launch.vllm_model={other}")
    with pytest.raises(ConfigError, match="1, 2, 4"):
        check_supported(config(*colocated, f"model.name={qwen}"))  # what `covey train` and `covey doctor` ask
    far = config(*SERVE, size, f"model.name={qwen}", "training.vllm_server_base_url=http://far:8000")
    assert check_tensor_parallel(far) == []
    assert check_tensor_parallel(config(size, f"model.name={qwen}")) == []  # without vLLM


def test_a_hub_model_is_read_from_the_cache_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert read_model_config("org/m") == read_model_config("kaggle://a/b/c/d") == read_model_config("~nobody/m") == {}
    stored = tmp_path / "models--org--m"
    saved(stored / "snapshots" / "1a2b", QWEN)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("1a2b")
    assert tensor_parallel_sizes(read_model_config("org/m")) == [1, 2, 4]
    assert read_model_config("org/m", "v2") == {}


def test_advice_names_sizes_that_vllm_takes(tmp_path: Path) -> None:
    model = f"model.name={saved(tmp_path / 'm', QWEN)}"

    def notes(size: int) -> tuple[str, ...]:
        return plan(8, *SERVE, model, "launch.nodes=2", f"training.vllm_tensor_parallel_size={size}").notes

    assert notes(1)[0].startswith(
        "7 GPUs of the serving node stay idle: raise training.vllm_servers to 8 (or auto), or "
    )
    assert notes(1)[0].endswith(" training.vllm_tensor_parallel_size to 2 or 4.")
    assert notes(4) == ("4 GPUs of the serving node stay idle: raise training.vllm_servers to 2 (or auto).",)
    words = (*SERVE, model, "launch.nodes=2")
    made, settings = plan(8, *words), config(*words)
    own = split_of(made, settings)
    best = suggested(Measured(Path(), [Round(80.0, 1.0)], own, True), made, settings, own)
    assert best.sampling == 4  # 8 would be faster


def lines(gpus: int, *words: str) -> list[str]:
    found = as_table(plan(gpus, *words), config(*words), None, 4).split("\n")
    assert all(len(line) <= 80 for line in found if line and not line.startswith(("·", "How busy")))
    return found


def test_a_row_of_boxes_for_each_kind_of_node() -> None:
    size = "training.vllm_tensor_parallel_size=4"
    shown = lines(8, *SERVE, "launch.nodes=4", size)
    assert shown[2:5] == ["nodes 0-2  [T][T][T][T][T][T][T][T]", "node 3     [.][.][.][.][S][S][S][S]", ""]
    assert "[.] idle" in shown
    assert lines(8, *SERVE, size, "launch.num_processes=3")[2] == "node 0  [T][T][T][.][S][S][S][S]"
    beside = lines(4, "training.staleness=1", "launch.nodes=3")  # one process samples, on the first node
    assert beside[2:4] == ["node 0     [T][T][T][S]", "nodes 1-2  [T][T][T][.]"]
    assert lines(0, *SERVE, "launch.num_processes=2")[2] == "node 0  [T][T][S]"  # processes, without GPUs
    assert lines(2)[2] == "node 0  [T][T]"
    assert "[.] idle" not in lines(2)


def test_the_batch_grows_with_the_processes() -> None:
    words = ("training.per_device_train_batch_size=4", "training.gradient_accumulation_steps=2")
    shown = " ".join(" ".join(lines(8, *words, "training.num_generations=8")).split())
    assert (
        "batch: 8 x 4 (per_device_train_batch_size) x 2 (gradient_accumulation_steps) = 64 completions a step" in shown
    )
    assert "a step, 8 with one process; 64 are generated at a time, 8 of each prompt" in shown
    whole = " ".join(" ".join(lines(1, *words, "training.generation_batch_size=128")).split())
    assert "= 8 completions a step; 128 are generated at a time" in whole


@pytest.mark.parametrize(
    ("accelerate", "parts"),
    [
        ("ddp", "weights 0.8 GB, gradients 0.8 GB, optimiser 1.5 GB"),
        ("fsdp2", "weights 0.2 GB, gradients 0.2 GB, optimiser 0.4 GB"),  # a quarter
        ("zero2", "weights 0.8 GB, gradients 0.2 GB, optimiser 0.4 GB"),
        ("zero3", "weights 0.2 GB, gradients 0.2 GB, optimiser 0.4 GB"),
    ],
)
def test_memory_of_each_gpu(tmp_path: Path, accelerate: str, parts: str) -> None:
    """A layer has 2·1024·(1024 + 512) + 3·1024·4096 parameters; with 32,000·1024 words 190 million, 760 MB in float32.
    Four GPUs train; two serve in bfloat16, each with half of 380 MB."""
    words = (*SERVE, "training.vllm_tensor_parallel_size=2", "training.beta=0", f"launch.accelerate={accelerate}")
    shown = " ".join(" ".join(lines(6, *words, f"model.name={saved(tmp_path / 'm', SMALL)}")).split())
    assert "[T] learns: 4 processes, about " in shown
    assert f"each ({parts}, activations" in shown
    assert "[S] samples (vLLM server): 90% of each GPU's memory; weights 0.2 GB" in shown


def test_a_mesh_shards_as_it_says_and_vllm_takes_its_share(tmp_path: Path) -> None:
    words = ("training.use_vllm=true", "training.vllm_mode=colocate", "model.mesh_shape=[[4,2],[dp,fsdp]]")
    shown = " ".join(
        " ".join(lines(8, *words, "training.beta=0", f"model.name={saved(tmp_path / 'm', SMALL)}")).split()
    )
    assert "(weights 0.4 GB, gradients 0.4 GB, optimiser 0.8 GB" in shown
    assert "beside the 30% of a GPU that vLLM takes" in shown


@pytest.mark.parametrize("more", [{"num_experts": 64}, {"quantization_config": {"bits": 4}}, {"hidden_size": None}])
def test_memory_that_the_file_does_not_say_is_not_guessed(tmp_path: Path, more: dict[str, Any]) -> None:
    shown = "\n".join(lines(2, *SERVE, f"model.name={saved(tmp_path / 'm', {**SMALL, **more})}"))
    assert shown.count("memory not estimated") == 2
