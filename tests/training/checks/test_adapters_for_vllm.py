"""What a run says before it starts of the adapters that vLLM is sent."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from compose_config import from_words
from covey.errors import ConfigError
from covey.training.checks import needs

VLLM = "training.use_vllm=true"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda name: name == "vllm" or find_spec(name))
    monkeypatch.setattr(needs, "check_packages", lambda config: None)


def notes(*words: str) -> str:
    return "".join(needs.check_supported(from_words(VLLM, *words).config))


def test_what_is_sent_is_noted() -> None:
    assert "adapters alone after each step" in notes("model.lora.rank=8")
    assert "merged after each step: DoRA" in notes("model.lora.rank=8", "model.lora.use_dora=true")
    assert "merged after each step: training.vllm_lora_sync=merge" in notes(
        "model.lora.rank=8", "training.vllm_lora_sync=merge"
    )
    assert "adapter" not in notes()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "trains no adapters"),
        (("model.lora.rank=8", "model.lora.use_dora=true"), "DoRA"),
        (("model.lora.rank=600",), "rank 600 is above 512"),
        (("model.lora.rank=8", "training.vllm_enable_sleep_mode=true"), "sleep mode"),
    ],
)
def test_adapters_that_must_be_sent_alone_and_cannot_stop_the_run(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"vllm_lora_sync=adapter, .*{reason}"):
        notes("training.vllm_lora_sync=adapter", *words)
