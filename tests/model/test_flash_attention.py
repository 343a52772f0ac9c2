"""Attention by PyTorch's flash kernel, with CPU kernels behind its two operators: how the calls are joined.

That CUDA's own kernels accept the output and sums of the whole is checked at the first batch of every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from covey.model import attention_kernels
from covey.model import group_attention as grouped
from covey.model.attention_kernels import Sequences, flash_attention, flash_is_right
from covey.model.group_attention import GroupLayout, PackedGroup, group_attention
from flash_kernels import flash_kernels
from scored import gradients, make, make_rows, shared

SHAPES = [
    [(7, (5, 1, 9)), (4, (3,)), (6, ()), (1, (2, 8, 8, 4))],
    [(1, (1,))],
    [(12, (4,) * 8)],
    [(5, ())],
    [(3, (17, 2)), (9, (1, 1, 1))],
]


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    with flash_kernels():
        yield


def _states(groups: Any, heads: int, key_heads: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    length = sum(prompt + sum(completions) for prompt, completions in groups)
    return [torch.randn(1, h, length, 16, dtype=dtype).requires_grad_() for h in (heads, key_heads, key_heads)]


@pytest.mark.parametrize("groups", SHAPES)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)])
def test_output_and_gradients_are_those_of_one_completion_at_a_time(groups: Any, heads: tuple[int, int]) -> None:
    states = _states(groups, *heads)
    layout = GroupLayout(tuple(PackedGroup(*group) for group in groups), how="sequential")
    expected = group_attention(*states, layout, scaling=0.3)
    weights = torch.randn_like(expected)
    gradients = torch.autograd.grad((expected * weights).sum(), states)
    found = flash_attention(*states, Sequences.of(groups, torch.device("cpu")), 0.3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for one, other in zip(torch.autograd.grad((found * weights).sum(), states), gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_kernel_with_wrong_gradients_is_found_at_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = SHAPES[0]
    states = _states(groups, 6, 2, torch.bfloat16)
    sequences = Sequences.of(groups, torch.device("cpu"))
    layout = GroupLayout(tuple(PackedGroup(*group) for group in groups), how="padded")
    paths = (
        partial(flash_attention, sequences=sequences, scaling=None),
        partial(grouped._masked_attention, layout=layout),
    )
    monkeypatch.setattr(attention_kernels, "_checked", {})
    assert flash_is_right(*states, *paths)
    own = attention_kernels._CUDA_BACKWARD
    for wrong in (
        lambda grad, q, k, v, out, *rest, **more: own(grad, q, k, v, torch.zeros_like(out), *rest, **more),
        lambda grad, q, k, v, out, sums, *rest, **more: own(grad, q, k, v, out, sums + 0.5, *rest, **more),
    ):
        monkeypatch.setattr(attention_kernels, "_checked", {})
        monkeypatch.setattr(attention_kernels, "_CUDA_BACKWARD", wrong)
        assert not flash_is_right(*states, *paths)


@pytest.mark.parametrize(
    ("dtype", "width", "capability", "reason"),
    [
        (torch.float32, 64, (9, 0), "computes in 16 bits, not in torch.float32"),
        (torch.bfloat16, 64, (7, 5), "compute capability 8"),
        (torch.bfloat16, 512, (9, 0), "heads of width 512"),
        (torch.bfloat16, 20, (9, 0), "heads of width 20"),
        (torch.float16, 64, (8, 0), None),
    ],
)
def test_what_the_kernel_does_not_take(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, width: int, capability: tuple[int, int], reason: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(attention_kernels, "for_products", lambda states: states)

    class Claimed:
        """As much of a tensor on a GPU as is asked for."""

        device = torch.device("cuda", 0)

        def __init__(self) -> None:
            self.dtype = dtype

        def __getitem__(self, _: Any) -> Claimed:
            return self

        def size(self, _: int) -> int:
            return width

    found = attention_kernels.flash_refusal(*(Claimed(),) * 3)  # type: ignore[arg-type]
    assert found is None if reason is None else reason in str(found)
    cpu = torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16)
    assert "NVIDIA" in str(attention_kernels.flash_refusal(cpu, cpu, cpu))


@pytest.mark.parametrize("checkpointing", [None, False, True], ids=["keeps", "recomputes", "recomputes-reentrant"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gemma3"])  # the last has windows shorter than the rows as well
def test_scoring_by_the_kernel(
    monkeypatch: pytest.MonkeyPatch, name: str, lora: bool, checkpointing: bool | None
) -> None:
    """Log-probs and gradients of the whole model against attention over one completion at a time."""
    monkeypatch.setattr(grouped, "split_supported", lambda *_: False)
    model: Any = make(name).double()
    if lora:
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)).double()
    if checkpointing is not None:
        if lora:
            model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
    expected = shared(model, *make_rows())
    expected_gradients = gradients(model, expected)
    calls: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(1)
        return flash_attention(*args, **kwargs)

    monkeypatch.setattr(grouped, "flash_refusal", lambda *_: None)
    monkeypatch.setattr(attention_kernels, "_checked", {})  # so that the first use is checked in the middle of it
    monkeypatch.setattr(grouped, "flash_attention", counted)
    found = shared(model, *make_rows())
    found_gradients = gradients(model, found)
    assert len(calls) >= (1 if name == "gemma3" else 3)
    assert list(attention_kernels._checked.values()) == [True]
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-5)
    assert found_gradients.keys() == expected_gradients.keys()
    for one, gradient in expected_gradients.items():
        torch.testing.assert_close(found_gradients[one], gradient, rtol=1e-5, atol=1e-7, msg=one)


def test_the_check_is_made_once_and_on_the_beginning_of_a_long_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once per layer; the tokens after the first groups are left out."""
    groups = tuple(PackedGroup(prompt, completions) for prompt, completions in SHAPES[0])
    states = _states(SHAPES[0], 6, 2, torch.bfloat16)
    seen: list[int] = []

    def counted(*args: Any) -> bool:
        seen.append(args[0].size(2))
        return flash_is_right(*args)

    monkeypatch.setattr(attention_kernels, "_checked", {})
    monkeypatch.setattr(grouped, "CHECKED", 14)
    monkeypatch.setattr(grouped, "flash_refusal", lambda *_: None)
    monkeypatch.setattr(grouped, "flash_is_right", counted)
    for _ in range(3):
        assert grouped._takes_flash(*states, GroupLayout(groups), None, None, 0.0)
    assert seen == [7 + 5 + 1]  # the third completion would make it 22
