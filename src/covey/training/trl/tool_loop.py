"""Episodes with tools in TRL's trainer: exact tokens, and calls and resets of different rows at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from trl.extras.profiling import profiling_context

from covey.environments.chat import ToolChat
from covey.environments.episodes import Episode, Limits, as_conversation, begin_resets, run_episodes, together
from covey.environments.runner import control_of
from covey.errors import DataError
from covey.model.prompts import prompt_ids
from covey.runlog import names
from covey.training.replaced import replaced
from covey.training.scoring import joined


class TrainerEpisodes:
    """The episodes of a trainer's newest batch."""

    def __init__(self, trainer: Any, *, reports_malformed: bool) -> None:
        self._trainer = trainer
        self._reports_malformed = reports_malformed
        self.newest: list[Episode] = []
        """Those of the batch that was generated last; empty without tools and environments."""
        self.turn_limits: list[int] | None = None
        """How many tokens each row of the next turn may add; None for `max_completion_length`."""
        self._supports: list[list[torch.Tensor]] = []
        """Of each of the newest episodes, the supports of its turns, `[T, C]`."""

    @property
    def used(self) -> bool:
        """Whether the run has tools or environments that TRL runs."""
        return bool(self._trainer.tools) or self._trainer.environment_factories is not None

    def begun(self, prompt: list[Any]) -> list[int]:
        """The tokens of a prefill. Raises a `DataError` where it cannot be continued; or what `render` does."""
        trainer = self._trainer
        if self.used or trainer._is_vlm:
            raise DataError(
                "A prompt ends with a message of the assistant, to be continued, which is not possible with tools, an "
                "environment, or a model that reads images: end it with another message."
            )
        shown = {**trainer.chat_template_kwargs, "chat_template": trainer.chat_template}
        return prompt_ids(trainer._tokenizer, shown)([prompt])[0]

    def begin(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows for TRL: prompts that are text become messages. Resets in worker processes are started, all at once.

        Args:
            rows: of this process, before TRL resets their environments one after another.
        """
        self.newest = []
        if not self.used:
            return rows
        found = [
            {**row, "prompt": as_conversation(row["prompt"])} if isinstance(row.get("prompt"), str) else row
            for row in rows
        ]
        if self._trainer.environment_factories is not None:
            self._begin_resets(found)
        return found

    def _begin_resets(self, rows: list[dict[str, Any]]) -> None:
        trainer = self._trainer
        pools = trainer._environment_pool
        if not any(control_of(pool[0]) for pool in pools.values()):
            return
        several = trainer._multi_environment
        chosen = [row.get("environment") if several else None for row in rows]
        if not pools.keys() >= set(chosen):
            return  # TRL names the one that there is not
        used: Counter[str | None] = Counter()
        environments = []
        for name in chosen:  # as TRL will hand them out
            if used[name] == len(pools[name]):
                pools[name].append(trainer.environment_factories[name]())
            environments.append(pools[name][used[name]])
            used[name] += 1
        given = [{key: row[key] for key in row if not (several and key == "environment")} for row in rows]
        begin_resets(environments, given, self._seeds(len(rows)))

    def _seeds(self, count: int) -> list[int]:
        """One seed for each group, from the trainer's random numbers, which a checkpoint holds."""
        trainer = self._trainer
        base = [int(torch.randint(2**31, ()))]
        if trainer.accelerator.num_processes > 1:
            broadcast_object_list(base, from_process=0)
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        first = trainer.accelerator.process_index * count
        return [base[0] + (first + index) // size for index in range(count)]

    def run(
        self,
        prompts: list[Any],
        prompt_ids: list[list[int]],
        completion_ids: list[list[int]],
        completions: list[list[dict[str, Any]]],
        logps: list[list[float]] | None,
    ) -> tuple[Any, ...]:
        """Run the episodes of a batch from their first turns on; arguments and result are those of TRL's tool loop.

        Returns:
            The mask, messages, tokens and log-probabilities of the completions; the numbers of calls and of failures;
            and a list of images for each completion, which are none.
        """
        trainer = self._trainer
        environments = trainer.environments or [None] * len(prompts)
        self.newest = []
        self._supports = [[one] for one in self._turn_supports([len(ids) for ids in completion_ids])]
        for index, environment in enumerate(environments):
            tools = {**trainer._async_tool_dicts[index], **trainer._sync_tool_dicts[index]}
            episode = Episode.of(prompts[index], list(prompt_ids[index]), tools, environment)
            sampled = None if logps is None else logps[index]
            episode.add_turn(completion_ids[index], sampled, completions[index][0])
            self.newest.append(episode)
        tokenizer, kwargs = trainer._tokenizer, trainer.chat_template_kwargs
        most_turns = trainer.max_tool_calling_iterations + 1
        with profiling_context(trainer, "environment"):  # what of it is not generation
            run_episodes(
                self.newest,
                ToolChat(tokenizer, trainer.chat_template, kwargs, stop_token_ids=trainer.eos_token_ids),
                self._generate,
                Limits(trainer.max_completion_length, most_turns, self._max_length(), self._reports_malformed),
                run_async=self._run_async,
                largest=self._largest,
            )
        supports = [joined(turns, one.mask) for turns, one in zip(self._supports, self.newest, strict=True)]
        trainer.sampling.newest = replace(trainer.sampling.newest, supports=supports)
        return loop_result(self.newest)

    def _turn_supports(self, lengths: Sequence[int]) -> list[torch.Tensor]:
        """The supports of the turns that were just generated, cut to these lengths; without columns where unknown."""
        supports = self._trainer.sampling.newest.supports or [None] * len(lengths)
        return [
            torch.empty(length, 0, dtype=torch.int32) if one is None else one[:length]
            for one, length in zip(supports, lengths, strict=False)  # there may be rows to fill up the turn
        ]

    def single_turns(
        self, prompts: list[Any], prompt_ids: list[list[int]], completion_ids: list[list[int]], completions: list[Any]
    ) -> None:
        """Record a batch of environments without tools, whose episodes are one turn."""
        trainer = self._trainer
        if self.newest or trainer.environments is None or trainer.tools:
            return
        for index, environment in enumerate(trainer.environments):
            episode = Episode.of(prompts[index], list(prompt_ids[index]), {}, environment)
            episode.add_turn(completion_ids[index], None, completions[index][0])
            ended = bool(episode.ids) and episode.ids[-1] in trainer.eos_token_ids
            episode.ended = episode.ended or ("answered" if ended else "truncated")
            self.newest.append(episode)

    def begin_rewards(self) -> None:
        """Start the environments' own rewards in worker processes, all at once."""
        for environment in self._trainer.environments or ():
            control = control_of(environment)
            if control is not None and hasattr(type(environment), "get_reward"):
                control.begin_reward()

    def settle(self) -> None:
        """Log the metrics of the newest episodes, once they are rewarded."""
        for episode in self.newest:
            episode.settle()
        self.log_metrics(self.newest)

    def log_metrics(self, episodes: Sequence[Episode]) -> None:
        """Log the metrics of a batch of episodes, over all processes."""
        trainer = self._trainer
        if not self.used:
            return
        ended = [episode.ended for episode in episodes]
        sums = torch.tensor(
            [
                *(len(ended), sum(episode.turns for episode in episodes)),
                *(sum(episode.seconds for episode in episodes), ended.count("timed_out"), ended.count("crashed")),
                sum(episode.malformed for episode in episodes),
            ],
            device=trainer.accelerator.device,
        )
        count, turns, seconds, timeouts, crashes, malformed = trainer.accelerator.reduce(sums, reduction="sum").tolist()
        if not count:  # TRL's own loop ran
            return
        values = {
            names.ENVIRONMENT_TURNS: turns / count,
            names.ENVIRONMENT_SECONDS: seconds / count,
            names.ENVIRONMENT_TIMEOUTS: timeouts,
            names.ENVIRONMENT_CRASHES: crashes,
            names.ENVIRONMENT_MALFORMED: malformed,
        }
        for name, value in values.items():
            trainer._metrics["train" if trainer.model.training else "eval"][name].append(value)

    @property
    def columns(self) -> dict[str, list[Any]]:
        """What is recorded of the newest episodes, by column."""
        if not self.newest:
            return {}
        return {
            names.COLUMN_RENDERED: self._prompts(),
            names.COLUMN_LENGTH: [sum(episode.mask) for episode in self.newest],
            names.COLUMN_TURNS: [episode.turns for episode in self.newest],
            names.COLUMN_CALLS: [episode.calls for episode in self.newest],
            names.COLUMN_FAILURES: [episode.failures for episode in self.newest],
            names.COLUMN_EPISODE: [episode.ended for episode in self.newest],
            names.COLUMN_SECONDS: [round(episode.seconds, 3) for episode in self.newest],
        }

    def _prompts(self) -> list[str]:
        """The prompts of the newest episodes as the model saw them, tools included."""
        tokenizer, known = self._trainer._tokenizer, dict[tuple[int, ...], str]()
        for episode in self.newest:
            ids = tuple(episode.prompt_ids)
            if ids not in known:
                known[ids] = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return [known[tuple(episode.prompt_ids)] for episode in self.newest]

    def _generate(self, rows: list[list[int]], limits: list[int]) -> tuple[list[list[int]], list[list[float]] | None]:
        """A turn of each row. Engines that serve several processes get equally many rows from each."""
        trainer, count = self._trainer, len(rows)
        more = self._largest(count) - count
        with replaced(self, turn_limits=[*limits, *[1] * more]):
            filler = [[trainer._tokenizer.eos_token_id]] * more
            ids, logps = trainer._generate_single_turn(rows + filler, None, {}, num_generations=1)
        going_on = [turns for turns, one in zip(self._supports, self.newest, strict=True) if one.ended is None]
        lengths = [min(len(turn), limit) for turn, limit in zip(ids, limits, strict=False)]
        for turns, support in zip(going_on, self._turn_supports(lengths), strict=False):
            turns.append(support)
        return ids[:count], None if logps is None else logps[:count]

    def _largest(self, count: int) -> int:
        accelerator = self._trainer.accelerator
        if accelerator.num_processes == 1 or not self._trainer.engine.capabilities.collective:
            return count
        return int(accelerator.gather(torch.tensor([count], device=accelerator.device)).max())

    def _run_async(self, coroutines: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        return asyncio.run_coroutine_threadsafe(together(coroutines), self._trainer.async_loop).result()

    def _max_length(self) -> int | None:
        """The tokens that the model, or vLLM, can read."""
        trainer = self._trainer
        if trainer.use_vllm and trainer.vllm_mode == "colocate":
            return int(trainer.vllm_generation.llm.llm_engine.model_config.max_model_len)
        return getattr(trainer.model.config.get_text_config(), "max_position_embeddings", None)


def loop_result(episodes: Sequence[Episode]) -> tuple[Any, ...]:
    """What TRL's tool loop returns, of episodes that have ended."""
    logps = [episode.logps for episode in episodes if episode.logps is not None]
    return (
        [episode.mask for episode in episodes],
        [episode.completion for episode in episodes],
        [episode.ids for episode in episodes],
        logps if len(logps) == len(episodes) else None,
        sum(episode.calls for episode in episodes),
        sum(episode.failures for episode in episodes),
        [[] for _ in episodes],
    )
