"""A pretrained model, of which nothing is made for Covey, goes the whole way (`make test-real`)."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from completed import completed
from covey.cli.main import main
from covey.runlog import RunDirectory, names, read_metrics

pytestmark = pytest.mark.real

RECIPE = "recipes/smollm2_135m_instruct/grpo/arithmetic.yaml"
SMALLER = ("dataset.test_size=64", "evaluation.num_samples=2")
AS_IN_THE_RECIPE = (
    *("dataset.difficulty.min_digits=1", "dataset.difficulty.max_digits=2", "dataset.hard_size=0"),
    "dataset.system_prompt=null",
    *("dataset.user_prompt_template='{prompt} Reply with the number only.'", "rewards.funcs=[accuracy]"),
    "training.max_completion_length=12",
)


@pytest.fixture(scope="module")
def model(root: Path) -> str:
    """The folder of SmolLM2-135M-Instruct, which is made at the first call."""
    done = completed([root / "scripts" / "real_model.sh"], env={**os.environ, "PYTHON": sys.executable})
    if done.returncode == 3:
        pytest.skip(f"the model cannot be made here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def answer(folder: str | Path, question: str) -> str:
    """What plain transformers says, greedily."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, loaded = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    found = loaded.generate(**prompt, max_new_tokens=24, do_sample=False)
    return str(tokenizer.decode(found[0, prompt["input_ids"].shape[1] :]))


def test_the_folder_holds_the_model_that_it_is_named_for(model: str) -> None:
    """Weights whose queries and keys are in another order, or another rope, do not know this."""
    assert answer(model, "What is the capital of France?") == "The capital of France is Paris.<|im_end|>"
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    assert (config["vocab_size"], config["tie_word_embeddings"], config["eos_token_id"]) == (49_152, True, 2)


def test_ten_steps_teach_it_and_what_is_exported_is_what_was_trained(
    model: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, exported = RunDirectory(tmp_path / "run"), tmp_path / "exported"
    words = [f"model.name={model}", f"output_dir={tmp_path}", "run_name=run", "training.max_steps=10", *SMALLER]
    assert main(["train", str(root / RECIPE), *words]) == 0
    before, after = [row for row in read_metrics(run.metrics) if names.EVAL_ACCURACY in row]
    assert after[names.EVAL_ACCURACY_LOW] > before[names.EVAL_ACCURACY]  # 5.5% and 26.6% once

    assert main(["export", str(run.root), str(exported)]) == 0
    said = answer(exported, "What is 31 + 25? Reply with the number only.")
    assert re.search(r"\d<\|im_end\|>$", said), said  # it ends with its answer: "31 + 25 = 56" once
    found = []
    for what in ([str(run.root)], [str(exported), *AS_IN_THE_RECIPE, *SMALLER]):
        capsys.readouterr()
        folder = str(tmp_path / f"evaluation-{len(found)}")
        assert main(["eval", *what, "evaluation=greedy", "--json", "--out", folder]) == 0
        (one,) = json.loads(capsys.readouterr().out)
        found.append(one["metrics"])
    assert found[0] == found[1]
    assert found[0]["accuracy"]["value"] > before[names.EVAL_ACCURACY]
