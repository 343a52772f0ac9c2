"""The processes of a run: the main one, what all agree on, how a failing one ends the others, and sharded weights.

If one process fails, the others wait for it in a collective: on the CPU they fail too, with an unhelpful error; on GPUs
they hang. So a failing process writes to the rendezvous store, every process polls that store, and the others exit
quietly: the one that failed reports why.

Weights are sharded by FSDP2 for `model.mesh_shape`, on CPUs too. Source: `fully_shard`,
https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html; accelerate's `ParallelismConfig` and
`FullyShardedDataParallelPlugin`.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from covey.config import Config
from covey.config.groups.mesh import Mesh, check_axis, check_mesh
from covey.errors import ConfigError, CoveyError, EndedElsewhereError, RunDirectoryError

if TYPE_CHECKING:
    from accelerate import PartialState

T = TypeVar("T")

logger = logging.getLogger(__name__)

_FAILED = "covey/failed/{run}"
_runs = count(1)
"""Runs started by this program: what one run leaves in the store must not end the next."""
_POLL_EVERY = 1.0
_GRACE = 15.0
"""Seconds that a process may take to leave a collective by itself, once another has failed."""
_REPORT_FIRST = 10.0
"""Seconds for the failing process to report its error. A launcher ends all processes as soon as one has ended."""


@dataclass(slots=True)
class Processes:
    """The training processes, seen from one of them. `Processes()` is a run of one process."""

    index: int = 0
    count: int = 1
    _store: Any = None  # a torch.distributed.Store, whose type torch does not export
    _failed: str = _FAILED
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def is_main(self) -> bool:
        """Whether this one displays, writes and reports."""
        return self.index == 0

    @classmethod
    def join(cls, config: Config) -> Processes:
        """Join the other processes, if the launcher has started several (torchrun's environment variables). Raises a
        `ConfigError` if they do not fit `model.mesh_shape`, or need a package that is not installed."""
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        check_mesh(config.model.mesh_shape, processes)
        for axis in ("tp", "cp", "sp"):  # from an accelerate config
            size = int(os.environ.get(f"PARALLELISM_CONFIG_{axis.upper()}_SIZE", "1"))
            check_axis(axis, size, "the accelerate config")
        if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true" and find_spec("deepspeed") is None:
            raise ConfigError(
                "This run was started with an accelerate config for DeepSpeed, and the package deepspeed is not "
                "installed: pip install deepspeed, or use FSDP2, which needs no package (launch.accelerate=fsdp2)."
            )
        if processes == 1:
            return cls()
        import torch
        from accelerate import PartialState

        timeout = timedelta(seconds=config.training.ddp_timeout)
        more = {} if config.training.ddp_backend is None else {"backend": config.training.ddp_backend}
        cpu = bool(config.training.use_cpu) or not torch.accelerator.is_available()
        if not torch.distributed.is_initialized():
            atexit.register(_destroy_group)
        PartialState._reset_state()  # of an earlier run in this program
        state = PartialState(cpu=cpu, timeout=timeout, **more)
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = torch.distributed.TCPStore(  # type: ignore[attr-defined]  # torch's types leave it out
            host, port, is_master=False, timeout=timeout
        )
        return cls(state.process_index, state.num_processes, store, _FAILED.format(run=next(_runs)))

    def agree_on(self, value: T) -> T:
        """The main process's value, in every process."""
        if self.count == 1:
            return value
        from accelerate.utils import broadcast_object_list

        found: T = broadcast_object_list([value])[0]
        return found

    def gather(self, value: T) -> list[T]:
        """Every process's value, by rank."""
        if self.count == 1:
            return [value]
        import torch

        found: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        """Wait for all processes."""
        self.gather(None)

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Context manager for a part of the work of every process: if one fails, none continues.

        A `CoveyError` is reported once.

        Raises:
            EndedElsewhereError: another process failed, and reports why.
        """
        failed: CoveyError | None = None
        try:
            yield
        except CoveyError as error:
            failed = error
        codes = self.gather(None if failed is None else failed.exit_code)
        first = next((index for index, code in enumerate(codes) if code is not None), None)
        if first is None:
            return
        if failed is None or first != self.index:
            self._wait_for_report()
            raise EndedElsewhereError(first, int(codes[first] or 1)) from None
        failed.reported_here = True
        raise failed

    @contextmanager
    def main_of_machine_first(self) -> Iterator[None]:
        """Context manager: one process of each machine runs first and fills the caches that the others then read."""
        if self.count == 1:
            yield
            return
        first = os.environ.get("LOCAL_RANK", "0") == "0"
        if not first:
            self.wait()
        try:
            yield
        finally:
            if first:
                self.wait()

    @contextmanager
    def ending_together(self) -> Iterator[None]:
        """Context manager: a failure of any process ends all of them, and only that one reports it. Raises an
        `EndedElsewhereError` if another process failed."""
        if self._store is None:
            yield
            return
        store = self._store
        threading.Thread(target=self._watch, daemon=True, name="covey-processes").start()
        try:
            yield
        except EndedElsewhereError:
            self._ended.set()
            raise
        except BaseException as error:
            entry = self._post_failure(store, error)
            self._ended.set()
            if entry.startswith(f"{self.index} ") or isinstance(error, KeyboardInterrupt):
                if isinstance(error, CoveyError):
                    error.reported_here = True
                raise
            self._wait_for_report()
            raise _elsewhere(entry) from None

    def leave(self) -> None:
        """Leave the group, all at once; no collectives after that. May be called again."""
        if self._store is None or self._ended.is_set():
            return
        self.wait()
        self._ended.set()

    def is_first_to_fail(self, error: BaseException) -> bool:
        """Whether this process is the first of all to fail, and so the one that reports why. The others end."""
        return self._store is None or self._post_failure(self._store, error).startswith(f"{self.index} ")

    def any_signal(self, caught: int | None) -> int | None:
        """The signal that any process has caught; of several the highest number."""
        if self.count == 1:
            return caught
        return max((number for number in self.gather(caught) if number is not None), default=None)

    def _post_failure(self, store: Any, error: BaseException) -> str:
        """Post this process's failure in the store; returns the entry of the first that failed. May be called again."""
        entry = f"{self.index} {error.exit_code if isinstance(error, CoveyError) else 1}"
        try:
            return str(store.compare_set(self._failed, "", entry).decode())
        except RuntimeError:  # the process that held the store is gone
            return entry

    def _watch(self) -> None:
        """End this process if another one has failed and this one does not end by itself."""
        assert self._store is not None
        while not self._ended.wait(_POLL_EVERY):
            try:
                if not self._store.check([self._failed]):
                    continue
                entry = self._store.get(self._failed).decode()
            except RuntimeError:  # the process or launcher that held the store is gone
                entry = "0 1"
            if entry.startswith(f"{self.index} ") or self._ended.wait(_GRACE):
                return
            error = _elsewhere(entry)
            logger.error("%s", error)
            os._exit(error.exit_code)

    def _wait_for_report(self) -> None:
        """Give the failing process time to report, before the launcher sees this one end and ends all."""
        time.sleep(_REPORT_FIRST)


def _destroy_group() -> None:
    """At exit: threads of a process group that is still open may abort the interpreter."""
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _elsewhere(entry: str) -> EndedElsewhereError:
    index, code = entry.split()
    return EndedElsewhereError(int(index), int(code))


def silent_console() -> Any:
    """A rich console for the processes that are not the main one."""
    from io import StringIO

    from rich.console import Console

    return Console(file=StringIO(), quiet=True)


class StopRequest:
    """Asks for a clean stop on a signal. A second Ctrl-C interrupts at once, unless it is the first one, forwarded by a
    launcher."""

    _FORWARDED = 3.0

    def __init__(self, on_signal: Callable[[int], None], *, alone: bool) -> None:
        self._on_signal = on_signal
        self._alone = alone
        self._at = 0.0
        self.signal: int | None = None
        """The first signal."""

    def __call__(self, number: int, frame: object) -> None:
        if self.signal is None:
            self.signal, self._at = number, time.monotonic()
            self._on_signal(number)
        elif number == signal.SIGINT and (self._alone or time.monotonic() - self._at > self._FORWARDED):
            raise KeyboardInterrupt


def asks_for_fsdp() -> bool:
    """Whether an accelerate config sets FSDP, by the environment."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def splits_weights(mesh: Mesh) -> bool:
    """Whether weights are sharded: by the mesh, or by the accelerate config (FSDP, DeepSpeed's ZeRO-3)."""
    deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
    zero3 = deepspeed and os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3"
    return mesh.fsdp > 1 or asks_for_fsdp() or zero3


ACCELERATE = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
"""Prefixes of accelerate's environment variables. A run that shards its model sets some of them, which must not reach
the next run of the same program."""


@contextmanager
def environment_kept(*names: str) -> Iterator[None]:
    """Restore afterwards all environment variables with these prefixes."""
    before = {name: value for name, value in os.environ.items() if name.startswith(names)}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith(names)]:
            if name not in before:
                del os.environ[name]
        os.environ.update(before)


def mesh_arguments(mesh: Mesh, *, fsdp_set: bool) -> dict[str, Any]:
    """The arguments of transformers' `TrainingArguments` for a mesh; none without sharding.

    Args:
        mesh: checked against the number of processes.
        fsdp_set: whether FSDP is configured already, by `training.fsdp` or an accelerate config.

    Raises:
        ConfigError: the accelerate config uses FSDP 1, which has no mesh.
    """
    if mesh.fsdp == 1:
        return {}
    from accelerate.parallelism_config import ParallelismConfig

    found: dict[str, Any] = {
        "parallelism_config": ParallelismConfig(dp_replicate_size=mesh.dp, dp_shard_size=mesh.fsdp)
    }
    if asks_for_fsdp() and os.environ.get("FSDP_VERSION", "1") != "2":
        raise ConfigError(
            "model.mesh_shape shards the model by FSDP2, and the accelerate config that started this run sets FSDP "
            "1: set fsdp_config.fsdp_version: 2 in it."
        )
    if not fsdp_set:
        found |= {
            "fsdp": True,
            "fsdp_config": {
                "version": 2,
                "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",  # one shard per layer of the model
                "reshard_after_forward": True,
                "state_dict_type": "FULL_STATE_DICT",  # full weights in every checkpoint
            },
        }
    return found


def check_layout(checkpoint: Path, *, shards: bool) -> None:
    """Check that a checkpoint has the sharding layout of this run.

    Args:
        checkpoint: to resume from.
        shards: whether this run shards the model by FSDP.

    Raises:
        RunDirectoryError: only one of the two is sharded.
    """
    written = any(checkpoint.glob("pytorch_model_fsdp*"))
    if written == shards:
        return
    there, here = ("sharded (FSDP)", "replicated") if written else ("replicated", "sharded (FSDP)")
    raise RunDirectoryError(
        f"{checkpoint} was written by a run with a {there} model, and that of this run is {here}, so its optimiser "
        "cannot be read. Start the run with the same model.mesh_shape or accelerate config as then, or start a new one "
        f"from its weights: model.name={checkpoint} and another run_name."
    )


def let_cpus_shard(state: PartialState) -> None:
    """Enable FSDP on CPUs.

    Accelerate uses FSDP on accelerators only and silently replicates on a CPU, although PyTorch can shard there. Only
    its distributed type has to be changed.
    """
    from accelerate.utils import DistributedType

    if state.distributed_type == DistributedType.MULTI_CPU:
        state._shared_state["distributed_type"] = DistributedType.MULTI_GPU


@contextmanager
def full_weights() -> Iterator[None]:
    """Context manager: a model that FSDP shards is saved with full weights, whatever its checkpoints hold."""
    from accelerate.state import AcceleratorState
    from torch.distributed.fsdp import StateDictType

    plugin = getattr(AcceleratorState(), "fsdp_plugin", None)
    if plugin is None:
        yield
        return
    before = plugin.state_dict_type
    plugin.state_dict_type = StateDictType.FULL_STATE_DICT
    try:
        yield
    finally:
        plugin.state_dict_type = before
