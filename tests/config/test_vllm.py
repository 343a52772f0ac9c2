"""Where vLLM runs by the config alone."""

from __future__ import annotations

import pytest

from covey.config import compose, load
from covey.config.vllm import colocated_share, notes_on_sharing

ON = "training.use_vllm=true"


def test_the_address_of_a_server_means_that_it_is_used() -> None:
    """In TRL's time without colocation an address was enough."""
    for words in (["vllm_server_host=far"], ["vllm_server_base_url=http://far:1"], ["vllm_url=http://localhost:1/x"]):
        composed = compose([ON, *words])
        assert composed.config.training.vllm_mode == "server"
        assert any(note.startswith("training.vllm_mode=server, as ") for note in composed.notes)
        assert load([ON, *words, "training.vllm_mode=colocate"]).training.vllm_mode == "colocate"
        assert "vllm_mode" not in load(words).training.values
    assert "vllm_mode" not in load([ON, "training.vllm_server_port=1"]).training.values


@pytest.mark.parametrize(
    ("words", "share"),
    [
        ((), None),
        ((ON,), 0.3),
        ((ON, "training.vllm_gpu_memory_utilization=0.9"), 0.9),
        ((ON, "vllm_device=auto", "vllm_gpu_memory_utilization=0.9"), 0.3),  # meant for a GPU of its own
        ((ON, "vllm_device=auto", "vllm_gpu_memory_utilization=0.4"), 0.4),
        ((ON, "vllm_device=auto", "vllm_gpu_memory_utilization=0.9", "training.vllm_enable_sleep_mode=true"), 0.9),
        ((ON, "vllm_device=auto", "vllm_gpu_memory_utilization=0.9", "training.vllm_mode=colocate"), 0.9),
        ((ON, "training.vllm_mode=server", "training.vllm_gpu_memory_utilization=0.9"), None),
    ],
)
def test_the_share_of_a_training_gpu(words: tuple[str, ...], share: float | None) -> None:
    assert colocated_share(load(words)) == share


def test_a_run_that_shares_after_all_is_told_what_changes() -> None:
    asked = ["vllm_device=auto", "vllm_gpu_memory_utilization=0.9", "launch.vllm_model=a/b"]
    found = "\n".join(notes_on_sharing(load([ON, *asked, "training.vllm_server_port=8001"])))
    for part in ("covey launch", "vllm_gpu_memory_utilization=0.9", "0.3", "launch.vllm_model", "vllm_server_port"):
        assert part in found
    assert notes_on_sharing(load([ON, *asked, "training.vllm_mode=server"])) == []
    assert notes_on_sharing(load(asked)) == []
