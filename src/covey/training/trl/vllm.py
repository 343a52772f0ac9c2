"""vLLM as TRL trains with it, on CPUs too, with a check that it holds the trained weights.

`EngineGeneration` replaces TRL's `VLLMGeneration`. On GPUs, TRL sends the weights; added are adapters that are sent
alone (see `engine_lora`), a server that may be replaced by another during the run, what TRL does not pass to vLLM (the
dtype and the run's seed), and the check: an engine with other weights answers just as well, and the model would train
on another model's completions. So after each sync, both sides compute log-probs of the same few tokens, and these are
compared.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from accelerate.utils import broadcast_object_list, gather_object, is_peft_model
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

from covey.advice import install
from covey.config.vllm import LOCAL_HOSTS, SERVERS, lora_options
from covey.errors import EngineError
from covey.model.device import evaluating
from covey.rollout.vllm import engine as vllm_engine
from covey.runlog import names
from covey.training.processes import environment_kept
from covey.training.replaced import replaced
from covey.training.trl.engine_lora import PolicyAdapter, chosen_adapter, send_whole, target_names

logger = logging.getLogger(__name__)

T = TypeVar("T")
Rows = list[list[int]]
Logps = list[list[float]]

_GAP = names.ENGINE_GAP.removeprefix("train/")  # as the trainer logs it
_KEPT = 64
"""More versions than `training.staleness` may be behind."""
_TRIES = 5
"""How often a generation or sync is tried with a new server before the run ends."""
_SLEEPS = "in sleep mode vLLM drops its base weights (training.vllm_enable_sleep_mode)"
_SPREAD, _WIDEST = 0.02, 8.0
"""Standard deviation of a random adapter, which is doubled up to the second until its change is seen beyond doubt."""
_CHANGE, _TIMES = 0.5, 4.0
"""That is so many nats per token, and so many times the tolerance."""
_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables of a distributed launch. TRL sets them for a single process too, to start vLLM; if they stayed,
this program's next run and its children would wait for other processes."""


