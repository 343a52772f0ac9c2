"""The turns of conversations: against plain forwards, and against sampling that reads each turn from its start."""

from __future__ import annotations

import gc
import logging
import random
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import convert_outputs_to_fp32
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.errors import DataError
from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.rollout import Completion, LocalEngine, SamplingSettings, sample
from covey.rollout.local import turns
from covey.rollout.local.cache import EndedRow, SharedPromptCache
from covey.rollout.local.compatibility import unsupported_turns
from covey.rollout.local.turns import Conversation, Kept, Match, Turn, TurnRow
from small_models import ARCHITECTURES, build

PROMPTS = [[5, 9, 11], list(range(3, 17)), [7, 7, 21, 30, 2, 6]]
ROWS = [PROMPTS[0]] * 3 + [PROMPTS[1]] * 2 + [PROMPTS[2]] * 4
PLAIN = SamplingSettings(30, temperature=0.8, logprobs=True)
SETTINGS = {
    "plain": PLAIN,
    "greedy": SamplingSettings(25, temperature=0.0, logprobs=True),
    "truncated": SamplingSettings(25, top_k=12, top_p=0.9, min_p=0.01, repetition_penalty=1.3, logprobs=True),
}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


@pytest.fixture(scope="module")
def qwen3() -> Any:
    return build("qwen3")


