"""`covey vocab`: what is read out of completions and weights, against hand-made ones."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.cli.commands.vocab import analyse
from covey.cli.main import main
from covey.errors import ConfigError, ModelError
from covey.model.reasoning_vocab import ReasoningVocabulary, TokenMap
from covey.model.reasoning_vocab.expansion import drift, expand
from covey.model.reasoning_vocab.tokenizer import Reader, Span, TokenBytes
from covey.model.starter import STARTER_PATH
from covey.runlog.evaluations import read_evaluation

TEXTS = (b"<s>", b"He", b" l", "é".encode()[:1], "é".encode()[1:], b"<think>", b"</think>", "日本".encode())
ROWS = len(TEXTS)


def make_reader(copies: tuple[int, ...] = (*range(ROWS), 1)) -> Reader:
    token_map = TokenMap(ROWS, copies, frozenset({ROWS}), "copy", "<think>", "</think>")
    return Reader(token_map, TokenBytes(TEXTS, frozenset({0})))


def test_spans_and_multiplicities_by_hand() -> None:
    reading = make_reader().read([0, 5, ROWS + 1, 2, 3, ROWS + 4, 2 * ROWS, ROWS + 7])
    assert reading.text == "<think>He léHe日本"
    assert reading.spans == (
        Span(5, 0, 7, 0),
        Span(ROWS + 1, 7, 9, 1),
        Span(2, 9, 11, 0),
        Span(3, 11, 12, 0),  # the character belongs to the token in which it starts
        Span(ROWS + 4, 12, 12, 1),
        Span(2 * ROWS, 12, 14, 2),
        Span(ROWS + 7, 14, 16, 1),
    )
    assert reading.multiplicity == [0] * 7 + [1, 1] + [0] * 3 + [2, 2, 1, 1]
    assert reading.runs() == [("<think>", 0), ("He", 1), (" lé", 0), ("He", 2), ("日本", 1)]


def test_bytes_that_make_no_character_are_shown_and_special_tokens_can_be() -> None:
    reading = make_reader().read([3, 1, 0], skip_special_tokens=False)
    assert reading.text == "\ufffdHe<s>"
    assert [span.start for span in reading.spans] == [0, 1, 3]


def test_readings_are_what_the_tokenizer_decodes(tmp_path: Path) -> None:
    vocabulary = expand(STARTER_PATH, tmp_path / "m", "full")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    reader = Reader(vocabulary.map, vocabulary.token_bytes)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        ids = torch.randint(3, 512, (30,), generator=generator)
        ids += 512 * torch.randint(0, 2, ids.shape, generator=generator)
        read = reader.read(ids.tolist())
        assert "".join(read.text.split("\ufffd")) == "".join(tokenizer.decode(ids).split("\ufffd"))
        assert sum(span.end - span.start for span in read.spans) == len(read.text)


def test_drift_by_hand(tmp_path: Path) -> None:
    vocabulary = expand(STARTER_PATH, tmp_path / "m", 300)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    with torch.no_grad():
        rows = model.get_input_embeddings().weight
        rows[512 + 40] = 3 * rows[40]  # the same direction
        rows[512 + 41] = rows[77]
        rows[512 + 42] = -rows[42]
        expected = float(torch.cosine_similarity(rows[41], rows[77], dim=0))
    found = {one.token - 512: one for one in drift(model, vocabulary, [552, 553, 554])}
    assert found[40].embedding == pytest.approx(1, abs=1e-5)
    assert found[41].embedding == pytest.approx(expected, abs=1e-5)
    assert found[41].head == found[41].embedding  # the starter's head is its embedding
    assert found[41].nearest[0] == (77, pytest.approx(1, abs=1e-5))
    assert found[42].embedding == pytest.approx(-1, abs=1e-5)
    assert found[42].nearest[0][0] != 42


def test_uses_are_counted_and_shown_in_context(tmp_path: Path) -> None:
    vocabulary = expand(STARTER_PATH, tmp_path / "m", "full")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    token = AutoTokenizer.from_pretrained(tmp_path / "m")("7")["input_ids"][0]
    rows = [
        {"step": 1, "prompt": "a", "completion_ids": [508, 512 + token, token, 512 + token, 509]},
        {"step": 2, "prompt": [{"role": "user", "content": "b"}], "completion_ids": [508, 512 + 70, 509]},
        {"step": 3, "prompt": "c", "completion_ids": [510, 511]},
        {"step": 0, "prompt": "from a run that kept no ids"},
    ]
    found = analyse(model, vocabulary, rows, Reader(vocabulary.map, vocabulary.token_bytes))
    uses = {row["id"]: row for row in found["tokens"] if row["uses"]}
    assert {key: row["uses"] for key, row in uses.items()} == {512 + token: 2, 512 + 70: 1}
    assert uses[512 + token]["share"] == pytest.approx(2 / 3)
    assert uses[512 + token]["text"] == "7"
    assert len(found["tokens"]) == 505
    assert [example["step"] for example in found["examples"]] == [1, 2]
    assert found["examples"][0]["pieces"] == [("<think>", 0), ("7", 1), ("7", 0), ("7", 1), ("</think>", 0)]
    assert found["examples"][1]["prompt"] == "b"


@pytest.mark.slow
def test_the_command_on_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [f"output_dir={tmp_path}", "training.max_steps=2", "training.save_strategy=no", "evaluation.every_steps=0"]
    common += ["training.per_device_train_batch_size=16", "training.gradient_accumulation_steps=1"]
    common += ["dataset.test_size=16", "evaluation.max_problems=16"]
    assert main(["train", "run_name=wide", "model.reasoning_vocab_size=full", *common]) == 0
    run = tmp_path / "wide"
    assert main(["vocab", str(run), "--fold-gap"]) == 0
    assert "fold gap on" in capsys.readouterr().out
    page = (run / "vocabulary.html").read_text()
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")  # a name, not loaded
    assert '<mark class="m1"' in page
    found = json.loads((run / "vocabulary.json").read_text())
    assert sum(row["uses"] for row in found["tokens"]) > 20
    with (run / "vocabulary.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["uses"]) for row in table] == [row["uses"] for row in found["tokens"]]
    gap = found["fold_gap"]["test"]
    assert gap["difference"] == pytest.approx(gap["second"] - gap["first"])
    assert gap["problems"] == 16
    ones, others = (
        read_evaluation(run / "evaluation" / f"test-final{state}-sampled").summary["accuracy"]["value"]
        for state in ("", "-folded")
    )
    assert (gap["second"], gap["first"]) == (pytest.approx(ones), pytest.approx(others))
    assert all(row["cosine_start_embedding"] == pytest.approx(1, abs=0.01) for row in found["tokens"])
    assert main(["vocab", str(run), "--json", "--out", str(tmp_path / "again")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["page"] == str(tmp_path / "again" / "vocabulary.html")
    assert printed["tokens"] == json.loads((tmp_path / "again" / "vocabulary.json").read_text())["tokens"]
    assert main(["report", str(run)]) == 0
    assert "Reasoning tokens: no effect beyond chance" in (run / "report.html").read_text()
    assert "most used" not in capsys.readouterr().err
    assert main(["train", "run_name=unexpanded", *common]) == 0
    assert main(["vocab", str(tmp_path / "unexpanded")]) == 1
    assert "has no reasoning vocabulary" in capsys.readouterr().err


def test_a_model_can_be_expanded_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "wide"
    command = ["expand-vocab", "starter", str(folder), "--size", "20", "--token-ids", "100-200", "--start", "same_text"]
    assert main(command) == 0
    assert "20 reasoning tokens, 20 of them usable" in capsys.readouterr().out
    found = ReasoningVocabulary.load(folder)
    assert (found.map.start, found.map.base_ids) == ("same_text", tuple(range(100, 120)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wide"]
    for words, error in ((command, "exists already"), ([*command[:3], "--size", "0"], "must be a number of tokens")):
        assert main(words) == 2
        assert error in capsys.readouterr().err


def test_a_server_needs_an_expanded_model() -> None:
    from covey.config import load
    from covey.training.checkpoint.vocab_expansion import check_reasoning

    settings = ["model.reasoning_vocab_size=8", "training.use_vllm=true", "training.vllm_mode=server"]
    tokenizer = AutoTokenizer.from_pretrained(STARTER_PATH)
    with pytest.raises(ConfigError, match="covey expand-vocab MODEL FOLDER"):
        check_reasoning(load(settings), str(STARTER_PATH), tokenizer)
    assert check_reasoning(load(settings[:1]), str(STARTER_PATH), tokenizer) == [
        "8 reasoning tokens, 5 of them usable, between <think> and </think>."
    ]


def test_a_map_of_another_model_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    from covey.config import load
    from covey.training.checkpoint.vocab_expansion import check_reasoning

    (tmp_path / "config.json").write_bytes((STARTER_PATH / "config.json").read_bytes())
    TokenMap(512, (5,), frozenset(), "copy", "<think>", "</think>").write(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(STARTER_PATH)
    with pytest.raises(ModelError, match="512 ordinary and 1 reasoning tokens, 513 in all, but the embedding has 512"):
        check_reasoning(load([]), str(tmp_path), tokenizer)


def test_a_vocabulary_can_be_made_by_hand() -> None:
    token_map = TokenMap(ROWS, (1, 1), frozenset(), "same_text", "<think>", "</think>")
    vocabulary = ReasoningVocabulary(token_map, TokenBytes(TEXTS, frozenset({0})))
    assert vocabulary.multiplicity.tolist() == [0] * ROWS + [1, 2]
