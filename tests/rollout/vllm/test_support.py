"""Log-probs and supports from what vLLM returns in each place, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from covey.rollout import SamplingSettings
from covey.rollout.vllm.engine import candidates, sampled_logps, support_of

GONE = -math.inf
THREE = [math.log(share) for share in (0.5, 0.3, 0.2)]


def test_the_sampled_tokens_log_prob_is_found_wherever_it_stands() -> None:
    """TRL sorts by rank, so the first is the likeliest token, not the sampled one."""
    assert sampled_logps([7, 4], [[5, 7], [4]], [[-0.1, -2.0], [-0.5]]) == [-2.0, -0.5]


def test_a_log_prob_that_vllm_could_not_compute_is_nan() -> None:
    assert math.isnan(sampled_logps([7], [[7]], [[None]])[0])


@pytest.mark.parametrize("gone", [GONE, -9999.0])
def test_the_support_is_what_has_a_log_prob(gone: float) -> None:
    """In process, tokens that were cut off have minus infinity; over HTTP -9999."""
    logps, support = support_of([5, 9], [[5, 8, 6], [9, 1, 2]], [[*THREE[:2], math.log(0.2)], [0.0, gone, gone]])
    assert logps == pytest.approx([math.log(0.5), 0.0])
    assert support.dtype == torch.int32
    assert support.tolist() == [[5, 8, 6], [9, -1, -1]]


def test_no_wider_than_the_widest_place() -> None:
    _, support = support_of([3, 4], [[3, 1, 2]] * 1 + [[1, 4, 2]], [[0.0, GONE, GONE], [-0.7, -0.69, GONE]])
    assert support.tolist() == [[3, -1], [4, 1]] or support.tolist() == [[3, -1], [1, 4]]


def test_a_sampled_token_beyond_the_returned_ones_is_kept() -> None:
    """Tokens that tie for the last place are all kept by vLLM, and not all returned."""
    fourth = math.log(0.25)
    logps, support = support_of([9], [[1, 2, 9]], [[math.log(0.25), fourth, fourth]])
    assert set(support[0].tolist()) == {1, 2, 9}
    assert logps == pytest.approx([math.log(1 / 3)])  # among those that are returned


def test_a_completion_without_tokens_has_neither() -> None:
    logps, support = support_of([], [], [])
    assert (logps, support.shape) == ([], (0, 0))


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"top_k": 5}, 5),
        ({"top_p": 0.9, "support_top_k": 30}, 30),
        ({"min_p": 0.1, "support_top_k": 30}, 30),
        ({"top_k": 500}, 100),
        ({"top_p": 0.9}, 100),  # no bound: the vocabulary
        ({}, 0),
        ({"top_k": 5, "support": False}, 0),
        ({"top_k": 5, "temperature": 0.0}, 0),
    ],
)
def test_how_many_log_probs_are_asked_for(settings: dict[str, float], most: int) -> None:
    asked = SamplingSettings(8, **{"support": True, **settings})  # type: ignore[arg-type]
    assert candidates(asked, 100) == most
