"""`covey doctor RECIPE` runs no code that the recipe names unless someone agrees; what is typed runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from covey.cli.main import main
from covey.config import compose
from covey.config.named_code import SKIPPED, STUB, named_code, not_typed, without

CODE = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
"""
RECIPES: dict[str, dict[str, Any]] = {
    "reward": {"rewards": {"funcs": ["{}:f"]}},
    "TRL's name": {"reward_funcs": ["{}:f"]},
    "grader": {"evaluation": {"grader": "{}:f"}},
    "objective": {"objective": {"name": "{}:f"}},
    "engine": {"rollout": {"engine": "{}:f"}},
    "environment": {"environment": {"factory": "{}:f"}},
    "environments": {"environment": {"factory": {"a": "{}:f", "b": "calculator"}}},
    "tool": {"environment": {"tools": ["{}:f"]}},
    "rollout function": {"environment": {"rollout_func": "{}:f"}},
    "callback": {"callbacks": ["{}:f"]},
}
SMALL = {
    "dataset": {"task": "arithmetic", "train_size": 16, "test_size": 6, "hard_size": 0},
    "training": {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 8},
}


def recipe(folder: Path, keys: dict[str, Any]) -> str:
    (folder / "own.py").write_text(CODE)
    text = json.dumps(keys).replace("{}", str(folder / "own.py"))
    (folder / "recipe.yaml").write_text(
        yaml.safe_dump({"defaults": [{"model": "starter"}], **SMALL, **json.loads(text)})
    )
    return str(folder / "recipe.yaml")


@pytest.mark.parametrize("kind", RECIPES)
def test_code_of_a_recipe_is_not_run_and_what_needs_it_is_named(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recipe(tmp_path, RECIPES[kind])
    code = main(["doctor", file, "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert not (tmp_path / "ran").exists()
    (skipped,) = [one for one in findings if one["check"] == "skipped"]
    assert f"{tmp_path / 'own.py'}:f" in skipped["result"]
    assert [one for one in findings if one["severity"] == "wrong"] == []
    needed = any(key.startswith(("rewards.", "environment.")) for key in skipped["result"].split())
    assert needed != any(one["check"] == "columns" for one in findings)
    assert code == 0

    main(["doctor", file, "--json", "--yes"])
    assert (tmp_path / "ran").exists()


def test_without_a_terminal_nothing_runs_and_at_one_the_answer_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recipe(tmp_path, RECIPES["callback"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert main(["doctor", file]) == 0
    assert "skipped" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, runs in (("n", False), ("y", True)):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        main(["doctor", file])
        assert f"callbacks: {tmp_path / 'own.py'}:f" in capsys.readouterr().err
        assert (tmp_path / "ran").exists() is runs


def test_what_is_typed_is_not_asked_for(tmp_path: Path) -> None:
    file = recipe(tmp_path, {"callbacks": ["{}:f"], "rewards": {"funcs": ["{}:f"]}})
    composed = compose([f"rewards.funcs=[{tmp_path / 'own.py'}:f]"], file)
    assert not_typed(composed.config, composed.given) == {"callbacks": (f"{tmp_path / 'own.py'}:f",)}
    composed = compose(["callbacks=[a.py:f]", "rewards=default", "rewards.funcs=[b.py:f]"], file)
    assert not_typed(composed.config, composed.given) == {}


def test_the_stub_of_init_is_not_asked_for_whoever_names_it_but_a_change_of_it_is(tmp_path: Path) -> None:
    file = recipe(tmp_path, {"callbacks": ["{}:f"], "rewards": {"funcs": ["{}:my_reward"]}})
    own = str(tmp_path / "own.py")
    both = {"callbacks": (f"{own}:f",), "rewards.funcs": (f"{own}:my_reward",)}
    composed = compose(recipe=file)
    assert not_typed(composed.config, composed.given) == both
    (tmp_path / "own.py").write_bytes(STUB.read_bytes())
    assert not_typed(composed.config, composed.given) == {}
    (tmp_path / "own.py").write_bytes(STUB.read_bytes() + b"\n")
    assert not_typed(composed.config, composed.given) == both


def test_all_that_may_run_is_known_and_can_be_left_out() -> None:
    words = [
        *("model.trust_remote_code=true", "model.attn_implementation=a/b", "rewards.model.trust_remote_code=true"),
        *("rewards.funcs=[a:b,model:c/d,exact_match]", "evaluation.grader=a:b", "evaluation.engine=a:b"),
        *("rollout.engine=a:b", "objective.name=a:b", "callbacks=[a:b,early_stopping]"),
        *("environment.factory=a:b", "environment.tools=[a:b,python]", "+rewards.code.commands.js='node {{file}}'"),
    ]
    words[-1] = 'rewards.code.commands={js: "node x"}'
    config = compose(words).config
    found = named_code(config)
    assert {key if key in SKIPPED else "environment" for key in found} == {*SKIPPED}
    left = without(config, found)
    assert {*named_code(left)} == {"rewards.code.commands"}  # run by --try alone, which is left out
    assert left.rewards.funcs == ("exact_match",)
    assert left.callbacks == ("early_stopping",)
