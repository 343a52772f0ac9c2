"""What `training.staleness` cannot be combined with is refused by the config alone, each with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.config import Config, load
from covey.errors import ConfigError
from covey.training.asynchronous.settings import Asynchronous, check_asynchronous


def config_of(*words: str) -> Config:
    return load(["training.staleness=2", *words])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("environment.tools=[calculator]",), "tools or an environment"),
        (("training.use_vllm=true", "training.vllm_mode=colocate"), "vllm_mode=server"),
        (("training.use_transformers_continuous_batching=true",), "continuous_batching"),
        (("objective.resample_groups=4",), "resample_groups=4"),
        (("training.vllm_importance_sampling_correction=false",), "ratio of the two would silently be 1"),
        (("training.schedule=none.jsonl", "rollout.engine=my.py:Engine"), "another engine than Covey's own"),
        (("training.staleness=0", "training.schedule=none.jsonl"), "generates and learns in turns"),
    ],
)
def test_what_does_not_go_together_is_refused(words: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=r"training\.staleness=") as raised:
        check_asynchronous(config_of(*words))
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "cannot be read: No such file"),
        ("", "is empty"),
        ('{"step": 1}\n', "line 1 is no line of a schedule"),
        ('{"format": 2, "settings": {}}\n', "has format 2"),
        ('{"format": 1, "settings": {}}\n[]\n{"round": 0, "groups": []}\n', "line 2 is no line"),
        ('{"format": 1, "settings": {"training.staleness": 1}}\n', "training.staleness was 1 and is 2 here"),
    ],
)
def test_a_file_that_is_no_schedule_of_this_run_is_refused(tmp_path: Path, text: str | None, named: str) -> None:
    file = tmp_path / "schedule.jsonl"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        check_asynchronous(config_of(f"training.schedule={file}"))
    assert named in str(raised.value)


def test_a_run_does_not_replay_the_file_that_it_writes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose another run_name"):
        check_asynchronous(
            config_of(f"output_dir={tmp_path}", "run_name=a", f"training.schedule={tmp_path}/a/../a/schedule.jsonl")
        )


def test_the_settings_are_those_of_the_config() -> None:
    assert Asynchronous.of(load(["training.staleness=0"])) is None
    words = ("training.async_order=arrival", "training.async_partial=continue", "training.schedule=a.jsonl")
    assert Asynchronous.of(config_of(*words)) == Asynchronous(2, "arrival", "continue", Path("a.jsonl"))
    check_asynchronous(config_of("training.async_order=arrival"))


@pytest.mark.parametrize(
    ("given", "named"), [((0,), "staleness=0"), ((-1,), "staleness=-1"), ((1, "any"), "order=any")]
)
def test_values_that_no_config_has_checked_are_refused(given: tuple[Any, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Asynchronous(*given)
