"""The gap between sampler and trainer, and its parts, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from covey.runlog import names
from covey.training.scoring import Correction, ScoredSample, measure_gap

TOKENS = Correction(by_sequence=False, low=None, high=3.0)
NUMBER_TYPE, TRUNCATION, STALENESS = names.SAMPLING_GAP_PARTS


def measure(correction: Correction = TOKENS, last: float = 0.0, gather: Any = None, **sample: Any) -> dict[str, float]:
    tensors = {name: torch.tensor(one) if isinstance(one, list) else one for name, one in sample.items()}
    found = ScoredSample(**tensors)
    return measure_gap(found, correction, last_number_type=last, gather=gather or (lambda tensor: tensor))


def test_a_gap_and_raw_ratios() -> None:
    """Trainer minus sampler is 0.1, -0.3 and, of the second row, 2: the ratios are their exponentials."""
    found = measure(
        counted=[[1, 1, 0], [1, 0, 0]],
        sampler=[[-1.0, -1.0, -9.0], [-3.0, -9.0, 0.0]],
        trainer=[[-0.9, -1.3, -2.0], [-1.0, 5.0, 1.0]],
    )
    assert found[names.SAMPLING_GAP] == pytest.approx(2.4 / 3)
    assert found[NUMBER_TYPE] == pytest.approx(2.4 / 3)
    assert found[TRUNCATION] == found[STALENESS] == 0
    assert found["sampling/ratio/min"] == pytest.approx(math.exp(-0.3))
    assert found["sampling/ratio/max"] == pytest.approx(math.exp(2))
    assert found["sampling/ratio/mean"] == pytest.approx((math.exp(0.1) + math.exp(-0.3) + math.exp(2)) / 3)
    assert found["sampling/ratio/outside"] == pytest.approx(1 / 3)


def test_what_counts_as_outside_is_what_the_correction_bounds() -> None:
    rows = {
        "counted": [[1, 1], [1, 1], [1, 0]],
        "sampler": [[-1.0, -1.0], [-1.0, -1.0], [-1.0, 0.0]],
        "trainer": [[-0.4, -0.4], [0.5, -2.5], [-1.6, 0.0]],
    }
    assert measure(**rows)["sampling/ratio/outside"] == pytest.approx(1 / 5)  # exp(1.5)
    by_sequence = Correction(by_sequence=True, low=None, high=3.0)  # exp(1.2), exp(0), exp(-0.6)
    assert measure(by_sequence, **rows)["sampling/ratio/outside"] == pytest.approx(1 / 3)
    both = Correction(by_sequence=True, low=0.6, high=3.0)
    assert measure(both, **rows)["sampling/ratio/outside"] == pytest.approx(2 / 3)


def test_log_probs_that_the_sampler_lacks_do_not_count() -> None:
    found = measure(counted=[[1, 1]], sampler=[[math.nan, -1.0]], trainer=[[-5.0, -1.5]])
    assert found[names.SAMPLING_GAP] == pytest.approx(0.5)
    assert found["sampling/ratio/mean"] == pytest.approx(math.exp(-0.5))


def test_nothing_is_measured_without_tokens() -> None:
    assert measure(counted=[[0, 0]], sampler=[[0.0, 0.0]], trainer=[[0.0, 0.0]]) == {}


def test_truncation_is_what_one_support_avoids() -> None:
    """Over all tokens these are less likely by the kept mass, 0.5 and 0.8."""
    found = measure(
        counted=[[1, 1]],
        sampler=[[-1.0, -2.0]],
        trainer=[[-1.01, -2.0]],
        full=[[-1.01 + math.log(0.5), -2.0 + math.log(0.8)]],
    )
    assert found[names.SAMPLING_GAP] == pytest.approx(0.005, abs=1e-6)
    assert found[NUMBER_TYPE] == pytest.approx(0.005, abs=1e-6)
    assert found[TRUNCATION] == pytest.approx(-(math.log(0.5) + math.log(0.8)) / 2)


def test_truncation_is_told_from_number_types_where_the_support_is_not_known() -> None:
    """Noise of mean zero moves the mean of the absolute difference only."""
    found = measure(counted=[[1, 1, 1, 1]], sampler=[[-1.0] * 4], trainer=[[-1.7, -1.1, -1.01, -0.99]], cut_off=True)
    assert found[names.SAMPLING_GAP] == pytest.approx(0.82 / 4)
    assert found[TRUNCATION] == pytest.approx(0.8 / 4)
    assert found[NUMBER_TYPE] == pytest.approx(0.02 / 4)


def test_staleness_is_what_older_weights_add() -> None:
    rows = {"counted": [[1, 1], [1, 1]], "sampler": [[-1.0] * 2] * 2, "trainer": [[-1.02, -0.98], [-1.3, -0.8]]}
    mixed = measure(**rows, stale=[[False, False], [True, True]])
    assert mixed[names.SAMPLING_GAP] == pytest.approx(0.54 / 4)
    assert mixed[NUMBER_TYPE] == pytest.approx(0.02)
    assert mixed[STALENESS] == pytest.approx((0.25 - 0.02) * 2 / 4)
    old = measure(**rows, stale=[[True, True], [True, True]], last=0.01)
    assert old[NUMBER_TYPE] == 0.01
    assert old[STALENESS] == pytest.approx(0.54 / 4 - 0.01)


def test_processes_count_by_their_tokens() -> None:
    """One process has three tokens apart by 0.1, the other one token apart by -0.5."""
    others = []
    measure(
        gather=lambda tensor: others.append(tensor) or tensor,  # type: ignore[func-returns-value]
        counted=[[1, 1, 1]],
        sampler=[[-1.0] * 3],
        trainer=[[-0.9] * 3],
    )
    found = measure(
        gather=lambda tensor: torch.cat([tensor, others[0]]), counted=[[1]], sampler=[[-1.0]], trainer=[[-1.5]]
    )
    assert found[names.SAMPLING_GAP] == pytest.approx(0.8 / 4)
    assert found["sampling/ratio/min"] == pytest.approx(math.exp(-0.5))
    assert found["sampling/ratio/max"] == pytest.approx(math.exp(0.1))
    idle = measure(
        gather=lambda tensor: torch.cat([tensor, others[0]]), counted=[[0]], sampler=[[0.0]], trainer=[[0.0]]
    )
    assert idle["sampling/ratio/min"] == idle["sampling/ratio/max"] == pytest.approx(math.exp(0.1))


def test_the_names_stay_as_they_are_in_the_log() -> None:
    logged = {"sampling/logp_gap": 1, "sampling/logp_gap/staleness": 2, "sampling/ratio/min": 3, "staleness/mean": 4}
    stock = {"sampling/sampling_logp_difference/mean": 5, "sampling/importance_sampling_ratio/min": 6}
    assert names.train_row(logged | stock) == logged | {f"train/{name}": value for name, value in stock.items()}
