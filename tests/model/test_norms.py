"""Norms with a hand-written backward pass, against transformers' own and against finite differences."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch

from covey.model.device import PLAIN_NORMS, rms_norm, use_own_norms


@pytest.mark.parametrize("kind", PLAIN_NORMS)
@pytest.mark.parametrize("shape", [(1, 7, 16), (2, 5, 3, 8)])
def test_values_and_gradients_are_those_of_transformers(kind: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    plain = kind(shape[-1])
    plain.weight.data.uniform_(0.5, 1.5)
    ours = copy.deepcopy(plain)
    use_own_norms(ours)
    x, grad = 3 * torch.randn(shape), torch.randn(shape)
    found = []
    for norm in (plain, ours):
        its_x = x.clone().requires_grad_()
        out = norm(its_x)
        out.backward(grad)
        found.append((out.detach(), its_x.grad, norm.weight.grad))
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    assert "_RootMeanSquare" in type(ours(x).grad_fn).__name__


def test_other_dtypes_and_other_norms_are_computed_by_transformers() -> None:
    norm, other = PLAIN_NORMS[0](8), torch.nn.RMSNorm(8)
    model = torch.nn.Sequential(norm, other)
    use_own_norms(model)
    assert "forward" not in vars(other)
    x = torch.randn(2, 8, dtype=torch.bfloat16)
    assert torch.equal(norm(x), PLAIN_NORMS[0].forward(norm, x))
    with torch.autocast("cpu"):
        assert "_RootMeanSquare" not in type(norm(x.float()).grad_fn).__name__


def test_unsupported_norms_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Sequential(PLAIN_NORMS[0](8), torch.nn.RMSNorm(8))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            use_own_norms(model)
            model(torch.randn(2, 8))
        assert [line.message.partition(": ")[2] for line in caplog.records] == ["RMSNorm is not supported."]
        for _ in range(2):
            model[0](torch.randn(2, 8, dtype=torch.float64))
    assert [line.message.partition("for ")[2] for line in caplog.records][1:] == [
        "unsharded float32 tensors without autocast."
    ]


def test_a_copy_of_a_model_has_norms_of_its_own() -> None:
    norm = PLAIN_NORMS[0](8)
    use_own_norms(norm)
    other = copy.deepcopy(norm)
    other.weight.data.fill_(2.0)
    x = torch.randn(2, 8)
    torch.testing.assert_close(other(x), 2 * norm(x))


def test_the_gradient_is_that_of_finite_differences() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 6, dtype=torch.float64), torch.rand(6, dtype=torch.float64) + 0.5
    assert torch.autograd.gradcheck(lambda a, b: rms_norm(a, b, 1e-6), (x.requires_grad_(), weight.requires_grad_()))
