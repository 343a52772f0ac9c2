"""`covey generate` and `covey chat` on a tiny model."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.cli.main import main


def test_generate_and_chat(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "1 + 1"}\n{"prompt": [{"role": "user", "content": "2 + 2"}]}\n')
    short = ("--max-tokens", "5")
    assert main(["generate", tiny_model, str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), *short]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert main(["generate", tiny_model, "--prompt", "1 + 1", *short]) == 0
    alone = capsys.readouterr().out
    assert alone == rows[0]["completion"] + "\n"

    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        assert main(["generate", tiny_model, str(tmp_path / "in.jsonl"), str(tmp_path / "other.jsonl"), *short]) == 1
    captured = capsys.readouterr()
    assert [json.loads(line) for line in captured.out.splitlines()] == rows
    assert "other.jsonl" in captured.err
    assert "standard output" in captured.err
    monkeypatch.setattr("sys.stdin", io.StringIO("1 + 1\n/new\n\n/help\n/nope\n1 + 1\n/exit\n1 + 1\n"))
    assert main(["chat", tiny_model, *short]) == 0
    captured = capsys.readouterr()
    assert captured.out == alone * 2  # commands do not reach the model
    assert captured.err.count("/new starts a new conversation") == 2
    assert "There is no command /nope." in captured.err
    (tmp_path / "in.jsonl").write_text('{"text": "1 + 1"}\n')
    assert main(["generate", tiny_model, str(tmp_path / "in.jsonl")]) == 1
    assert "in.jsonl has no column that looks like the prompt" in capsys.readouterr().err


def test_generate_continues_a_prefill(tiny_model: str, tmp_path: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(tiny_model), AutoModelForCausalLM.from_pretrained(tiny_model)
    prompt = [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "<think>\n1"}]
    (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": prompt}) + "\n")
    words = ("generate", tiny_model, str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--max-tokens", "5")
    assert main(words) == 0
    row = json.loads((tmp_path / "out.jsonl").read_text())
    ids = tokenizer.apply_chat_template(prompt, continue_final_message=True, return_tensors="pt", return_dict=False)
    written = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)[
        0, ids.shape[1] :
    ]
    assert row == {"prompt": prompt, "completion": tokenizer.decode(written, skip_special_tokens=True)}
    prompt[1] |= {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": prompt}) + "\n")
    assert main(words) == 1


def test_invalid_sampling_settings_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("generate", str(tmp_path), "--prompt", "1 + 1")
    for words, says in (
        ((*ask, "--temperature", "-1"), "--temperature -1"),
        ((*ask, "--max-tokens", "0"), "--max-tokens 0"),
        (("chat", str(tmp_path), "--max-tokens", "0"), "--max-tokens 0"),
        ((*ask[:3], " "), "empty --prompt"),
    ):
        assert main(words) in (1, 2)
        assert says in capsys.readouterr().err


def test_a_chat_in_a_terminal_says_what_it_is(
    tiny_model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        raise EOFError

    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", answer)
    assert main(["chat", tiny_model]) == 0
    assert f"{tiny_model}: write to it, line by line. /new starts" in capsys.readouterr().err
    assert asked == ["> "]