@pytest.fixture
def nothing_is_finite_by_chance() -> Iterator[None]:
    """Memory that nobody has written to is filled with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Talk:
    """A conversation of rows, each turn of which is also read from its start."""

    def __init__(self, model: Any, rows: Sequence[list[int]], seed: int = 0) -> None:
        self.model, self.rows = model, list(rows)
        self.kept, self.matches = Conversation(), list[Match]()
        self._random = random.Random(seed)

    def turn(self, settings: SamplingSettings, number: int) -> tuple[list[Completion], list[Completion]]:
        """The completions with kept keys and values, and without."""
        limits = [self._random.randrange(1, settings.max_completion_length + 1) for _ in self.rows]
        turn = Turn(self.kept.find(self.rows, 0))
        self.matches = list(turn.matches)
        both = []
        for one in (turn, None):
            draws = torch.Generator().manual_seed(number)
            options: dict[str, Any] = {"eos_token_ids": [1, 2], "generator": draws, "max_lengths": limits, "turn": one}
            both.append(sample(self.model, self.rows, settings, **options))
        self.kept.keep(turn.rows, 0, self.model.device)
        return both[0], both[1]

    def go_on(self, completions: Sequence[Completion]) -> None:
        """Some of the rows, in another order, with results of 1 to 20 tokens."""
        longer = []
        for ids, one in zip(self.rows, completions, strict=True):
            result = [self._random.randrange(3, 40) for _ in range(self._random.choice([1, 3, 9, 20]))]
            longer.append([*ids, *one.ids, *result])
        self._random.shuffle(longer)
        self.rows = longer[: max(len(longer) - 2, 1)]


def logps_of(model: Any, prompt: Sequence[int], one: Completion, temperature: float) -> torch.Tensor:
    with torch.no_grad():
        logits_TV = model(torch.tensor([[*prompt, *one.ids]])).logits[0, len(prompt) - 1 : -1]
    return (logits_TV / temperature).log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None])[:, 0]


@pytest.mark.parametrize("name", SETTINGS)
def test_turns_are_those_of_a_conversation_that_is_read_again(
    model: Any, name: str, nothing_is_finite_by_chance: None
) -> None:
    assert unsupported_turns(model) is None
    talk, settings = Talk(model, ROWS), SETTINGS[name]
    for number in range(4):
        kept, again = talk.turn(settings, number)
        assert all((match.known > 0) == (number > 0) for match in talk.matches)
        assert [one.ids for one in kept] == [one.ids for one in again]
        for row, one, other in zip(talk.rows, kept, again, strict=True):
            assert one.logps == pytest.approx(other.logps, rel=0, abs=1e-5)
            if name == "plain":
                expected = logps_of(model, row, one, settings.temperature)
                assert torch.allclose(torch.tensor(one.logps), expected, atol=1e-5)
        talk.go_on(kept)


@pytest.mark.parametrize("scores", [1, 200])
def test_new_tokens_are_read_in_pieces(model: Any, scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "READ_SCORES", scores)
    talk = Talk(model, ROWS, seed=3)
    for number in range(3):
        kept, _ = talk.turn(PLAIN, number)
        for row, one in zip(talk.rows, kept, strict=True):
            assert torch.allclose(torch.tensor(one.logps), logps_of(model, row, one, 0.8), atol=1e-5)
        talk.go_on(kept)


def test_rows_that_are_new_and_rows_that_go_on_share_a_batch(model: Any, nothing_is_finite_by_chance: None) -> None:
    talk = Talk(model, ROWS)
    kept, _ = talk.turn(PLAIN, 0)
    talk.go_on(kept)
    talk.rows[2:2] = [[8, 30, 4, 4], [8, 30, 4, 4], [9]]
    for number in (1, 2):
        kept, _ = talk.turn(PLAIN, number)
        assert [match.known for match in talk.matches].count(0) == (3 if number == 1 else 0)
        for row, one in zip(talk.rows, kept, strict=True):
            assert torch.allclose(torch.tensor(one.logps), logps_of(model, row, one, 0.8), atol=1e-5)
        talk.go_on(kept)


def test_prompts_stay_shared_and_only_new_tokens_are_read(qwen3: Any) -> None:
    talk = Talk(qwen3, ROWS)
    first, _ = talk.turn(PLAIN, 0)
    talk.rows = [[*ids, *one.ids, 4, 5] for ids, one in zip(talk.rows, first, strict=True)]
    turn = Turn(talk.kept.find(talk.rows, 0))
    shapes = list[tuple[int, ...]]()
    handle = qwen3.get_input_embeddings().register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape))
    sample(qwen3, talk.rows, PLAIN, turn=turn)
    handle.remove()
    assert shapes[0] == (9, 3), "the last token of the first turn, and two more"
    assert {shape[1] for shape in shapes[1:]} == {1}
    (cache,) = {id(row.kept.cache): row.kept.cache for row in turn.rows if row.kept is not None}.values()
    assert [layer.prompts[0].shape[0] for layer in cache.layers] == [3, 3]
    assert turn.matches == []


# -- which rows go on


def kept_row(ids: list[int], prompt: int, stored: int) -> TurnRow:
    return TurnRow(ids, Kept(SharedPromptCache([None]), EndedRow(0, 0, 0, stored, prompt)))


def test_the_longest_common_beginning_is_found() -> None:
    talk, cpu = Conversation(), torch.device("cpu")
    rows = [kept_row([5, 6, 7, 8, 9], 2, 2), kept_row([5, 6, 7, 3], 2, 1), kept_row([5, 6, 7, 3], 2, 1)]
    prompts = {
        (5, 6, 7, 8, 9, 1, 1): (5, 4),  # all of a row; the last token has no keys and values
        (5, 6, 7, 3, 2): (4, 3),
        (5, 6, 7, 8): (4, 3),  # one token at least is read
        (5, 6, 7, 2): (3, 3),  # where it departs
        (5, 6): (2, 0),  # less than the prompt and one more
        (5, 4, 4): (1, 0),
        (9, 9): (0, 0),
    }
    for version, known in ((3, True), (4, False)):
        talk.keep(rows, 3, cpu)
        found = talk.find(list(map(list, prompts)), version)
        assert [match.common for match in found] == [common for common, _ in prompts.values()]
        assert [match.known for match in found] == [count if known else 0 for _, count in prompts.values()]
        assert [match.kept is not None for match in found] == [known and count > 0 for _, count in prompts.values()]
    assert all(match == Match() for match in talk.find([[5, 6, 7, 8, 9, 1]], 3)), "they are found once"


# -- the engine


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many tokens each match knew."""
    known, find = list[int](), Conversation.find

    def spy(self: Conversation, prompts: Any, version: Any) -> list[Match]:
        found = find(self, prompts, version)
        known.extend(match.known for match in found)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Conversation, "find", spy)
        yield known


