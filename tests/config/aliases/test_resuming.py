"""Other tools' words about resuming, wherever they stand: where a run lies, what it resumes from; none deletes."""

from __future__ import annotations

from pathlib import Path

import pytest

from compose_config import from_words, from_yaml
from covey.config import Composed, compose, differences
from covey.config.aliases.alias_result import AliasValueError
from covey.config.aliases.aliases import table


def from_group(text: str, *words: str) -> Composed:
    """A run with an option of the user's own group, in which this text stands."""
    option = Path("mine/training/own.yaml")
    option.parent.mkdir(parents=True, exist_ok=True)
    option.write_text(text)
    return compose(["training=own", *words], config_dirs=["mine"])


def place(found: Composed) -> tuple[str, str | None]:
    return found.config.output_dir, found.config.run_name


def test_a_checkpoint_folder_is_the_runs_own_wherever_it_stands() -> None:
    """Agent-Tunix sets it in its group `training` (training/default.yaml), and as a word."""
    own = ("ckpts", "run")
    assert place(from_words("checkpoint_dir=./ckpts/run/")) == own
    assert place(from_words("training.checkpoint_dir=./ckpts/run/")) == own
    assert place(from_words("--checkpoint_dir", "./ckpts/run/")) == own
    assert place(from_yaml("training: {checkpoint_dir: ./ckpts/run/}\n")) == own
    assert place(from_group("checkpoint_dir: ./ckpts/run/\n")) == own
    assert place(from_group("checkpoint_dir: ./ckpts/run/\n", "run_name=mine")) == ("./ckpts/run/", "mine")
    assert place(from_group("checkpoint_dir: ./ckpts/run/\n", "checkpoint_dir=other/one")) == ("other", "one")


def test_the_same_words_name_the_same_run() -> None:
    for words in (
        ["checkpoint_dir=ckpts/run"],
        ["--output_dir", "data/x"],
        ["model=gemma3_1b", "grpo.beta=0.1"],  # ./checkpoints/ckpts/ there
        ["model.name=a/b", "exp_name=mine"],  # ./out/mine
        ["model.name=a/b", "logging.enabled=false"],  # ./out/grpo_baseline
    ):
        first, second = from_words(*words), from_words(*words)
        assert place(first) == place(second)
        assert first.config.run_name is not None, words
    assert place(from_words("model=gemma3_1b", "grpo.beta=0.1")) == ("checkpoints", "ckpts")
    assert place(from_words("model.name=a/b", "exp_name=mine")) == ("out", "mine")
    assert place(from_words("model.name=a/b", "logging.enabled=false")) == ("out", "grpo_baseline")
    nowhere = from_yaml("model_name_or_path: a/b\nsystem_prompt: x\n").config  # transformers' own default
    assert Path(nowhere.output_dir, str(nowhere.run_name)) == Path("trainer_output")


def test_run_name_as_a_flag_names_the_run_in_trackers_only() -> None:
    """MaxEnt-GRPO's launcher: `--run_name X-$TIMESTAMP --ignore_data_skip --overwrite_output_dir false`. The run
    lies in the recipe's output_dir, whatever the time, and goes on from there."""
    recipe = "model_name_or_path: a/b\ntrain_grpo_objective: true\noutput_dir: data/mine\noverwrite_output_dir: true\n"
    flags = ["--ignore_data_skip", "--overwrite_output_dir", "false", "--seed", "42"]
    first = from_yaml(recipe, "r.yaml", "--run_name", "X-1", *flags)
    second = from_yaml(recipe, "r.yaml", "--run_name", "X-2", *flags)
    assert place(first) == place(second) == ("data", "mine")
    assert [found.config.logging.run_name for found in (first, second)] == ["X-1", "X-2"]
    assert differences(first.config, second.config) == []
    assert first.config.overwrite is False
    assert first.config.training.ignore_data_skip is True
    assert "--run_name X-1: its name in trackers only, as in TRL; run_name=X-1 names a folder" in first.notes
    # Covey's own word is a folder, and so is a flag's without a folder of the run's own.
    assert place(from_yaml(recipe, "r.yaml", "run_name=X-1")) == ("data/mine", "X-1")
    assert place(from_words("--run_name", "a")) == ("out", "a")
    assert place(from_yaml(recipe, "r.yaml", "output_dir=there", "--run_name", "a")) == ("there", "a")


@pytest.mark.parametrize("value", ["true", "false", "null", "'true'", "data/mine/checkpoint-3"])
def test_what_to_resume_from_means_the_same_everywhere(value: str) -> None:
    wanted = value if "/" in value else "auto"
    assert from_yaml(f"resume_from_checkpoint: {value}\n").config.resume == wanted
    assert from_yaml(f"training: {{resume_from_checkpoint: {value}}}\n").config.resume == wanted
    assert from_group(f"resume_from_checkpoint: {value}\n").config.resume == wanted
    plain = value.strip("'")
    assert from_words(f"resume_from_checkpoint={plain}").config.resume == wanted
    assert from_words("--resume_from_checkpoint", plain).config.resume == wanted


def test_no_word_of_another_tool_deletes_a_run() -> None:
    for name, alias in table().items():
        assert alias.key != "overwrite" or alias.native, name
        for value in (True, False, "true", "yes", 1, "x", ["x"]):
            try:
                result = alias.convert(value) if alias.convert is not None else None
            except (AliasValueError, TypeError, ValueError, AttributeError):
                continue
            assert result is None or "overwrite" not in {*result.values, *result.implied}, name
    for found in (
        from_group("overwrite_output_dir: true\n"),
        from_words("overwrite_output_dir=true", "resume_from_checkpoint=true"),
        from_words("training.overwrite_output_dir=true"),
    ):
        assert found.config.overwrite is False
        assert any("nothing is deleted" in note for note in found.notes)


def test_overwrite_is_coveys_own_key_in_a_foreign_recipe_too() -> None:
    assert from_yaml("model_name_or_path: a/b\noverwrite: true\n").config.overwrite is True


def test_another_tracker_is_no_other_run() -> None:
    plain, logged = from_words(), from_words("logging.mode=offline", "logging.run_name=x")
    assert logged.config.training.report_to == "wandb"
    assert differences(plain.config, logged.config) == []


def test_the_folder_of_an_experiments_name_is_the_run() -> None:
    """The RLVR project's config: `exp_name`, and an `output_dir` that ends with it. The last name typed counts."""
    Path("conf").mkdir()
    Path("conf/config.yaml").write_text("exp_name: first\noutput_dir: ./out/${exp_name}\nmodel_name_or_path: a/b\n")
    assert place(compose([], config_dirs=["conf"], config_name="config")) == ("out", "first")
    assert place(compose(["exp_name=other"], config_dirs=["conf"], config_name="config")) == ("out", "other")


def test_a_run_name_typed_with_its_folder_names_the_run_in_it() -> None:
    recipe = "model_name_or_path: a/b\noutput_dir: data/mine\n"
    assert place(from_yaml(recipe, "r.yaml", "--output_dir", "there", "--run_name", "a")) == ("there", "a")
    assert place(from_yaml(recipe, "r.yaml", "--run_name", "a")) == ("data", "mine")
