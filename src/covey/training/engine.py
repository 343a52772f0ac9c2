"""vLLM as TRL trains with it, on a CPU too, and proven to hold the weights that are trained.

`EngineGeneration` takes the place of TRL's `VLLMGeneration`. On GPUs, weights go the way that TRL sends them; what is
added is the proof after each sync (see `engine_sync`), a server that may be replaced by another while the run goes on,
and what TRL does not tell vLLM: the number type to compute in and the run's seed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from accelerate.utils import broadcast_object_list, gather_object, is_peft_model
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

from covey.errors import EngineError
from covey.rollout import vllm_engine
from covey.runlog import names
from covey.training.engine_sync import Gap, SyncProof, own_logps, probe_rows

logger = logging.getLogger(__name__)

T = TypeVar("T")

_GAP = names.ENGINE_GAP.removeprefix("train/")  # as the trainer logs it
_TRIES = 5
"""How often one generation, or one sync, is begun again with another server before the run ends."""
_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables by which a process knows that it is one of several. TRL sets them for a single one too, for
vLLM's start; left there, this program's next run and its children would look for the others."""


class EngineGeneration(VLLMGeneration):
    """TRL's vLLM, in this process or on a server."""

    sync_tolerance: float | None = None
    """`launch.sync_tolerance`; may be set until the first sync."""
    step_now: Callable[[], int] = staticmethod(lambda: 0)
    """Gives the step, for messages; may be set."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As TRL's.

        Raises:
            EngineError: the server does not answer, or vLLM does not take the model.
        """
        if not vllm_engine.installed():
            raise EngineError(
                "use_vllm=True, but vLLM is not installed in this environment: install it with "
                "`pip install 'covey[vllm]'` on a machine with a GPU; docs/vllm.md has the way for one without."
            )
        self._proof: SyncProof | None = None
        self._gaps: list[Gap] = []
        self._syncs = 0
        from covey.training.engine_client import EngineClient

        with _in_place(vllm_generation, LLM=self._start, VLLMClient=EngineClient), _environment_kept(_LAUNCHERS):
            super().__init__(*args, **kwargs)

    @property
    def _on_cpu(self) -> bool:
        return bool(self.accelerator.device.type == "cpu")

    @property
    def number_type(self) -> str:
        """What the trainer computes in, by vLLM's name for it."""
        mixed = {"bf16": "bfloat16", "fp16": "float16"}.get(self.accelerator.mixed_precision)
        return mixed or str(next(p.dtype for p in self.model.parameters() if p.is_floating_point())).rpartition(".")[2]

    def _start(self, **kwargs: Any) -> Any:
        """The engine of this process: TRL's call of `vllm.LLM`, completed."""
        # TRL seeds by rank alone, so that every run would draw the same. It has just seeded torch by the run's seed.
        seed = torch.initial_seed() - self.accelerator.process_index + kwargs["seed"]
        kwargs |= {"seed": seed % 2**32, "dtype": "auto" if kwargs.get("quantization") else self.number_type}
        if self._on_cpu:
            if kwargs.pop("enable_sleep_mode", False):
                raise EngineError(
                    "training.vllm_enable_sleep_mode=true needs a GPU: on a CPU vLLM cannot give its memory back. Set "
                    "it to false."
                )
            kwargs |= vllm_engine.cpu_options(self.model.config, **kwargs)
        return vllm_engine.start(**kwargs)

    def sync_weights(self) -> None:
        """Give the engine the weights as they are now, and prove that it has them.

        Raises:
            EngineError: it has not, or no server could be given them.
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
                self._prove()
                lost = self._lost()
            if lost is None:
                self._syncs += 1
                return
            logger.warning("The vLLM server was lost during a sync: %s. It is tried again.", lost)
        raise EngineError(f"The weights could not be given to a vLLM server in {_TRIES} tries: {lost}.")

    def generate(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """As TRL's. What a server wrote without having the weights is thrown away and written again.

        Raises:
            EngineError: no server could do it, or vLLM does not take the prompts.
        """
        for _ in range(_TRIES):
            with vllm_engine.refusing("vLLM does not take these prompts (training.vllm_max_model_length)"):
                output: tuple[Any, ...] = super().generate(*args, **kwargs)
            lost = self._lost()
            if lost is None:
                return output
            logger.warning("The vLLM server was lost while it wrote: %s. It gets the weights and writes again.", lost)
            self.sync_weights()
        raise EngineError(f"No vLLM server wrote these completions in {_TRIES} tries: {lost}.")

    def take_figures(self) -> dict[str, float]:
        """The figures of the syncs since the last time, by metric name."""
        gaps, self._gaps = self._gaps, []
        return {_GAP: max(gap.mean for gap in gaps)} if gaps else {}

    def _lost(self) -> str | None:
        """What happened to the server on the main process, told to all."""
        if self.mode != "server":
            return None
        lost: str | None = self._from_main(lambda: self.vllm_client.forget())
        return lost

    def _from_main(self, ask: Callable[[], T]) -> T:
        """What the main process finds, told to all."""
        found: list[Any] = [ask() if self.accelerator.is_main_process else None]
        if self.accelerator.num_processes > 1:
            broadcast_object_list(found, from_process=0)
        answer: T = found[0]
        return answer

    def _max_model_len(self) -> int:
        config = self.vllm_client if self.mode == "server" else self.llm.llm_engine.model_config
        return int(config.max_model_len)

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As TRL's, without the rows of embeddings that peft trains beside them: they are merged already, as adapters
        are, and the weights go by the names that they had without them."""
        for name, weights in super()._iter_named_params():
            if ".trainable_tokens_" not in name:
                yield name.replace(".token_adapter", ""), weights

    def _named_copies(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Weights that stay as they are: merged adapters are taken out again before vLLM has read the last of them."""
        merged = is_peft_model(self.model)
        for name, weights in self._iter_named_params():
            yield name, weights.detach().clone() if merged else weights

    def _prove(self) -> None:
        if self._dist.fsdp_version == 1:
            if not self._syncs:
                logger.warning("Under FSDP 1 the weights that vLLM holds are not compared with the trainer's.")
            return
        has_engine = self.mode == "colocate" or self.accelerator.is_main_process
        if self._proof is None:
            tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
            self._rows = probe_rows(tokenizer, most=min(32, self._from_main(self._max_model_len) - 1))
            self._proof = SyncProof(self.sync_tolerance, {self.number_type, self._engine_type() if has_engine else ""})
        with self.accelerator.autocast():
            own = own_logps(self.model, self._rows)  # on every process: parameters may be sharded
        complaints: list[str | None] = [self._complaint(own) if has_engine else None]
        if self.accelerator.num_processes > 1:
            complaints = gather_object(complaints)
        for text in filter(None, complaints):
            raise EngineError(text)

    def _complaint(self, own: list[list[float]]) -> str | None:
        """What is wrong with the engine of this process, in words: the others wait to be told."""
        assert self._proof is not None
        try:
            engine = self._ask(self._rows)
            if engine is None:  # the server was lost, and is not to blame for its weights
                return None
            gap = self._proof.compare(own, engine)
        except EngineError as error:
            return str(error)
        self._gaps.append(gap)
        complaint = self._proof.complaint(gap, self.step_now())
        return None if complaint is None else str(complaint)

    def _ask(self, rows: list[list[int]]) -> list[list[float]] | None:
        if self.mode == "colocate":
            return vllm_engine.prompt_logps(self.llm, rows)
        found: list[list[float]] | None = self.vllm_client.prompt_logps(rows)
        return found

    def _engine_type(self) -> str:
        if self.mode == "server":
            return str(self.vllm_client.dtype)
        return str(self.llm.llm_engine.model_config.dtype).rpartition(".")[2]


class _Figures(TrainerCallback):
    """Puts the figures of the syncs into the log, before any other callback sees it."""

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
            logs.update(self._engine.take_figures())


@contextmanager
def engine_in_place(trainer: Any) -> Iterator[None]:
    """Within, TRL's constructor gives this trainer, if it is to use vLLM, an `EngineGeneration`."""
    with _in_place(grpo_trainer, VLLMGeneration=EngineGeneration):
        yield
    if trainer.use_vllm:
        trainer.vllm_generation.step_now = lambda: trainer.state.global_step
        trainer.callback_handler.callbacks.insert(0, _Figures(trainer.vllm_generation))


@contextmanager
def _environment_kept(names: Collection[str]) -> Iterator[None]:
    """Within, environment variables may be set; afterwards those of these names are as before."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _in_place(module: Any, **objects: Any) -> Iterator[None]:
    """Within, names of a module stand for something else; names that it has not stay out of it."""
    before = {name: getattr(module, name) for name in objects if hasattr(module, name)}
    for name in before:
        setattr(module, name, objects[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