class EngineGeneration(VLLMGeneration):
    """TRL's vLLM, in this process or on a server."""

    sync_tolerance: float | None = None
    """`launch.sync_tolerance`; may be set until the first sync."""
    step_now: Callable[[], int] = staticmethod(lambda: 0)
    """Returns the step, for messages; may be set."""
    _adapter: PolicyAdapter | None = None
    _is_proven = False
    _request: Any = None
    """For the adapter that the engine of this process holds."""
    _rows: Rows | None = None
    _expected: Mapping[int, Logps] = MappingProxyType({})
    """The log-probs of the probe by version, the newest ones."""

    def __init__(self, *args: Any, lora_sync: str = "auto", shared_folder: Path | None = None, **kwargs: Any) -> None:
        """As TRL's.

        Args:
            args: TRL's.
            lora_sync: `training.vllm_lora_sync`.
            shared_folder: a folder that other machines may see, for adapters on the way to a server there.
            kwargs: TRL's.

        Raises:
            EngineError: the server does not answer, or vLLM does not take the model.
            ConfigError: it does not take the adapter alone, with `lora_sync="adapter"`.
        """
        if not vllm_engine.installed():
            raise EngineError(
                "use_vllm=True, but vLLM is not installed in this environment: install it with "
                f"`{install('vllm')}` on a machine with a GPU; docs/vllm.md covers CPUs."
            )
        self._sync_checks = dict[str, WeightSyncCheck]()
        self._gaps: list[Gap] = []
        self._syncs = 0
        self._lora_sync, self._shared_folder = lora_sync, shared_folder
        from covey.training.trl.engine_clients import connect

        if (several := os.environ.get(SERVERS)) and kwargs.get("mode") == "server":  # the launcher's
            kwargs["server_base_url"] = several.split()
        with replaced(vllm_generation, LLM=self._start, VLLMClient=connect), environment_kept(*_LAUNCHERS):
            super().__init__(*args, **kwargs)
        if self.mode == "server":
            self._adapter = self._chosen_adapter(
                lambda rank: self._broadcast_from_main(lambda: self.vllm_client.adapter_refusal(rank))
            )

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
        self._adapter = self._chosen_adapter(lambda _: _SLEEPS if self.enable_sleep_mode else None)
        if self._adapter is not None:
            kwargs |= lora_options(self._adapter.rank) | {"lora_target_modules": target_names(self.model)}
        return vllm_engine.start(**kwargs, max_logprobs=-1)

    def _chosen_adapter(self, engine_refusal: Callable[[int], str | None]) -> PolicyAdapter | None:
        """The adapter that syncs send alone, see `chosen_adapter`; None if they send whole weights."""
        folder = None
        if self.mode == "server" and is_peft_model(self.model):
            host = self._broadcast_from_main(lambda: str(self.vllm_client.host))
            folder = None if host in LOCAL_HOSTS else self._shared_folder
        return chosen_adapter(self.model, self._dist, self._lora_sync, engine_refusal, folder)

    def sync_weights(self) -> None:
        """Send the current weights to the engine, and check that it has them. Raises an `EngineError` if it does not,
        or no server took them."""
        for _ in range(_TRIES):
            if self.mode == "server" and self.accelerator.is_main_process:
                self.vllm_client.reconnect()
            if self._adapter is not None and not self._is_proven:
                self._prove_adapter(self._adapter)
            if self._adapter is not None:
                self._send_adapter(self._adapter)
            else:
                self._send_weights()
            lost = self._lost()
            if lost is None:
                self._check_sync()
                lost = self._lost()
            if lost is None:
                self._syncs += 1
                return
            logger.warning("The vLLM server was lost during a weight sync: %s. The sync is retried.", lost)
        raise EngineError(f"The weights could not be sent to a vLLM server in {_TRIES} tries: {lost}.")

    def _send_weights(self) -> None:
        if self.mode == "colocate" and self._on_cpu:
            vllm_engine.load_into(self.llm, self._named_copies())
        else:
            super().sync_weights()

    def _send_adapter(self, adapter: PolicyAdapter) -> None:
        tensors = adapter.tensors()
        if wrong := self._anywhere(lambda: self._load_adapter(*adapter.write(tensors, self.step_now()))):
            raise EngineError(wrong)

    def _load_adapter(self, name: str, folder: Path) -> None:
        """Have this process's engine use the adapter in a folder from now on."""
        if self.mode == "server":
            self.vllm_client.load_adapter(name, folder)
            return
        before, engine = self._request, self.llm.llm_engine
        request = vllm_engine.adapter_request(name, 1 if before is None else before.lora_int_id + 1, folder)
        with vllm_engine.engine_errors("vLLM does not take the adapter"):
            engine.add_lora(request)
        self._request = request
        if before is not None:
            engine.remove_lora(before.lora_int_id)

    def _prove_adapter(self, adapter: PolicyAdapter) -> None:
        """Before the first sync: does vLLM compute with the adapter what the trainer computes?

        It leaves out layers that it does not know without a word, and a new adapter changes nothing, so this is seen
        with random weights. Base weights other than the trainer's, such as those of the run before on the same server,
        are replaced once.

        Raises:
            ConfigError: it does not, with `vllm_lora_sync=adapter`; otherwise syncs send whole weights from now on.
        """
        check = self._new_check()
        with self.model.disable_adapter():
            base = self._own_logps()
        if self._anywhere(lambda: self._difference(check, base, base=True)):
            logger.info("vLLM's base weights are not the trainer's: they are sent once.")
            with replaced(self.model, merge_adapter=lambda: None, unmerge_adapter=lambda: None):
                self._send_weights()
        spread, is_seen = _SPREAD, False
        while not is_seen and spread < _WIDEST:
            with adapter.random(spread):
                own, tensors = self._own_logps(), adapter.tensors()
            moved, spread = check.compare(own, base).mean, 2 * spread
            enough = max(_CHANGE, _TIMES * check.tolerance)  # the others may not know the server's dtype
            is_seen = self._broadcast_from_main(lambda: moved >= enough)  # noqa: B023
        wrong = self._anywhere(lambda: self._load_adapter(*adapter.write(tensors, self.step_now())))
        wrong = wrong or self._anywhere(lambda: self._difference(check, own))
        if wrong:
            self._adapter = self._request = None
            if self.mode == "server" and self._has_engine:
                self.vllm_client.drop_adapters()
            send_whole(self._lora_sync, f"{wrong}; random weights of the adapter change the trainer's by {moved:.3g}")
        self._is_proven = self.mode != "server" or self._broadcast_from_main(
            lambda: all(one.lost is None for one in (self.vllm_client, *self.vllm_client.live))
        )

    def generate(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """As TRL's. Completions of a server without the current weights are discarded and generated again. Raises an
        `EngineError` if no server generated them, or vLLM does not accept the prompts."""
        for _ in range(_TRIES):
            errors = vllm_engine.engine_errors("vLLM does not take these prompts (training.vllm_max_model_length)")
            with errors, self._through_adapter():
                output: tuple[Any, ...] = super().generate(*args, **kwargs)
            lost = self._lost()
            if lost is None:
                return output
            logger.warning("The vLLM server was lost during generation: %s. Retried after a weight sync.", lost)
            self.sync_weights()
        raise EngineError(f"No vLLM server generated these completions in {_TRIES} tries: {lost}.")

    def _through_adapter(self) -> AbstractContextManager[None]:
        """Context manager: the engine of this process generates with the adapter that it holds."""
        if self._request is None:
            return nullcontext()
        return replaced(self.llm, generate=partial(self.llm.generate, lora_request=self._request))

    def check_logprobs(self, number: int) -> None:
        """Raise an `EngineError` unless the engine returns the log-probs of so many tokens in each place."""
        if self.mode == "server" and number:
            most = self._broadcast_from_main(lambda: self.vllm_client.max_logprobs)
            if 0 <= most < number:
                raise EngineError(
                    f"The vLLM server returns the log-probs of {most} tokens at most (--max-logprobs), and ratios over "
                    f"the tokens that could be sampled need {number} (training.top_k, else rollout.support_top_k): "
                    "start it with `python -m covey.rollout.vllm.serve`, lower that number, or set "
                    "rollout.support=full for ratios over the full vocabulary, as TRL computes them."
                )

    def take_metrics(self) -> dict[str, float]:
        """Metrics of the syncs since the last call, by name."""
        gaps, self._gaps = self._gaps, []
        found = {_GAP: max(gap.mean for gap in gaps)} if gaps else {}
        if self.mode == "server" and self.accelerator.is_main_process:
            found |= self.vllm_client.take_metrics()
        return found

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

    @property
    def _has_engine(self) -> bool:
        return self.mode == "colocate" or bool(self.accelerator.is_main_process)

    def _anywhere(self, ask: Callable[[], str | None]) -> str | None:
        """Call `ask` in the processes with an engine; the first text that it returns or raises in any of them."""
        try:
            found: list[str | None] = [ask() if self._has_engine else None]
        except EngineError as error:  # the others wait in a collective
            found = [str(error)]
        if self.accelerator.num_processes > 1:
            found = gather_object(found)
        return next(filter(None, found), None)

    def _find_rows(self) -> None:
        """Choose the tokens that are compared, in every process."""
        if self._rows is None:
            tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
            self._rows = probe_rows(tokenizer, max_length=min(_ROW, self._broadcast_from_main(self._max_model_len) - 1))

    def _new_check(self) -> WeightSyncCheck:
        self._find_rows()
        return WeightSyncCheck(self.sync_tolerance, {self.dtype, self._engine_type() if self._has_engine else ""})

    def _own_logps(self) -> Logps:
        """The trainer's log-probs of the probe, in every process: parameters may be sharded."""
        assert self._rows is not None
        with self.accelerator.autocast():
            return trainer_logps(self.model, self._rows)

    def _check_sync(self) -> None:
        if self.mode == "colocate" and self.enable_sleep_mode:
            # TRL has woken the weights only. It wakes the cache once more before it generates, which vLLM skips.
            self.llm.wake_up(tags=["kv_cache"])
        if self._dist.fsdp_version == 1:
            if not self._syncs:
                logger.warning("Under FSDP 1, vLLM's weights are not compared with the trainer's.")
            return
        self._find_rows()
        own = self._own_logps()
        if wrong := self._anywhere(lambda: self._sync_error(own)):
            raise EngineError(wrong)

    def expect(self, version: int) -> None:
        """In every process: keep what an engine with the present weights has to compute, for `check_version`."""
        if self._dist.fsdp_version == 1:
            return
        self._find_rows()
        self._expected = {**dict(list(self._expected.items())[-_KEPT:]), version: self._own_logps()}

    def check_version(self, version: int) -> None:
        """Of the thread that writes rounds ahead: compare the servers with the weights of a version, if these are known
        (after a resume they may not be). Raises an `EngineError` as a sync does."""
        own = self._expected.get(version)
        if own is not None and (wrong := self._sync_error(own)):
            raise EngineError(wrong)

    def _sync_error(self, own: Logps) -> str | None:
        """The error of this process's engine, or of one of its servers."""
        for name, ask in self._engines():
            if name not in self._sync_checks:
                self._sync_checks[name] = self._new_check()
            engine = ask(base=False)
            if engine is None:  # the server was lost: nothing to compare
                continue
            gap = self._sync_checks[name].compare(own, engine)
            self._gaps.append(gap)
            if (wrong := self._sync_checks[name].error(gap, self.step_now())) is not None:
                return f"{name + ': ' if len(self._sync_checks) > 1 else ''}{wrong}"
        return None

    def _difference(self, check: WeightSyncCheck, own: Logps, *, base: bool = False) -> str | None:
        """How far the log-probs of an engine are from the trainer's, if that is too far; `base` leaves the adapter
        out."""
        for _, ask in self._engines():
            engine = ask(base=base)
            gap = 0.0 if engine is None else check.compare(own, engine).mean
            if gap > check.tolerance:
                return f"its log-probs differ from the trainer's by {gap:.3g} on average"
        return None

    def _engines(self) -> list[tuple[str, Callable[..., Logps | None]]]:
        """The engine of this process, or every server: its name, and what asks it for the probe's log-probs."""
        assert self._rows is not None
        rows = self._rows
        if self.mode == "colocate":
            return [("", lambda base: vllm_engine.prompt_logps(self.llm, rows, None if base else self._request))]
        return [(one.base_url, partial(one.prompt_logps, rows)) for one in self.vllm_client.live]

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
def patched_engine(trainer: Any, lora_sync: str) -> Iterator[None]:
    """Context manager: TRL's constructor makes an `EngineGeneration` for this trainer, if it uses vLLM.

    Args:
        lora_sync: `training.vllm_lora_sync`.
    """

    def make(*args: Any, **kwargs: Any) -> EngineGeneration:
        folder = Path(trainer.args.output_dir) / "vllm_adapters"
        return EngineGeneration(*args, **kwargs, lora_sync=lora_sync, shared_folder=folder)

    with replaced(grpo_trainer, VLLMGeneration=make):
        yield
    if trainer.use_vllm:
        trainer.vllm_generation.step_now = lambda: trainer.state.global_step
        trainer.callback_handler.callbacks.insert(0, _SyncMetrics(trainer.vllm_generation))


TOLERANCE = {"float32": 1e-3, "half": 0.1}
"""Largest mean difference by the coarser of the two dtypes, in nats per token, unless the first gap is large itself."""

FACTOR = 5.0
"""How many times the first gap a later one may be in 16 bits. Their rounding adds up over layers: a deep model's first
gap, when both sides hold the same weights by construction, may be near `TOLERANCE` and is no fault. It is an error
itself from `FACTOR` times `TOLERANCE` on: another model's weights differ by more."""

_MOVED = {"float32": 1e-5, "half": 1e-3}
"""A change of the trainer's log-probs beyond rounding: the engine's must change as well."""

_TEXTS = (
    "A farmer has 17 sheep and buys 25 more. Each sheep gives 3 kg of wool, so he has 17 + 25 = 42 sheep",
    "Let x be the number of days. Then 4x + 12 = 60, and so x = 12. <think> Is that right? 4 * 12 = 48",
    "The committee met on Tuesday to discuss whether the old bridge, built in 1891, should be repaired",
    "def mean(values):\n    if not values:\n        raise ValueError('empty')\n    return sum(values) / len(values)",
)
_ROW, _RANDOM_ROW = 32, 16


@dataclass(frozen=True, slots=True)
class Gap:
    """The difference between the two sides after a sync."""

    mean: float
    """Mean absolute difference of the log-probs, in nats per token."""
    largest: float
    moved: float
    """Mean absolute change of the trainer's since the previous sync; 0 at the first one."""
    frozen: bool
    """Whether the engine's are bit for bit those of the previous sync, although the trainer's changed."""


def probe_rows(tokenizer: Any, *, max_length: int = _ROW) -> Rows:
    """The tokens that are compared: some texts, and a fixed sample of the ordinary tokens of the vocabulary.

    Args:
        tokenizer: of the policy.
        max_length: tokens per row, at least 2.
    """
    rows = [list(ids[:max_length]) for ids in tokenizer(list(_TEXTS), add_special_tokens=False)["input_ids"]]
    special = set(tokenizer.all_special_ids)
    ordinary = [token for token in sorted(set(tokenizer.get_vocab().values())) if token not in special]
    if ordinary:
        draw = random.Random(0)  # not a generator that the training draws from
        rows.append([draw.choice(ordinary) for _ in range(min(_RANDOM_ROW, max_length))])
    return [row for row in rows if len(row) > 1]


@torch.no_grad()
def trainer_logps(model: torch.nn.Module, rows: Rows) -> Logps:
    """Log-probs of each row's tokens after its first one, by the model's own forward pass.

    Adapters are not merged. Dropout is off; the training modes of all modules are restored.
    """
    device = next(model.parameters()).device
    found = []
    with evaluating(model):
        for row in rows:  # one by one: the two sides could pad differently
            ids = torch.tensor([row], device=device)
            logits_TV = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, :-1]
            logps_TV = logits_TV.float().log_softmax(dim=-1)
            found.append(logps_TV.gather(-1, ids[0, 1:, None])[:, 0].tolist())
    return found


