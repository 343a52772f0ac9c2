"""Supervised training: gradients against a plain loop, exact resumes, packing, what is learnt of a conversation."""

from __future__ import annotations

import copy
import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from chat_templates import SHIPPED, make_tokenizer
from completed import completed
from covey.cli.main import main
from covey.config import load, to_yaml
from covey.errors import ModelError
from covey.model.prompts import labelled, turn_end
from covey.model.starter.coldstart import AGENT, ColdStart, examples, new_starter
from covey.runlog.directory import RunDirectory
from covey.runlog.metrics import read_metrics
from covey.training.trl.sft import train_starter

ROWS = [{"prompt": f"What is {n} + {n}?", "completion": f"<answer>{2 * n}</answer>"} for n in range(10, 34)]
WORDS = ["sft.rows=rows.jsonl", "training.max_steps=4", "training.gradient_accumulation_steps=2"]
WORDS += ["training.per_device_train_batch_size=4", "training.save_steps=2", "training.logging_steps=1"]


@pytest.fixture(autouse=True)
def _rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def weights(run: str) -> dict[str, torch.Tensor]:
    return load_file(f"out/{run}/final_model/model.safetensors")


def rows(run: str) -> list[dict[str, Any]]:
    found = read_metrics(Path(f"out/{run}/metrics.jsonl"))
    return [{name: v for name, v in row.items() if not name.startswith(("time/", "memory/"))} for row in found]


def plain_tokens(model: str) -> tuple[Any, list[tuple[list[int], list[int]]]]:
    """The tokenizer, and what a plain loop would make of the rows."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    found = []
    for row in ROWS:
        ask = [{"role": "user", "content": row["prompt"]}]
        seen = tokenizer.apply_chat_template(ask, add_generation_prompt=True, tokenize=True, return_dict=True)
        said = [*tokenizer(row["completion"])["input_ids"], tokenizer.eos_token_id]
        found.append((seen["input_ids"] + said, [-100] * len(seen["input_ids"]) + said))
    return tokenizer, found


@pytest.mark.parametrize("more", [[], ["sft.packing=true", "sft.max_length=96"]])
def test_a_step_is_that_of_a_plain_loop(more: list[str], tiny_model: str) -> None:
    """One step of plain SGD over all rows: what it takes from the weights is the gradient of the mean over tokens."""
    one = ["training.max_steps=1", "training.optim=sgd", "training.learning_rate=1.0", "training.max_grad_norm=0"]
    one += ["training.lr_scheduler_type=constant", "training.warmup_steps=0", "training.gradient_accumulation_steps=1"]
    size = [f"training.per_device_train_batch_size={len(ROWS)}", "training.save_strategy=no"]
    assert main(["sft", f"model.name={tiny_model}", *WORDS, *one, *size, "run_name=one", *more]) == 0
    _, examples = plain_tokens(tiny_model)
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    before = copy.deepcopy(model.state_dict())
    total = sum(label != -100 for _, labels in examples for label in labels)
    for ids, labels in examples:
        logits = model(torch.tensor([ids])).logits[0, :-1]
        targets = torch.tensor(labels[1:])
        (torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum") / total).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    largest = max(float(one.abs().max()) for one in gradients.values())
    for name, after in weights("one").items():
        torch.testing.assert_close(before[name] - after, gradients[name], atol=1e-6 * max(largest, 1), rtol=1e-4)
    assert rows("one")[0]["train/num_tokens"] == sum(len(ids) for ids, _ in examples)


@pytest.mark.parametrize("more", [[], ["model.lora.rank=4"]])
def test_stopped_and_resumed_it_is_the_same_run(more: list[str], tiny_model: str) -> None:
    common = ["sft", f"model.name={tiny_model}", *WORDS, "training.logging_steps=3", "training.max_steps=6", *more]
    assert main([*common, "run_name=whole"]) == 0
    for _ in range(2):
        assert main([*common, "run_name=parts", "stop_after_steps=2", "training.save_steps=2"]) == 0
    assert main([*common, "run_name=parts"]) == 0
    assert rows("parts") == rows("whole")
    assert rows("whole")[-1]["train/num_tokens"] > 0
    name = "adapter_model.safetensors" if more else "model.safetensors"
    whole, parts = (load_file(f"out/{run}/final_model/{name}") for run in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(tensor, parts[key]) for key, tensor in whole.items())


def test_it_learns_evaluates_and_reports(capsys: pytest.CaptureFixture[str]) -> None:
    """The starter learns to answer with its rows' form; the held-out problems are those of the named data."""
    more = ["dataset=arithmetic", "dataset.test_size=8", "dataset.hard_size=0", "evaluation.every_steps=4"]
    assert main(["sft", *WORDS, *more, "run_name=learnt", "--json"]) == 0
    found = rows("learnt")
    losses = [row["train/loss"] for row in found if "train/loss" in row]
    assert losses[-1] < losses[0]
    assert [row["step"] for row in found if "eval/accuracy" in row] == [0, 4]
    assert json.loads(capsys.readouterr().out)["finished"] is True
    page = Path("out/learnt/report.html").read_text(encoding="utf-8")
    assert "supervised" in page.lower()
    card = Path("out/learnt/final_model/README.md").read_text(encoding="utf-8")
    assert "supervised training" in card
    assert "GRPO" not in card.partition("## ")[0]


