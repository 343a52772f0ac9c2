"""The tool loop against TRL's own, on the same completions."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from trl import GRPOTrainer as TRLGRPOTrainer

from tool_trainers import SCRIPTS, ScriptedCovey, asked, tool_trainer

NAMES = ["mask", "completions", "ids", "logps", "calls", "failures", "images"]


def first_turns(trainer: Any, prompts: list[Any]) -> tuple[Any, ...]:
    """What TRL's `_generate` hands to its tool loop."""
    from trl.chat_template_utils import parse_response

    trainer._sync_tool_dicts = [{t.__name__: t for t in trainer.tools if t.__name__ != "slow"} for _ in prompts]
    trainer._async_tool_dicts = [{t.__name__: t for t in trainer.tools if t.__name__ == "slow"} for _ in prompts]
    prompt_ids, images, fields = trainer._tokenize_prompts(prompts)
    ids, logps = trainer._generate_single_turn(prompt_ids, images, fields, 1)
    ids = [one[: trainer.max_completion_length] for one in ids]
    parsed = [
        [parse_response(trainer._tokenizer, one, prefix=prefix, tools=trainer.tools)]
        for one, prefix in zip(ids, prompt_ids, strict=True)
    ]
    return prompts, prompt_ids, ids, parsed, logps, images, fields


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tool_trainer(ScriptedCovey, tmp_path_factory.mktemp("trainer"), asked("answer"))


@pytest.mark.parametrize("limits", [(600, 4), (600, 1), (150, 4), (95, 4), (4000, 6)])
def test_the_loop_returns_what_trls_returns(trainer: Any, limits: tuple[int, int]) -> None:
    trainer.max_completion_length, trainer.max_tool_calling_iterations = limits
    scripts = [script for script in SCRIPTS if script != "deep"]  # at which TRL raises
    prompts = [row["prompt"] for row in asked(*scripts)]
    given = first_turns(trainer, prompts)
    expected = TRLGRPOTrainer._tool_call_loop(trainer, *copy.deepcopy(given))
    found = trainer._tool_call_loop(*copy.deepcopy(given))
    for name, one, other in zip(NAMES, found, expected, strict=True):
        if isinstance(one, list):
            for script, mine, theirs in zip(scripts, one, other, strict=True):
                if script == "late":  # results in the order of the calls, where TRL puts async ones last
                    continue
                assert mine == theirs, (name, script)
        else:
            assert one == other, name


def test_engines_that_serve_several_processes_get_equally_many_rows(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another process has more rows, these are filled up, and the fillers' turns dropped."""
    rows = [trainer._tokenize_prompts([row["prompt"]])[0][0] for row in asked("answer", "one")]
    given: list[Any] = []

    def generate(prompt_ids: list[list[int]], *_: Any, **__: Any) -> Any:
        given.append((prompt_ids, trainer._episodes.turn_limits))
        return [[index] for index in range(len(prompt_ids))], [[-0.1]] * len(prompt_ids)

    monkeypatch.setattr(trainer._episodes, "_largest", lambda count: 4)
    monkeypatch.setattr(trainer, "_generate_single_turn", generate)
    ids, logps = trainer._episodes._generate(rows, [7, 8])
    assert (ids, logps) == ([[0], [1]], [[-0.1], [-0.1]])
    filler = [trainer._tokenizer.eos_token_id]
    assert given == [([*rows, filler, filler], [7, 8, 1, 1])]
    assert trainer._episodes.turn_limits is None