class WeightSyncCheck:
    """Compares the two sides after each sync, and keeps the log-probs of the previous one."""

    def __init__(self, tolerance: float | None, dtypes: Collection[str]) -> None:
        """
        Args:
            tolerance: `launch.sync_tolerance`; None takes that of the dtype.
            dtypes: of the trainer and of the engine, such as `float32`.
        """
        kind = "float32" if set(dtypes) == {"float32"} else "half"
        self._usual = TOLERANCE[kind] if tolerance is None else tolerance
        self._fixed = tolerance is not None or kind == "float32"
        self._first: float | None = None
        self._rounding = _MOVED[kind]
        self._before: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def tolerance(self) -> float:
        """Largest mean gap now, in nats per token."""
        if self._fixed:
            return self._usual
        return FACTOR * self._usual if self._first is None else max(self._usual, FACTOR * self._first)

    def compare(self, own: Sequence[Sequence[float]], engine: Sequence[Sequence[float]]) -> Gap:
        """The gap between the two sides now. NaN from either side counts as an infinite gap."""
        ours, theirs = (torch.tensor([x for row in side for x in row], dtype=torch.float64) for side in (own, engine))
        if ours.shape != theirs.shape:
            raise EngineError(
                f"vLLM returned log-probs of {len(theirs)} tokens where {len(ours)} were asked for: it does not "
                "read the same tokens as the trainer. Does it serve the model that is trained?"
            )
        difference = (ours - theirs).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
        moved, frozen = 0.0, False
        if self._before is not None:
            moved = float((ours - self._before[0]).abs().mean())
            frozen = torch.equal(theirs, self._before[1]) and moved > self._rounding
        self._before = (ours, theirs)
        return Gap(float(difference.mean()), float(difference.max()), moved, frozen)

    def error(self, gap: Gap, step: int) -> EngineError | None:
        """The error for this gap; None if it is within the tolerance."""
        if gap.frozen:
            found = (
                f"vLLM's log-probs are the same as before the sync, bit for bit, while the trainer's changed by "
                f"{gap.moved:.2g} nats per token"
            )
        elif not gap.mean <= self.tolerance:
            found = (
                f"the log-probs of vLLM and of the trainer differ by {gap.mean:.3g} nats per token on average "
                f"({gap.largest:.3g} at most), more than launch.sync_tolerance ({self._explained()})"
            )
        else:
            self._first = gap.mean if self._first is None else self._first
            return None
        return EngineError(
            f"After the weight sync at step {step}, {found}: the engine does not hold the weights that are trained, so "
            "the run was stopped. A stale layer, another model on the server, or another dtype can be the cause "
            "(docs/vllm.md says how to tell them apart). If it is only rounding, raise launch.sync_tolerance."
        )

    def _explained(self) -> str:
        """The tolerance, and where it comes from if it is not the usual one."""
        text = f"{self.tolerance:.4g}"
        if self.tolerance == self._usual:
            return text
        what = "the usual, at the first sync" if self._first is None else "the first gap"
        return f"{text}, {FACTOR:g} times {what}"
