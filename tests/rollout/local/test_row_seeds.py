"""Seeds of rows: the random numbers themselves, and completions that are interrupted and go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.errors import DataError
from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.rollout import Completion, LocalEngine, SamplingSettings, sample
from covey.rollout.local.tokens import row_keys, row_uniform
from small_models import build

PROMPTS = [[5, 9, 11], list(range(3, 17)), [7, 7, 21, 30, 2, 6]]
ROWS = [PROMPTS[0]] * 3 + [PROMPTS[1]] * 2 + [PROMPTS[2]] * 4
SEEDS = [100, 101, 102, -7, 2**63, 5, 6, 7, 2**70 + 1]
SETTINGS = SamplingSettings(40, temperature=0.9, logprobs=True)
TRUNCATED = replace(SETTINGS, top_p=0.9, min_p=0.01, repetition_penalty=1.2, support=True, support_top_k=16)


@pytest.fixture(scope="module")
def model() -> Any:
    return build("qwen3")


@pytest.fixture(scope="module")
def engine(tiny_model: str) -> LocalEngine:
    return LocalEngine(AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model))


# -- the numbers


def splitmix(seed: int, place: int) -> float:
    """The same number with Python's integers."""

    def mixed(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    start = mixed((seed + 0x9E3779B97F4A7C15) % 2**64)
    step = mixed((start + 0xD1B54A32D192ED03) % 2**64) | 1
    return (mixed((start + place * step) % 2**64) >> 11) / 2**53


def numbers(seeds: Sequence[int], places: Sequence[int]) -> torch.Tensor:
    """`[seeds, places]`."""
    keys = row_keys(seeds)
    return torch.stack([row_uniform(keys, torch.full((len(seeds),), place)) for place in places], dim=1)


def test_numbers_are_those_of_the_formula_on_integers() -> None:
    places = [0, 1, 2, 1000, 2**31, 2**40]
    found = numbers(SEEDS, places)
    assert found.dtype == torch.float64
    assert found.tolist() == [[splitmix(seed, place) for place in places] for seed in SEEDS]
    assert numbers([2**64 + 5], places).tolist() == numbers([5], places).tolist(), "64 bits count"


@pytest.mark.parametrize("first", [0, 2**31, 2**62 + 12345])
def test_numbers_of_neighbouring_seeds_and_places_are_uniform_and_independent(first: int) -> None:
    """Seeds and places that differ in a few bits, as those of a run do: 4.5 standard deviations are allowed."""
    rows, columns, bins = 500, 800, 64
    found = numbers(range(first, first + rows), range(7, 7 + columns))
    count = found.numel()
    assert float(found.min()) >= 0
    assert float(found.max()) < 1
    assert abs(float(found.mean()) - 0.5) < 4.5 * (1 / 12 / count) ** 0.5
    assert abs(float(found.var()) - 1 / 12) < 4.5 * (1 / 180 / count) ** 0.5

    def chi_square(cells: torch.Tensor, size: int) -> float:
        """In standard deviations."""
        observed = torch.bincount(cells.flatten(), minlength=size).double()
        expected, freedom = cells.numel() / size, size - 1
        return float(((observed - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5

    cells = (found * bins).long()
    assert abs(chi_square(cells, bins)) < 4.5
    assert abs(chi_square((found * 2**20).long() % bins, bins)) < 4.5, "lower bits"
    pairs = {
        "places": cells[:, :-1] * bins + cells[:, 1:],
        "seeds": cells[:-1] * bins + cells[1:],
        "diagonal": cells[:-1, 1:] * bins + cells[1:, :-1],
        "far places": cells[:, :-64] * bins + cells[:, 64:],
    }
    for name, both in pairs.items():
        assert abs(chi_square(both, bins**2)) < 4.5, name
    centred = found - 0.5
    for lag in range(1, 20):
        for product in (centred[:, :-lag] * centred[:, lag:], centred[:-lag] * centred[lag:]):
            assert abs(float(product.mean())) < 4.5 / 12 / product.numel() ** 0.5


def test_seeds_that_differ_give_other_numbers_and_each_place_its_own() -> None:
    found = numbers([*range(2000), *(1 << bit for bit in range(11, 64))], range(50))
    assert len(set(found.flatten().tolist())) == found.numel()


# -- completions


def test_a_completion_does_not_depend_on_its_batch(model: Any) -> None:
    options: dict[str, Any] = {"eos_token_ids": [1, 2]}
    whole = sample(model, ROWS, SETTINGS, row_seeds=SEEDS, **options)
    assert len({one.length for one in whole}) > 3
    order = [8, 0, 4, 5, 1, 7, 3, 6, 2]
    other = sample(model, [ROWS[row] for row in order], SETTINGS, row_seeds=[SEEDS[row] for row in order], **options)
    late = sample(model, ROWS, SETTINGS, row_seeds=SEEDS, max_tokens_in_flight=120, **options)
    for place, row in enumerate(order):
        assert other[place].ids == late[row].ids == whole[row].ids
        alone = sample(model, [ROWS[row]], SETTINGS, row_seeds=[SEEDS[row]], **options)
        assert alone[0].ids == whole[row].ids


def after(calls: int) -> Callable[[], bool]:
    """True from this call on, the first being 0."""
    count = iter(range(10**6))
    return lambda: next(count) >= calls


def joined(first: Completion, second: Completion) -> Completion:
    assert first.unfinished
    support = None
    if second.support is not None:
        parts = [one.support for one in (first, second) if one.support is not None]
        widest = max(part.shape[1] for part in parts)
        support = torch.cat([torch.nn.functional.pad(part, (0, widest - part.shape[1]), value=-1) for part in parts])
    logps = [*(first.logps or ()), *(second.logps or ())]
    return replace(second, ids=first.ids + second.ids, logps=logps, support=support)


def same(found: Completion, expected: Completion) -> None:
    assert found.ids == expected.ids
    assert (found.truncated, found.unfinished) == (expected.truncated, expected.unfinished)
    assert found.logps == pytest.approx(expected.logps, rel=0, abs=1e-5)
    assert (found.support is None) == (expected.support is None)
    if found.support is not None and expected.support is not None:
        assert torch.equal(found.support, expected.support)


@pytest.mark.parametrize("settings", [SETTINGS, TRUNCATED], ids=["plain", "truncated"])
@pytest.mark.parametrize("steps", [0, 1, 9, 25])
def test_interrupted_completions_go_on_as_they_would_have(model: Any, settings: SamplingSettings, steps: int) -> None:
    limits = [40, 9, 40, 3, 40, 26, 40, 8, 40]
    ends: dict[str, Any] = {"eos_token_ids": [1, 2]}
    whole = sample(model, ROWS, settings, row_seeds=SEEDS, max_lengths=limits, **ends)
    ended = list[tuple[int, Completion]]()
    asked = after(steps)
    first = sample(
        *(model, ROWS, settings),
        **ends,
        row_seeds=SEEDS,
        max_lengths=limits,
        interrupted=asked,
        on_ended=lambda row, one: ended.append((row, one)),
    )
    assert {one.length for one in first if one.unfinished} == {steps}
    assert sorted(row for row, _ in ended) == [row for row, one in enumerate(first) if not one.unfinished]
    assert all(first[row] is one for row, one in ended)
    assert all(not one.truncated for one in first if one.unfinished)
    open_rows = [row for row, one in enumerate(first) if one.unfinished]
    rest = sample(
        model,
        [ROWS[row] + first[row].ids for row in open_rows],
        settings,
        **ends,
        row_seeds=[SEEDS[row] for row in open_rows],
        max_lengths=[limits[row] - first[row].length for row in open_rows],
    )
    for row, one in enumerate(first):
        same(joined(one, rest[open_rows.index(row)]) if one.unfinished else one, whole[row])


def test_replaying_an_interruption_by_lengths_is_exact(model: Any) -> None:
    """Bit for bit: rows of a call advance together, so that limits repeat it."""
    first = sample(model, ROWS, TRUNCATED, eos_token_ids=[1, 2], row_seeds=SEEDS, interrupted=after(12))
    again = sample(
        *(model, ROWS, TRUNCATED),
        eos_token_ids=[1, 2],
        row_seeds=SEEDS,
        max_lengths=[one.length if one.unfinished else 40 for one in first],
    )
    assert [(one.ids, one.logps) for one in again] == [(one.ids, one.logps) for one in first]
    assert any(one.unfinished for one in first)
    assert not any(one.unfinished for one in again)


def test_ended_completions_are_reported_as_soon_as_they_end(model: Any) -> None:
    steps, at = [0], dict[int, int]()

    def count() -> bool:
        steps[0] += 1
        return False

    found = sample(
        *(model, ROWS, SETTINGS),
        eos_token_ids=[1, 2],
        row_seeds=SEEDS,
        interrupted=count,
        on_ended=lambda row, _: at.setdefault(row, steps[0]),
    )
    assert at == {row: one.length for row, one in enumerate(found)}


def test_interrupting_sharded_processes_leaves_none_behind(model: Any) -> None:
    """A process that was interrupted takes part in the others' forwards: one for each question but the last."""
    asked, forwards = list[bool](), list[int]()

    def any_has_work(works: bool) -> bool:
        asked.append(works)
        return works or len(asked) < 12

    handle = model.register_forward_hook(lambda *_: forwards.append(1))
    found = sample(model, [PROMPTS[0]], SETTINGS, any_has_work=any_has_work, interrupted=after(5))
    handle.remove()
    assert asked == [True] * 5 + [False] * 7
    assert len(forwards) == 11
    assert (found[0].length, found[0].unfinished) == (5, True)


def test_there_is_one_seed_for_each_prompt(model: Any) -> None:
    with pytest.raises(ValueError, match="2 seeds for 9 prompts"):
        sample(model, ROWS, SETTINGS, row_seeds=[1, 2])


# -- the engine


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_an_engine_goes_on_and_leaves_the_callers_random_state(
    engine: LocalEngine, shared: bool, batch_size: int | None
) -> None:
    engine.shared_prefill, engine._batch_size = shared, batch_size
    settings = replace(TRUNCATED, max_completion_length=12)
    state = torch.get_rng_state()
    whole = engine.generate(ROWS, settings, seed=SEEDS)
    seen = dict[int, Completion]()
    first = engine.generate(ROWS, settings, seed=SEEDS, interrupted=after(6), on_ended=seen.__setitem__)
    assert torch.equal(torch.get_rng_state(), state)
    assert seen == {row: one for row, one in enumerate(first) if not one.unfinished}
    open_rows = [row for row, one in enumerate(first) if one.unfinished]
    if batch_size is not None:
        assert {first[row].length for row in range(4, 9)} == {0}, "later batches have not begun"
    rest = engine.generate(
        [ROWS[row] + first[row].ids for row in open_rows],
        settings,
        seed=[SEEDS[row] for row in open_rows],
        max_lengths=[12 - first[row].length for row in open_rows],
    )
    for row, one in enumerate(first):
        same(joined(one, rest[open_rows.index(row)]) if one.unfinished else one, whole[row])
    engine.shared_prefill, engine._batch_size = True, None


def test_an_interrupted_turn_goes_on_from_kept_keys_and_values(engine: LocalEngine) -> None:
    rows, more = [[5, 6, 7]] * 3 + [[8, 9]] * 2, SamplingSettings(3)
    whole = engine.generate(rows, SamplingSettings(12), seed=SEEDS[:5])
    for steps in (0, 5):
        with engine.conversation():
            first = engine.generate(rows, SamplingSettings(12), seed=SEEDS[:5], interrupted=after(steps))
            again = [[*ids, *one.ids] for ids, one in zip(rows, first, strict=True)]
            assert all(one.unfinished for one in first), "the seeds are such"
            limits = [12 - one.length for one in first]
            rest = engine.generate(again, SamplingSettings(12), seed=SEEDS[:5], max_lengths=limits)
            longer = [[*ids, *one.ids, 20] for ids, one in zip(again, rest, strict=True)]
            third = engine.generate(longer, more, seed=SEEDS[:5])
        assert [a.ids + b.ids for a, b in zip(first, rest, strict=True)] == [one.ids for one in whole]
        alone = engine.generate(longer, more, seed=SEEDS[:5])
        assert [one.ids for one in third] == [one.ids for one in alone]


@pytest.mark.parametrize("shared", [True, False])
def test_a_completion_goes_on_thinking(wide_starter: Path, shared: bool) -> None:
    engine = LocalEngine(
        AutoModelForCausalLM.from_pretrained(wide_starter),
        AutoTokenizer.from_pretrained(wide_starter),
        shared_prefill=shared,
    )
    first_reasoning = ReasoningVocabulary.load(wide_starter).map.base_vocab_size
    prompt = engine.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 47 + 35?"}], add_generation_prompt=True
    )["input_ids"]
    rows, seeds, settings = [list(prompt)] * 8, list(range(8)), SamplingSettings(24, temperature=1.3)
    whole = engine.generate(rows, settings, seed=seeds)
    first = engine.generate(rows, settings, seed=seeds, max_lengths=[8] * 8)
    begun = [[*ids, *one.ids] for ids, one in zip(rows, first, strict=True) if one.truncated]
    assert any(token >= first_reasoning for ids in begun for token in ids)
    open_seeds = [seed for seed, one in zip(seeds, first, strict=True) if one.truncated]
    rest = engine.generate(begun, settings, seed=open_seeds, max_lengths=[16] * len(begun))
    for seed, ids, one in zip(open_seeds, begun, rest, strict=True):
        assert [*ids, *one.ids] == [*prompt, *whole[seed].ids]
    with pytest.raises(DataError, match="holds the reasoning token"):
        engine.generate(begun, settings, seed=0)
    with pytest.raises(DataError, match="holds the reasoning token"):
        engine.generate([[*prompt, 5, first_reasoning + 5, 7]][:1], settings, seed=[0])
