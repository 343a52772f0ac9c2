"""vLLM as TRL trains with it, on CPUs too, with a check that it holds the trained weights.

`EngineGeneration` replaces TRL's `VLLMGeneration`. On GPUs, TRL sends the weights; added are the check after each sync
(see `engine_sync`), a server that may be replaced by another during the run, and what TRL does not pass to vLLM: the
dtype and the run's seed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from accelerate.utils import broadcast_object_list, gather_object, is_peft_model
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

from covey.errors import EngineError
from covey.rollout.vllm import engine as vllm_engine
from covey.runlog import names
from covey.training.distributed.sharding import environment_kept
from covey.training.replaced import replaced
from covey.training.trl.engine_sync import Gap, WeightSyncCheck, probe_rows, trainer_logps

logger = logging.getLogger(__name__)

T = TypeVar("T")

_GAP = names.ENGINE_GAP.removeprefix("train/")  # as the trainer logs it
_TRIES = 5
"""How often a generation or sync is tried with a new server before the run ends."""
_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables of a distributed launch. TRL sets them for a single process too, to start vLLM; if they stayed,
this program's next run and its children would wait for other processes."""


class EngineGeneration(VLLMGeneration):
    """TRL's vLLM, in this process or on a server."""

    sync_tolerance: float | None = None
    """`launch.sync_tolerance`; may be set until the first sync."""
    step_now: Callable[[], int] = staticmethod(lambda: 0)
    """Returns the step, for messages; may be set."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As TRL's.

        Raises:
            EngineError: the server does not answer, or vLLM does not take the model.
        """
        if not vllm_engine.installed():
            raise EngineError(
                "use_vllm=True, but vLLM is not installed in this environment: install it with "
                "`pip install 'covey[vllm]'` on a machine with a GPU; docs/vllm.md covers CPUs."
            )
        self._sync_check: WeightSyncCheck | None = None
        self._gaps: list[Gap] = []
        self._syncs = 0
        from covey.training.trl.engine_client import EngineClient

        with replaced(vllm_generation, LLM=self._start, VLLMClient=EngineClient), environment_kept(*_LAUNCHERS):
            super().__init__(*args, **kwargs)

    @property
    def _on_cpu(self) -> bool:
        return bool(self.accelerator.device.type == "cpu")

    @property
    def dtype(self) -> str:
        """The trainer's dtype, by vLLM's name for it."""
        mixed = {"bf16": "bfloat16", "fp16": "float16"}.get(self.accelerator.mixed_precision)
        return mixed or str(next(p.dtype for p in self.model.parameters() if p.is_floating_point())).rpartition(".")[2]

    def _start(self, **kwargs: Any) -> Any:
        """Start the engine of this process: TRL's call of `vllm.LLM`, with the arguments that TRL leaves out."""
        # TRL passes the rank as seed, so every run would sample the same. It has just seeded torch with the run's seed.
        seed = torch.initial_seed() - self.accelerator.process_index + kwargs["seed"]
        kwargs |= {"seed": seed % 2**32, "dtype": "auto" if kwargs.get("quantization") else self.dtype}
        if self._on_cpu:
            if kwargs.pop("enable_sleep_mode", False):
                raise EngineError(
                    "training.vllm_enable_sleep_mode=true needs a GPU: on a CPU vLLM cannot release its memory. Set "
                    "it to false."
                )
            kwargs |= vllm_engine.cpu_options(self.model.config, **kwargs)
        return vllm_engine.start(**kwargs)

    def sync_weights(self) -> None:
        """Send the current weights to the engine, and check that it has them.

        Raises:
            EngineError: it does not, or no server took them.
        """
        for _ in range(_TRIES):
            if self.mode == "server" and self.accelerator.is_main_process:
                self.vllm_client.reconnect()
            if self.mode == "colocate" and self._on_cpu:
                vllm_engine.load_into(self.llm, self._named_copies())
            else:
                super().sync_weights()
            lost = self._lost()
            if lost is None:
                self._check_sync()
                lost = self._lost()
            if lost is None:
                self._syncs += 1
                return
            logger.warning("The vLLM server was lost during a weight sync: %s. The sync is retried.", lost)
        raise EngineError(f"The weights could not be sent to a vLLM server in {_TRIES} tries: {lost}.")

    def generate(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """As TRL's. Completions of a server without the current weights are discarded and generated again.

        Raises:
            EngineError: no server generated them, or vLLM does not accept the prompts.
        """
        for _ in range(_TRIES):
            with vllm_engine.engine_errors("vLLM does not take these prompts (training.vllm_max_model_length)"):
                output: tuple[Any, ...] = super().generate(*args, **kwargs)
            lost = self._lost()
            if lost is None:
                return output
            logger.warning("The vLLM server was lost during generation: %s. Retried after a weight sync.", lost)
            self.sync_weights()
        raise EngineError(f"No vLLM server generated these completions in {_TRIES} tries: {lost}.")

    def take_metrics(self) -> dict[str, float]:
        """Metrics of the syncs since the last call, by name."""
        gaps, self._gaps = self._gaps, []
        return {_GAP: max(gap.mean for gap in gaps)} if gaps else {}

    def _lost(self) -> str | None:
        """What went wrong with the server, as the main process broadcasts it."""
        if self.mode != "server":
            return None
        lost: str | None = self._broadcast_from_main(lambda: self.vllm_client.take_lost())
        return lost

    def _broadcast_from_main(self, ask: Callable[[], T]) -> T:
        """Call `ask` on the main process and broadcast its result."""
        found: list[Any] = [ask() if self.accelerator.is_main_process else None]
        if self.accelerator.num_processes > 1:
            broadcast_object_list(found, from_process=0)
        answer: T = found[0]
        return answer

    def _max_model_len(self) -> int:
        config = self.vllm_client if self.mode == "server" else self.llm.llm_engine.model_config
        return int(config.max_model_len)

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As TRL's, without peft's trainable token rows, which are merged already, as adapters are; with the names of
        the base model."""
        for name, weights in super()._iter_named_params():
            if ".trainable_tokens_" not in name:
                yield name.replace(".token_adapter", ""), weights

    def _named_copies(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Copies of the weights if needed: TRL unmerges adapters before vLLM has read the last of them."""
        merged = is_peft_model(self.model)
        for name, weights in self._iter_named_params():
            yield name, weights.detach().clone() if merged else weights

    def _check_sync(self) -> None:
        if self.mode == "colocate" and self.enable_sleep_mode:
            # TRL has woken the weights only. It wakes the cache once more before it generates, which vLLM skips.
            self.llm.wake_up(tags=["kv_cache"])
        if self._dist.fsdp_version == 1:
            if not self._syncs:
                logger.warning("Under FSDP 1, vLLM's weights are not compared with the trainer's.")
            return
        has_engine = self.mode == "colocate" or self.accelerator.is_main_process
        if self._sync_check is None:
            tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
            self._rows = probe_rows(tokenizer, max_length=min(32, self._broadcast_from_main(self._max_model_len) - 1))
            self._sync_check = WeightSyncCheck(
                self.sync_tolerance, {self.dtype, self._engine_type() if has_engine else ""}
            )
        with self.accelerator.autocast():
            own = trainer_logps(self.model, self._rows)  # on every process: parameters may be sharded
        errors: list[str | None] = [self._sync_error(own) if has_engine else None]
        if self.accelerator.num_processes > 1:
            errors = gather_object(errors)
        for text in filter(None, errors):
            raise EngineError(text)

    def _sync_error(self, own: list[list[float]]) -> str | None:
        """The error of this process's engine as text: the others wait for it in a collective."""
        assert self._sync_check is not None
        try:
            engine = self._engine_logps(self._rows)
            if engine is None:  # the server was lost: nothing to compare
                return None
            gap = self._sync_check.compare(own, engine)
        except EngineError as error:
            return str(error)
        self._gaps.append(gap)
        wrong = self._sync_check.error(gap, self.step_now())
        return None if wrong is None else str(wrong)

    def _engine_logps(self, rows: list[list[int]]) -> list[list[float]] | None:
        if self.mode == "colocate":
            return vllm_engine.prompt_logps(self.llm, rows)
        found: list[list[float]] | None = self.vllm_client.prompt_logps(rows)
        return found

    def _engine_type(self) -> str:
        if self.mode == "server":
            return str(self.vllm_client.dtype)
        return str(self.llm.llm_engine.model_config.dtype).rpartition(".")[2]


class _SyncMetrics(TrainerCallback):
    """Adds the metrics of weight syncs to the log, before other callbacks read it."""

    def __init__(self, engine: EngineGeneration) -> None:
        self._engine = engine

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs is not None:
            logs.update(self._engine.take_metrics())


@contextmanager
def patched_engine(trainer: Any) -> Iterator[None]:
    """Context manager: TRL's constructor makes an `EngineGeneration` for this trainer, if it uses vLLM."""
    with replaced(grpo_trainer, VLLMGeneration=EngineGeneration):
        yield
    if trainer.use_vllm:
        trainer.vllm_generation.step_now = lambda: trainer.state.global_step
        trainer.callback_handler.callbacks.insert(0, _SyncMetrics(trainer.vllm_generation))
