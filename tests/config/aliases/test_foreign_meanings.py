"""Other tools' keys keep their meaning, not only get a new name.

Pinned here: micro-batches count prompts; a warm-up ratio is a share; evaluation as transformers decides it; mixture
weights as their tool reads them; KL control, MaxEnt and adapters as the tools switch them on and off; and that Covey's
own defaults for its starter stay out of other people's recipes.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.support.dead_keys import dead_lines_of

from compose_config import from_words, from_yaml
from covey.config import Composed, load
from covey.errors import ConfigError


def test_micro_batches_count_prompts_in_whatever_order():
    for words in (
        ("training.micro_batch_size=4", "grpo.num_generations=2"),
        ("--num_generations", "2", "--training.micro_batch_size", "4"),
    ):
        composed = from_words(*words, "training.gradient_accumulation_steps=1")
        assert composed.config.training.per_device_train_batch_size == 8
        assert any("4 prompts x num_generations=2" in note for note in composed.notes)
    recipe = "training: {micro_batch_size: 3}\ngrpo: {num_generations: 4}\n"
    assert from_yaml(recipe).config.training.per_device_train_batch_size == 12
    assert from_yaml(recipe, "r.yaml", "--num_generations", "6").config.training.per_device_train_batch_size == 18
    later = from_yaml(recipe, "r.yaml", "training.per_device_train_batch_size=8", "preset=none")
    assert later.config.training.per_device_train_batch_size == 8
    assert later.notes == ()
    with pytest.raises(ConfigError, match=r"micro_batch_size=1\.5 must be an integer.*foreign\.yaml, line 1"):
        from_yaml("training: {micro_batch_size: 1.5}")


def test_batches_become_steps():
    recipe = {
        "training": {"num_batches": 100, "num_epochs": 3, "train_fraction": 0.5, "micro_batch_size": 2},
        "grpo": {"num_iterations": 2, "num_generations": 4},
    }
    composed = from_yaml({**recipe, "training": {**recipe["training"], "num_test_batches": 10}})
    assert composed.config.training.max_steps == 300  # 100 x 2 x 0.5 x 3
    assert composed.config.training.num_train_epochs == 3
    assert composed.config.dataset.train_fraction == 0.5
    assert composed.config.evaluation.max_problems == 20  # 10 batches of 2 prompts
    assert from_yaml(recipe, "r.yaml", "training.max_steps=5").config.training.max_steps == 5
    assert from_yaml({"training": {"num_epochs": 2}}).config.training.num_train_epochs == 2
    assert from_yaml({"training": {"num_test_batches": 0}}).config.evaluation.every_steps == 0


def test_warm_up_is_a_share_below_one():
    with pytest.raises(ConfigError, match=r"optimizer\.warmup_ratio=1\.0 must be a share.*`optimizer\.warmup_ratio=1"):
        from_words("optimizer.warmup_ratio=1.0")
    assert from_yaml("warmup_ratio: 0.1\nwarmup_steps: 0\n").config.training.warmup_steps == 0.1
    assert from_yaml("warmup_steps: 10\nwarmup_ratio: 0.0\n").config.training.warmup_steps == 10
    assert from_yaml("warmup_ratio: 0\n").config.training.warmup_steps == 0
    with pytest.raises(ConfigError, match=r"warmup_steps=5 and warmup_ratio=0\.1 contradict"):
        from_yaml("warmup_ratio: 0.1\nwarmup_steps: 5\n")


@pytest.mark.parametrize(
    ("settings", "every"),
    [
        ({"evaluation_strategy": "steps", "eval_steps": 25}, 25),
        ({"eval_strategy": "steps", "eval_steps": 25.0, "do_eval": True}, 25),
        ({"eval_strategy": "steps", "logging_steps": 4}, 4),  # as transformers does
        ({"eval_strategy": "steps"}, 10),  # TRL's default of logging_steps
        ({"evaluation_strategy": "no", "eval_steps": 25}, 0),
        ({"evaluation_strategy": False}, 0),  # YAML's bare no
        ({"evaluation_strategy": "epoch", "eval_steps": 25}, "epoch"),
        ({"do_eval": False}, 0),
        ({"do_eval": False, "eval_steps": 25}, 0),
        ({"do_eval": False, "eval_strategy": "steps", "eval_steps": 9}, 9),  # the strategy switches do_eval on
        ({"do_eval": True}, 10),  # nothing else is set: the starter's tuning
        ({"eval_steps": 0.1, "max_steps": 45}, 5),
        ({"eval_steps": None, "eval_strategy": None}, 10),
    ],
)
def test_when_to_evaluate(settings, every):
    assert from_yaml(settings).config.evaluation.every_steps == every


def test_evaluation_over_two_sources_and_shares_without_a_total():
    recipe = {"evaluation_strategy": "steps", "eval_steps": 25}
    assert from_yaml(recipe, "r.yaml", "--eval_steps", "10").config.evaluation.every_steps == 10
    assert from_yaml(recipe, "r.yaml", "--eval_strategy", "no").config.evaluation.every_steps == 0
    assert from_yaml(recipe, "r.yaml", "evaluation.every_steps=3").config.evaluation.every_steps == 3
    with pytest.raises(ConfigError, match=r"eval_steps=0\.5 is a share of all steps.*foreign\.yaml, line 1"):
        from_yaml({"eval_steps": 0.5, "max_steps": -1})
    with pytest.raises(ConfigError, match=r"eval_strategy=sometimes must be one of no, steps, epoch"):
        from_words("--eval_strategy", "sometimes", "--eval_steps", "5")


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        *((name, "float32") for name in ("fp32", "float32", "torch.float32", "FP32")),
        *((name, "float16") for name in ("fp16", "float16", "half", "torch.float16")),
        *((name, "bfloat16") for name in ("bf16", "bfloat16", "torch.bfloat16")),
        ("auto", "auto"),
    ],
)
def test_dtype_under_any_name(value, dtype):
    for name in ("model.dtype", "torch_dtype", "model.torch_dtype", "model.model_kwargs.dtype"):
        assert load([f"{name}={value}"]).model.dtype == dtype
    with pytest.raises(ConfigError, match=r"model\.dtype=int3 is not possible.*`torch_dtype=int3`"):
        load(["torch_dtype=int3"])


def test_mixtures_keep_the_meaning_of_their_tool():
    openr1 = from_yaml(
        "dataset_mixture:\n  datasets:\n    - {id: a/b, config: c, columns: [x, y], weight: 0.5}\n    - id: d/e\n"
    )
    mixture = openr1.config.dataset.mixture
    assert (mixture.weights, mixture.seed, mixture.test_split_size) == ("fraction", 0, None)
    assert [(s.id, s.config, s.weight) for s in mixture.sources] == [("a/b", "c", 0.5), ("d/e", None, None)]
    assert openr1.config.dataset.task is None
    assert openr1.config.dataset.label == "mixture"
    trl = from_yaml(
        "datasets:\n- {path: a/b, name: main, fraction: 0.8}\n- {path: d/e, fraction: 0.2}\ntest_split_size: 0.1\n"
    )
    mixture = trl.config.dataset.mixture
    assert (mixture.weights, mixture.test_split_size) == ("share", 0.1)
    assert [(s.id, s.config, s.weight) for s in mixture.sources] == [("a/b", "main", 0.8), ("d/e", None, 0.2)]
    assert from_yaml("datasets: [{path: a/b}]").config.dataset.mixture.weights == "fraction"
    with pytest.raises(ConfigError, match=r"dataset_mixture=.*must be a mapping.*foreign\.yaml, line 1"):
        from_yaml("dataset_mixture: [a, b]")
    with pytest.raises(ConfigError, match=r"holds dedupe"):
        from_yaml("dataset_mixture: {datasets: [], dedupe: true}")


def test_kl_control():
    adaptive = from_yaml("init_kl_coeff: 0.5\nkl_target: 0.1\nkl_horizon: 300\n").config
    assert (adaptive.objective.kl.controller, adaptive.training.beta) == ("adaptive", 0.5)
    assert load(["objective.kl.kl_target=0.1"]).objective.kl.controller == "fixed"
    off = from_yaml("kl_target: 0\nkl_horizon: 0\nkl_ctl_step_size: 0.0\n")
    assert off.config.objective.kl == load().objective.kl
    assert sum("0 means no control" in note for note in off.notes) == 3
    assert from_yaml("kl_target: 0.1\nkl_horizon: 0\n").config.objective.kl.controller == "fixed"
    assert from_yaml("kl_target: 0.1\nobjective.kl.controller: fixed\n").config.objective.kl.controller == "fixed"
    assert from_yaml("objective: {kl: fixed}", "r.yaml", "--kl_target", "0.1").config.objective.kl.controller == "fixed"
    group = from_yaml("kl_target: 0.1\nmaxent_tau: 2\n", "r.yaml", "objective=grpo").config.objective
    assert (group.name, group.kl.controller, group.kl.kl_target) == ("grpo", "fixed", load().objective.kl.kl_target)


def test_which_objective():
    assert from_yaml("maxent_tau: 0.2\n").config.objective.name == "maxent"
    assert from_words("--maxent_tau", "0.2").config.objective.name == "maxent"
    assert from_yaml("train_grpo_objective: false\n").config.objective.name == "maxent"
    plain = from_yaml("train_grpo_objective: true\nmaxent_tau: 0.2\nmaxent_q_temperature: 2\n")
    assert plain.config.objective == load().objective
    assert [note for note in plain.notes if "left out: maxent_tau, maxent_q_temperature" in note]
    both = from_yaml("train_grpo_objective: true\nmaxent_tau: 0.2\n", "r.yaml", "objective.name=maxent")
    assert (both.config.objective.name, both.config.objective.maxent_tau) == ("maxent", 0.2)
    with pytest.raises(ConfigError, match=r"belongs to objective=maxent.*--maxent_tau 0\.4"):
        from_yaml("train_grpo_objective: true\n", "r.yaml", "--maxent_tau", "0.4")
    with pytest.raises(ConfigError, match=r"objective\.name=grpo"):
        from_words("--maxent_tau", "0.4", "objective=grpo")
    listwise = from_yaml("maxent: {training: {objective: maxent_listwise}}").config.objective
    assert (listwise.name, listwise.maxent_fit) == ("maxent", "listwise")
    assert load(["maxent_fit=mle"]).objective.maxent_fit == "mle"


def test_adapters_as_in_trl():
    quiet = from_yaml("lora_r: 8\nlora_alpha: 16\n")
    assert quiet.config.model.lora.active is False
    (line,) = dead_lines_of(quiet)
    assert "lora_r (model.lora.rank)" in line
    assert "lora_alpha (model.lora.alpha)" in line
    assert "use_peft" in line
    used = from_yaml("use_peft: true\nlora_r: 8\n", "r.yaml", "--lora_alpha", "64")
    assert (used.config.model.lora.active, used.config.model.lora.rank, used.config.model.lora.alpha) == (True, 8, 64)
    assert used.notes == ()
    assert from_yaml("lora_r: 8\nmodel.lora.enabled: true\n").config.model.lora.active
    assert from_yaml("model: {lora_rank: 32}", "r.yaml", "model.lora_rank=0").config.model.lora.active is False
    assert from_yaml("model: {lora_rank: 0}", "r.yaml", "model.lora_rank=4").config.model.lora.active is True


def test_models_by_family_and_size():
    recipe = "model: {model_family: gemma3, model_size: 270m}\n"
    assert from_yaml(recipe).config.model.name == "google/gemma-3-270m-it"
    assert from_yaml(recipe, "r.yaml", "model.model_size=1b").config.model.name == "google/gemma-3-1b-it"
    assert from_yaml(recipe, "r.yaml", "model.name=x/y").config.model.name == "x/y"
    for wrong in ("model.model_size=3b", "model.model_family=llama"):
        with pytest.raises(ConfigError, match=r"model\.model_(size|family)=.*must be.*model\.name"):
            from_words(wrong)


def test_data_that_follow_from_where_they_come():
    taken = from_yaml("training: {data_source: huggingface}\n")
    assert taken.config.dataset.id == "openai/gsm8k"
    assert any("dataset=gsm8k" in note for note in taken.notes)
    assert from_yaml("training: {data_source: tfds}\ndataset: {path: x.jsonl}\n").config.dataset.path == "x.jsonl"
    assert from_yaml("data_source: tfds\n", "r.yaml", "dataset=arithmetic").config.dataset.task == "arithmetic"
    Path("local").mkdir()
    assert from_words("--dataset_name", "local").config.dataset.path == "local"
    assert load(["dataset.name=kaggle://a/b/c.csv"]).dataset.path == "kaggle://a/b/c.csv"


def test_longer_prompts_are_truncated_as_trl_did_unless_chosen():
    assert from_yaml("max_prompt_length: 10\n").config.dataset.overlong_prompts == "truncate"
    assert (
        from_yaml("max_prompt_length: 10\ndataset.overlong_prompts: drop\n").config.dataset.overlong_prompts == "drop"
    )
    assert load(["dataset.max_prompt_length=10"]).dataset.overlong_prompts == "drop"
    unset = from_yaml("max_prompt_length: 10\n", "r.yaml", "--max_prompt_length", "null").config.dataset
    assert unset.max_prompt_length is None


def test_resuming_trackers_and_callbacks():
    for value, resume in (
        *(("false", "auto"), ("true", "auto"), ("null", "auto")),
        ("out/checkpoint-3", "out/checkpoint-3"),
    ):
        assert from_yaml(f"resume_from_checkpoint: {value}\n").config.resume == resume
    assert from_yaml("logging: {enabled: true}\nreport_to: tensorboard\n").config.training.report_to == "tensorboard"
    assert from_words("logging.enabled=true", "logging=none").config.training.report_to == "none"
    assert from_words("wandb_disabled=false").config.training.report_to == "wandb"  # on by default there
    found = from_yaml("callbacks: [push_to_hub_revision, caching_callback, my.py:Mine]\n")
    assert found.config.callbacks == ("my.py:Mine",)
    assert found.config.training.push_to_hub is True
    assert any("caching_callback" in note for note in found.notes)
    assert from_yaml("callbacks: [push_to_hub_revision]\npush_to_hub: false\n").config.training.push_to_hub is False


@pytest.mark.parametrize("value", ["true", "false", "'True'"])
def test_overwriting_is_never_asked_for_by_another_tools_key(value: str) -> None:
    for more in ("", "resume_from_checkpoint: true\n", "resume_from_checkpoint: false\n"):
        found = from_yaml(f"overwrite_output_dir: {value}\n{more}")
        assert (found.config.overwrite, found.config.resume) == (False, "auto")
        notes = [note for note in found.notes if "overwrite_output_dir" in note]
        assert len(notes) == 1
        assert ("nothing is deleted" in notes[0]) == (value != "false")
    assert from_words("--overwrite_output_dir", value.strip("'")).config.overwrite is False
    assert from_yaml("overwrite_output_dir: true\n", "r.yaml", "overwrite=true").config.overwrite is True


def test_another_tools_output_dir_is_the_runs_own_folder() -> None:
    def place(found: Composed) -> tuple[str, str | None]:
        return found.config.output_dir, found.config.run_name

    flat = "max_steps: 3\noutput_dir: data/mine\n"
    found = from_yaml(flat)
    assert place(found) == ("data", "mine")
    assert "output_dir=data/mine: the run lies in data/mine, where the same command resumes it" in found.notes
    assert place(from_yaml(flat, "r.yaml", "--output_dir", "/else/where/")) == ("/else", "where")
    assert place(from_yaml(flat, "r.yaml", "output_dir=/else/where/")) == ("/else/where", "mine")
    assert place(from_yaml("max_steps: 3\n", "r.yaml", "output_dir=there")) == ("there", "r")
    assert place(from_yaml(flat, "r.yaml", "run_name=a")) == ("data/mine", "a")
    assert place(from_yaml("max_steps: 3\noutput_dir: mine\nexp_name: b\n")) == ("mine", "b")
    assert place(from_words("checkpoint_dir=./ckpts/run/")) == ("ckpts", "run")
    assert place(from_words("--output_dir", "there/run")) == ("there", "run")
    here = Path.cwd()
    assert place(from_yaml("max_steps: 3\noutput_dir: .\n")) == (str(here.parent), here.name)
    # Covey's own key is a folder of runs; without run_name every call starts a new run.
    assert place(from_words("output_dir=there")) == ("there", None)
    assert place(from_yaml("output_dir: there\ntraining: {max_steps: 3}\n")) == ("there", None)
    assert place(from_yaml(flat.replace("output_dir: data/mine\n", ""))) == ("out", None)


def test_the_starters_defaults_do_not_leak_into_a_foreign_recipe():
    composed = from_yaml(
        "model_name_or_path: a/b\ndataset_name: c/d\nreward_funcs: [accuracy, format]\nlearning_rate: 2.0e-05\n"
        "max_prompt_length: 512\nnum_generations: 16\nper_device_train_batch_size: 16\n"
    )
    config = composed.config
    assert (config.dataset.task, config.dataset.id, config.dataset.hard_size) == (None, "c/d", 0)
    assert config.training.reward_weights is None
    assert config.training.max_steps == -1
    assert config.training.temperature == 1.0
    assert "temperature" not in config.training.values
    assert config.model.dtype is None
    assert composed.recipe == Path("foreign.yaml")
    replaced = from_yaml(
        "dataset_mixture: {datasets: [{id: a/b}]}\n", "r.yaml", "model=starter", "dataset=arithmetic"
    ).config
    assert (replaced.dataset.task, replaced.dataset.mixture.datasets) == ("arithmetic", [])


def test_references_between_foreign_keys():
    recipe = "project_name: mine\nexp_name: first\noutput_dir: out/${exp_name}/${project_name}\ndtype: ${p}\np: x\n"
    with pytest.raises(ConfigError, match="p is not a key"):
        from_yaml(recipe)
    text = recipe.replace("dtype: ${p}\np: x\n", "experiment_name: e\nlogging: {tags: ['${experiment_name}']}\n")
    assert from_yaml(text).config.output_dir == "out/first/mine"
    assert from_yaml(text).config.logging.tags == ("e",)
    assert from_yaml(text, "r.yaml", "exp_name=second").config.output_dir == "out/second/mine"


def test_eval_share_rounds_up_as_transformers_does():
    assert math.ceil(45 * 0.1) == 5
    assert from_yaml({"eval_steps": 0.2, "training": {"num_batches": 12}}).config.evaluation.every_steps == 3


@pytest.mark.parametrize(
    ("overrides", "loss"),
    [
        (["objective=maxent"], "grpo"),
        (["objective.name=maxent"], "grpo"),
        (["maxent_tau=0.3"], "grpo"),
        (["maxent_tau=0.3", "loss_type=luspo"], "luspo"),
        (["training.loss_type=luspo", "objective.name=maxent"], "luspo"),
    ],
)
def test_maxent_sets_its_loss_however_it_is_chosen(overrides: list[str], loss: str) -> None:
    made = load([*overrides, "training.beta=0.1"])
    assert made.objective.name == "maxent"
    assert made.training.loss_type == loss


def test_a_recipe_names_its_objective():
    listwise = from_yaml("objective: maxent_listwise\nmaxent_tau: 0.2\n").config.objective
    assert (listwise.name, listwise.maxent_fit, listwise.maxent_tau) == ("maxent", "listwise", 0.2)
    plain = from_yaml("objective: grpo\nmaxent_tau: 0.2\nmaxent_length_normalize_ref: false\n")
    assert plain.config.objective.name == "grpo"
    assert any("left out: maxent_tau, maxent_length_normalize_ref" in note for note in plain.notes)
    with pytest.raises(ConfigError, match=r"objective\.maxent_tau=0\.2 belongs to objective=maxent"):
        from_words("objective.name=grpo", "--maxent_tau", "0.2")


def test_a_switch_keeps_kl_control_off():
    recipe = "kl_target: 0.07\nkl_horizon: 500\nkl_ctl_step_size: 1.0\n"
    assert from_yaml(recipe).config.objective.kl.controller == "adaptive"
    for name in ("grpo_beta_controller_enabled", "maxent_beta_controller_enabled"):
        assert from_yaml(f"{recipe}{name}: false\n").config.objective.kl.controller == "fixed"
        assert from_yaml(f"{recipe}{name}: true\n").config.objective.kl.controller == "adaptive"


def test_values_that_other_tools_write_in_their_own_way():
    for name in ("gen_top_k", "vllm_top_k", "top_k"):
        assert from_words(f"--{name}", "-1").config.training.top_k == 0  # all tokens, in vLLM
        assert from_words(f"--{name}", "7").config.training.top_k == 7
    assert from_yaml("log_level: 20\n").config.training.log_level == "info"
    assert from_yaml("log_level: debug\n").config.training.log_level == "debug"
    funcs = from_words("--reward_funcs", "accuracy_reward", "my_lib.rewards.mine", "a/b.c.py:f").config.rewards.funcs
    assert funcs == ("accuracy", "my_lib.rewards:mine", "a/b.c.py:f")
    assert from_yaml("use_liger_loss: false\nuse_liger_kernel: true\n").config.training.use_liger_kernel
    assert from_yaml("use_liger_loss: true\n").config.training.use_liger_kernel
    template = from_yaml('prompt_template: "Solve: {problem}"\n').config.dataset.user_prompt_template
    assert template == "Solve: {prompt}"
    named = from_yaml("prompt_template: r1\nenv: {CUDA_VISIBLE_DEVICES: 0}\n")
    assert named.config.dataset.user_prompt_template is None
    assert any("prompt_template=r1" in note and "env=" in note for note in named.notes)