def test_what_grpo_alone_reads_is_said_to_have_no_effect(tiny_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["training.beta=0.1", "training.loss_type=dapo", "objective.resample_groups=1", "training.max_steps=1"]
    words += ["training.save_strategy=no"]
    assert main(["sft", f"model.name={tiny_model}", *WORDS, *words, "run_name=noted"]) == 0
    error = " ".join(capsys.readouterr().err.split())
    assert (
        "training.beta, training.loss_type, objective.resample_groups; only GRPO reads it, and sft.rows is set" in error
    )


def test_a_run_gives_its_model_problems_and_grader_but_for_what_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(Path("out/first"))
    run.root.mkdir(parents=True)
    words = [
        "model.name=some/model",
        "dataset=countdown",
        "rewards.think_tag=reason",
        "training.max_completion_length=7",
    ]
    run.config.write_text(to_yaml(load([*words, "training.learning_rate=1e-3"])), encoding="utf-8")
    common = ["sft", "sft.rows=out/first", "--cfg", "job"]
    assert main([*common, "model.lora.rank=8", "dataset.test_size=9"]) == 0
    config = load(recipe=written(capsys))
    assert (config.model.name, config.dataset.task, config.dataset.test_size) == ("some/model", "countdown", 9)
    assert (config.rewards.think_tag, config.training.max_completion_length) == ("reason", 7)
    assert config.training.learning_rate == 3e-4  # of adapters
    assert main([*common, "model.name=starter", "dataset=arithmetic"]) == 0
    config = load(recipe=written(capsys))
    assert (config.model.name, config.dataset.task, config.training.max_steps) == ("starter", "arithmetic", -1)


def written(capsys: pytest.CaptureFixture[str]) -> Path:
    Path("printed.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    return Path("printed.yaml")


def test_a_sweep_and_what_has_no_problems(tiny_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"model.name={tiny_model}", *WORDS, "training.max_steps=1", "training.save_strategy=no"]
    assert main(["sft", "--multirun", *words, "seed=1,2", "run_name=both"]) == 0
    runs = sorted(Path("out/both").glob("*/final_model"))
    assert len(runs) == 2
    capsys.readouterr()
    assert main(["eval", str(runs[0].parent)]) != 0
    assert "was trained without data, so its held-out problems are not known here" in capsys.readouterr().err


def test_every_shipped_template_ends_what_is_learnt_once() -> None:
    ask, said = [{"role": "user", "content": "1 + 1?"}], [{"role": "assistant", "content": "two"}]
    for template in SHIPPED:
        tokenizer = make_tokenizer(template)
        end = turn_end(tokenizer) or tokenizer.eos_token_id
        try:
            ((ids, labels),) = labelled(tokenizer, ask, said, end)
        except ModelError:
            continue  # it takes no such conversation
        learnt = [token for token in labels if token != -100]
        assert learnt == ids[len(ids) - len(learnt) :]
        assert "two" in tokenizer.decode(learnt), template
        assert learnt[-1] in tokenizer.all_special_ids, template
        assert sum(token in tokenizer.all_special_ids for token in learnt[-2:]) == 1, template


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sft.rows=null"], "covey sft needs sft.rows"),
        (["sft.rows=row.jsonl"], "Did you mean rows.jsonl?"),
        (["environment=calculator"], "environment cannot be used with sft.rows"),
        (["training.use_vllm=true"], "training.use_vllm cannot be used with sft.rows"),
        (["sft.max_length=8"], "all 24 examples are longer than sft.max_length=8 tokens"),
        (["sft.packing=true", "sft.max_length=null"], "sft.packing=true needs the length of a block"),
        (["training.optim=adamw_tree"], "training.optim=adamw_tree"),
    ],
)
def test_refusals(words: list[str], expected: str, tiny_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sft", f"model.name={tiny_model}", *WORDS, "run_name=never", *words]) != 0
    assert expected in " ".join(capsys.readouterr().err.split())
    assert not Path("out").exists()


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def texts(tiny_model: str, prompt: Any, completion: Any, template: str | None = None, **more: Any) -> list[Any]:
    """Of each sequence, all of it and what is learnt of it, as text."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = template or tokenizer.chat_template
    found = []
    for ids, labels in labelled(tokenizer, prompt, completion, tokenizer.eos_token_id, **more):
        learnt = [[token] if token != -100 else [-1] for token in labels]
        assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))
        runs = "".join(tokenizer.decode(one) if one != [-1] else "\0" for one in learnt).split("\0")
        found.append((tokenizer.decode(ids), [run for run in runs if run]))
    return found


def test_every_turn_and_its_end_and_nothing_after_it(tiny_model: str) -> None:
    ask, talk = (
        [{"role": "user", "content": "1 + 1?"}],
        [
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "3 + 3?"},
            {"role": "assistant", "content": "6"},
        ],
    )
    ((text, learnt),) = texts(tiny_model, ask, talk)
    assert learnt == ["2<|im_end|>", "6<|im_end|>"]
    assert text.endswith("6<|im_end|>")
    assert texts(tiny_model, ask, talk, every_turn=False)[0][1] == ["6<|im_end|>"]


def test_a_template_that_forgets_thinking_makes_a_sequence_of_each_turn(tiny_model: str) -> None:
    ask, talk = (
        [{"role": "user", "content": "1 + 1?"}],
        [
            {"role": "assistant", "content": "<think>1</think>2"},
            {"role": "user", "content": "3 + 3?"},
            {"role": "assistant", "content": "<think>3</think>6"},
        ],
    )
    first, second = texts(tiny_model, ask, talk, CHATML)
    assert first[1] == ["<think>1</think>2<|im_end|>"]
    assert second[1] == ["<think>3</think>6<|im_end|>"]
    assert "<think>1" not in second[0]


def test_thinking_that_the_template_opens_is_not_written_twice(tiny_model: str) -> None:
    opens = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    ask = [{"role": "user", "content": "1 + 1?"}]
    for said in ("<think>\n1</think>2", "<think>1</think>2", "1</think>2", "1</think>2<|im_end|>\n"):
        ((text, learnt),) = texts(tiny_model, ask, said, opens)
        assert learnt == ["1</think>2<|im_end|>"]
        assert text.count("<think>") == 1
    ((_, learnt),) = texts(tiny_model, ask, "2", opens)
    assert learnt == ["</think>\n\n2<|im_end|>"]


def test_a_text_is_taken_as_it_is(tiny_model: str) -> None:
    assert texts(tiny_model, "1 + 1 = ", "2") == [("1 + 1 = 2<|im_end|>", ["2<|im_end|>"])]


@pytest.mark.slow
def test_two_processes_train_as_one(tiny_model: str) -> None:
    """Equal batches of four rows: halves in two processes, whole in one; the loss is the mean over all tokens."""
    one = ["training.optim=sgd", "training.learning_rate=1.0", "training.max_steps=3", "training.save_strategy=no"]
    common = ["sft", f"model.name={tiny_model}", *WORDS, *one]
    assert main([*common, "run_name=one"]) == 0
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    words = [*common, "run_name=two", "training.per_device_train_batch_size=2"]
    ended = completed([*launcher, "-m", "covey.cli.main", *words], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0, ended.stderr[-3000:]
    alone, together = weights("one"), weights("two")
    assert max(float((tensor - together[name]).abs().max()) for name, tensor in alone.items()) < 1e-6
    assert [row["train/num_tokens"] for row in rows("one")] == [row["train/num_tokens"] for row in rows("two")]


def test_a_tokenizer_without_any_end_trains_nothing(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does it go on with GRPO, whatever checks are ignored."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.eos_token = None
    AutoModelForCausalLM.from_pretrained(tiny_model).save_pretrained(tmp_path / "endless")
    tokenizer.save_pretrained(tmp_path / "endless")
    assert main(["sft", "model.name=endless", *WORDS, "run_name=never", "ignore_checks=[all]"]) != 0
    assert "has no token that ends a turn" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("settings", [ColdStart(steps=3, batch_size=4), replace(AGENT, steps=3, batch_size=4)])
def test_a_cold_start_is_that_of_a_plain_loop(settings: ColdStart) -> None:
    """Its first batches too: the same documents; in several micro-batches, the mean over the tokens of all of them."""
    settings, losses = replace(settings, warmup_steps=0), list[float]()
    trained, _ = train_starter(settings, lambda step, loss: losses.append(loss))
    torch.manual_seed(settings.seed)
    model, tokenizer = new_starter(settings)
    names = {name for name, tensor in model.named_parameters() if tensor.dim() > 1}  # norms do not decay
    groups = [
        {"params": [t for name, t in model.named_parameters() if (name in names) is decays], "weight_decay": decay}
        for decays, decay in ((True, settings.weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98))
    rows = examples(settings, tokenizer)
    for step in range(3):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * 0.5 * (1 + math.cos(math.pi * step / 3))
        total, batch = torch.tensor(0.0), [next(rows) for _ in range(4)]
        for row in batch:  # each alone, without padding
            logits = model(torch.tensor([row["input_ids"]])).logits[0, :-1]
            total = total + torch.nn.functional.cross_entropy(logits, torch.tensor(row["labels"][1:]), reduction="sum")
        loss = total / sum(label >= 0 for row in batch for label in row["labels"][1:])
        assert losses[step] == pytest.approx(loss.item(), abs=2e-4)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert len(losses) == 3
    ended = trained.state_dict()
    assert max(float((tensor - ended[name]).abs().max()) for name, tensor in model.state_dict().items()) < 1e-4