@pytest.fixture
def engine(tiny_model: str) -> LocalEngine:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    return LocalEngine(AutoModelForCausalLM.from_pretrained(tiny_model), tokenizer, batch_size=2)


def two_turns(engine: LocalEngine, between: Any = None) -> list[list[Completion]]:
    """Of five rows in batches of two; the second turn in reverse order, so that its batches are others."""
    prompts = [[5, 6, 7]] * 3 + [[8, 9]] * 2
    first = engine.generate(prompts, SamplingSettings(8), seed=1)
    longer = [[*ids, *one.ids, 20, 21] for ids, one in zip(prompts, first, strict=True)][::-1]
    if between is not None:
        between()
    return [first, engine.generate(longer, SamplingSettings(8), seed=2, max_lengths=[3, 8, 1, 5, 20])]


def test_an_engine_keeps_a_conversation(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = two_turns(engine)
    assert [one.length for one in expected[1] if one.truncated] <= [3, 8, 1, 5, 8]
    with watched(monkeypatch) as known, engine.conversation():
        assert two_turns(engine) == expected
        assert known[:5] == [0] * 5
        assert all(known[5:])
    assert two_turns(engine) == expected
    assert len(known) == 10, "outside of a conversation nothing is looked for"


def test_keys_and_values_are_released_at_the_end(engine: LocalEngine) -> None:
    caches = list[Any]()
    keep = Conversation.keep

    def spy(self: Conversation, rows: Sequence[TurnRow], *args: Any) -> None:
        caches.extend(weakref.ref(row.kept.cache) for row in rows if row.kept is not None)
        keep(self, rows, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Conversation, "keep", spy)
        with engine.conversation():
            two_turns(engine)
            gc.collect()
            assert [cache() is None for cache in caches] == [True] * 5 + [False] * 5
    gc.collect()
    assert not any(cache() for cache in caches)


def test_new_weights_read_the_conversation_again(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {name: tensor * 1.5 for name, tensor in engine.model.named_parameters()}
    before = {name: tensor.clone() for name, tensor in engine.model.named_parameters()}
    expected = two_turns(engine, lambda: engine.sync(weights.items(), 1))
    engine.sync(before.items(), 0)
    with watched(monkeypatch) as known, engine.conversation():
        assert two_turns(engine, lambda: engine.sync(weights.items(), 1)) == expected
    assert known == [0] * 10


def test_too_much_is_not_kept_and_logged_once(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = two_turns(engine)
    monkeypatch.setattr(turns, "KEPT_SHARE", 0.0)
    with caplog.at_level(logging.WARNING, logger="covey"), watched(monkeypatch) as known, engine.conversation():
        for _ in range(2):
            assert two_turns(engine) == expected
    assert known == [0] * 20
    (record,) = caplog.records
    assert "more than 0% of the device's memory" in record.getMessage()


def test_a_limit_for_each_row_by_transformers(engine: LocalEngine) -> None:
    engine.shared_prefill = False
    whole = engine.generate([[5, 6, 7], [8, 9]], SamplingSettings(8, temperature=0.0))
    cut = engine.generate([[5, 6, 7], [8, 9]], SamplingSettings(8, temperature=0.0), max_lengths=[2, 20])
    assert [one.ids for one in cut] == [whole[0].ids[:2], whole[1].ids]
    assert cut[0].truncated


@pytest.mark.parametrize("shared", [True, False])
def test_a_turn_that_ends_inside_of_thinking_goes_on_thinking(wide_starter: Path, shared: bool) -> None:
    engine = LocalEngine(
        AutoModelForCausalLM.from_pretrained(wide_starter),
        AutoTokenizer.from_pretrained(wide_starter),
        shared_prefill=shared,
    )
    vocabulary = ReasoningVocabulary.load(wide_starter)
    prompt = engine.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 47 + 35?"}], add_generation_prompt=True
    )["input_ids"]
    rows, settings = [list(prompt)] * 24, SamplingSettings(24, temperature=1.3)
    limits, ends = [2 + row for row in range(24)], set[bool]()
    with engine.conversation():
        for turn in range(3):
            found = engine.generate(rows, settings, seed=turn, max_lengths=limits)
            rows = [[*ids, *one.ids, 20, 21] for ids, one in zip(rows, found, strict=True)]
            states = [vocabulary.inside(vocabulary.states(torch.tensor([ids])))[0].tolist() for ids in rows]
            ends |= {state[-3] for state in states}
            reasoning = [[token >= vocabulary.map.base_vocab_size for token in ids] for ids in rows]
            assert any(map(any, reasoning))
            for state, copies in zip(states, reasoning, strict=True):
                assert not any(copied and not before for copied, before in zip(copies[1:], state, strict=False))
        assert len(ends) == 2, "some turns end inside, others outside"
        with pytest.raises(DataError, match="holds the reasoning token"):
            engine.generate([[*rows[0], vocabulary.map.base_vocab_size + 5]], settings)
    with pytest.raises(DataError, match="holds the reasoning token"):
        engine.generate(rows, settings)


# -- kinds of models


def test_adapters_mixed_precision_and_half_precision() -> None:
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(build("qwen3"), LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    talk = Talk(adapted.eval(), ROWS)
    for number in range(2):
        kept, _ = talk.turn(PLAIN, number)
        for row, one in zip(talk.rows, kept, strict=True):
            assert torch.allclose(torch.tensor(one.logps), logps_of(adapted, row, one, 0.8), atol=1e-5)
        talk.go_on(kept)
    exact, mixed = build("qwen3"), build("qwen3")
    mixed.forward = convert_outputs_to_fp32(torch.autocast("cpu", torch.bfloat16)(mixed.forward))  # as accelerate does
    for rounded in (mixed, build("qwen3").to(torch.bfloat16)):
        assert unsupported_turns(rounded) is None
        talk = Talk(rounded, ROWS)
        for number in range(3):
            kept, _ = talk.turn(PLAIN, number)
            gaps = [
                (torch.tensor(one.logps) - logps_of(exact, row, one, 0.8)).abs().mean()
                for row, one in zip(talk.rows, kept, strict=True)
            ]
            assert float(torch.stack(gaps).mean()) < 0.2
            talk.go_on(kept)


def test_an_attention_that_reads_several_tokens_otherwise_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.qwen3 import modeling_qwen3

    odd, rotate = build("qwen3"), modeling_qwen3.apply_rotary_pos_emb
    assert unsupported_turns(build("qwen3")) is None
    monkeypatch.setattr(  # only the tokens that are read at once, the second time
        modeling_qwen3,
        "apply_rotary_pos_emb",
        lambda q, k, *a, **kw: rotate(q * (1 + (1 < q.shape[2] < 4)), k, *a, **kw),
    )
    assert "with kept keys and values Qwen3ForCausalLM gives logits that differ by" in str(unsupported_turns(odd))


def test_sharded_processes_take_part_in_every_forward(qwen3: Any) -> None:
    """A forward per question, also for those that read new tokens."""
    talk = Talk(qwen3, ROWS)
    first, _ = talk.turn(PLAIN, 0)
    talk.go_on(first)
    asked, forwards = list[bool](), list[int]()

    def any_has_work(works: bool) -> bool:
        asked.append(works)
        return works or len(asked) < 60

    handle = qwen3.register_forward_hook(lambda *_: forwards.append(1))
    turn = Turn(talk.kept.find(talk.rows, 0))
    found = sample(qwen3, talk.rows, SamplingSettings(5, temperature=0.0), turn=turn, any_has_work=any_has_work)
    handle.remove()
    assert len(forwards) == len(asked) - 1 == 59
    assert asked.count(True) > 5 >= max(one.length for one in found)
