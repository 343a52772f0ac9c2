"""Aliases together: keys without effect are noted once, an unknown key is an error with the nearest names, and two
aliases of one key must agree."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from completed import completed
from compose_config import from_words, from_yaml
from covey.config import load
from covey.errors import ConfigError

ROOT = Path(__file__).parents[3]


def test_keys_without_effect_are_noted_once_and_change_nothing():
    recipe = "vf_coef: 0.25\ngamma: 0.99\nclip_range: 0.1\ninfo_seed_enabled: false\nhydra: {run: {dir: x}}\nseed: 3\n"
    composed = from_yaml(recipe, "foreign.yaml", "preset=none")
    assert composed.notes == (
        "foreign.yaml: without effect here, ignored: vf_coef, gamma, clip_range, info_seed_enabled, hydra",
    )
    assert composed.config == load(["seed=3"])
    asked = from_yaml(
        "policy_entropy_bonus_coef: 0.03\ngen_best_of: 1\nmax_grad_norm: 1\n", "foreign.yaml", "preset=none"
    ).notes
    assert asked[0] == "foreign.yaml: without effect here, ignored: gen_best_of"
    assert asked[1] == "foreign.yaml: not supported, ignored: policy_entropy_bonus_coef=0.03"
    assert from_words("--vf_coef", "0.1", "lam=2").notes == (
        "command line: without effect here, ignored: vf_coef, lam",
    )
    assert from_words("optimizer=adamw", "preset=none").notes == (
        "command line: without effect here, ignored: optimizer",
    )
    groups = from_yaml("defaults: [{model: gemma3_270m}, {optimizer: adamw}, {training: default}, _self_]\n")
    assert groups.config.model.name == "google/gemma-3-270m-it"
    assert "optimizer=adamw, training=default" in groups.notes[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model_name_or_pth: x\n", r"Did you mean model_name_or_path.*foreign\.yaml, line 1"),
        ("seed: 1\noptimizer:\n  learning_rat: 1\n", r"optimizer\.learning_rat .*training\.learning_rate\?.*line 3"),
        ("maxent_taw: 1\n", r"maxent_tau"),
        ("warmup_ratoi: 0.1\n", r"warmup_ratio"),
        ("nonsense_of_mine: 1\n", r"nonsense_of_mine is not a key that Covey knows\. \(Set in"),
        ("model:\n  model_size: 9b\n", r"model\.model_size=9b must be one of 270m.*line 2"),
        ("optimizer:\n  beta1: abc\n", r"training\.adam_beta1=abc.*a number.*line 2, as optimizer\.beta1"),
        ("lora_rank: soon\n", r"lora_rank=soon must be a number.*line 1"),
        ("vllm_url: localhost\n", r"vllm_url=localhost must be an address"),
        ("beta: 0.1\ninit_kl_coeff: 0.2\n", r"init_kl_coeff=0\.2 and beta=0\.1 .*training\.beta\): keep one.*line 2"),
        ("training: {beta: 1}\ngrpo: {beta: 2}\n", r"grpo\.beta=2 and training\.beta=1 contradict"),
        ("evaluation_strategy: no\neval_strategy: steps\n", r"eval_strategy=steps and evaluation_strategy=false"),
        (
            "eval_steps: 5\nevaluation: {every_steps: 6}\n",
            r"eval_steps=5.*evaluation\.every_steps=6|every_steps=6 and eval_steps",
        ),
        ("exp_name: a\nrun_name: b\n", r"run_name=b and exp_name=a"),
        ("baseline: {recipe: x.yaml}\n", r"line 1: there is no recipe x\.yaml, which this one builds on"),
        (
            "objective: maxent_entropy\n",
            r"objective=maxent_entropy must be one of grpo, maxent, .*, maxent_listwise",
        ),
        ("model: starter\n", r"model is a group.*`model=NAME` on the command line, or `defaults: \[override /model"),
    ],
)
def test_invalid_recipes(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        from_yaml(text)
    assert "\n" not in str(caught.value)


def test_equal_values_agree_and_the_later_source_wins():
    assert from_yaml("beta: 1\ninit_kl_coeff: 1.0\nexp_name: a\nlogging: {run_name: null}\n").config.training.beta == 1
    assert from_yaml("beta: 1\n", "r.yaml", "--init_kl_coeff", "2").config.training.beta == 2
    assert from_words("training.beta=1", "--init_kl_coeff", "2").config.training.beta == 2
    assert from_words("--init_kl_coeff", "2", "training.beta=1").config.training.beta == 1
    assert from_words("--init_kl_coeff", "2", "--init_kl_coeff", "3").config.training.beta == 3
    with pytest.raises(ConfigError, match=r"gen_temperature=0\.7 and temperature=1\.2 contradict"):
        from_words("--temperature", "1.2", "--gen_temperature", "0.7")
    last = from_yaml("vllm_url: http://a:1/generate\nvllm_server_base_url: http://b:2\n").config
    assert last.training.vllm_server_base_url == "http://b:2"


def test_keys_are_removed_by_any_alias():
    assert "max_grad_norm" not in load(["~optimizer.max_grad_norm"]).training.values
    with pytest.raises(ConfigError, match=r"removes training\.min_p, which is not set"):
        load(["~min_p"])
    with pytest.raises(ConfigError, match="another tool's name"):
        load(["~vf_coef"])


def test_origins_name_the_users_own_words():
    composed = from_yaml("seed: 1\noptimizer: {beta1: 0.8}\n", "r.yaml", "--max_steps", "4", "grpo.beta=0.1")
    assert composed.origins["training.adam_beta1"] == "r.yaml, line 2"
    assert composed.origins["training.max_steps"] == "the flag `--max_steps 4`"
    assert composed.origins["training.beta"] == "the override `grpo.beta=0.1`"
    assert "training.learning_rate" not in composed.origins


def test_resolving_aliases_imports_nothing_heavy():
    code = (
        "import json, sys; from covey.config import compose, split;"
        "compose(split(['--maxent_tau', '0.1', 'optimizer.beta1=0.9']).overrides);"
        "print(json.dumps([m for m in ('torch', 'transformers', 'trl', 'datasets', 'accelerate') if m in sys.modules]))"
    )
    done = completed([sys.executable, "-c", code], check=True, cwd=ROOT)
    assert json.loads(done.stdout) == []
