"""Tensors with real numbers on the CPU that say they lie on a GPU.

An operation over two devices raises, as CUDA does. Waits for the device are counted by the line of code that asks for
them, and so are kernels and casts of weights. The guard must be loaded before torch is imported: see `claimed_guard`.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

aten = torch.ops.aten

_WAITING = {
    *(aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default),
    *(aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default, aten.is_nonzero.default),
}
"""Operations whose result the host waits for. `repeat_interleave` without `output_size` is another."""
_COPIES = {"copy_", "_to_copy"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_VIEWS = {
    *("_reshape_alias", "_unsafe_view", "alias", "as_strided", "chunk", "detach", "diagonal", "expand", "lift_fresh"),
    *("narrow", "permute", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind"),
    *("unfold", "unsqueeze", "view"),
}
"""Operations that launch no kernel."""


@dataclass
class Counts:
    """What has happened on the claimed device since `clear`."""

    waits: Counter[str] = field(default_factory=Counter)
    """By `operation @ file:line`."""
    kernels: Counter[str] = field(default_factory=Counter)
    """By operation."""
    casts: Counter[str] = field(default_factory=Counter)
    """Casts of parameters to another number type, by the parameter's shape."""

    def clear(self) -> None:
        for counter in (self.waits, self.kernels, self.casts):
            counter.clear()

    def waits_in(self, *parts: str) -> dict[str, int]:
        """The waits asked for by Covey's files whose path holds one of these texts."""
        return {where: n for where, n in self.waits.items() if any(part in where for part in parts)}


COUNTS = Counts()


class ClaimedTensor(torch.Tensor):
    """A tensor whose numbers lie in `numbers`, on the CPU, and whose device is `cuda:N`."""

    numbers: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: torch.Tensor, device: torch.device) -> ClaimedTensor:
        found: ClaimedTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            layout=numbers.layout,
            device=device,
        )
        found.numbers = numbers
        return found

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"ClaimedTensor({self.numbers}, device={self.device})"

    def tolist(self) -> Any:
        COUNTS.waits[f"tolist @ {_site()}"] += 1
        return self.numbers.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    __array__ = numpy

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


class Claiming(TorchDispatchMode):
    """Under this mode tensors made for `cuda` are claimed ones."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


def put(tensor: torch.Tensor, device: str = "cuda:0") -> ClaimedTensor:
    """A claimed copy of a tensor."""
    return ClaimedTensor(tensor.detach().clone(), torch.device(device))


def move(module: torch.nn.Module, device: str = "cuda:0") -> torch.nn.Module:
    """Claim all parameters and buffers of a module; what is shared stays shared."""
    place, moved = torch.device(device), dict[int, Any]()
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                new = parameter if parameter.device == place else moved.get(id(parameter))
                if new is None:
                    new = torch.nn.Parameter(put(parameter, device), requires_grad=parameter.requires_grad)
                part._parameters[name] = moved[id(parameter)] = new
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.device != place:
                part._buffers[name] = put(buffer, device)
    return module


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    flat, spec = tree_flatten((args, kwargs))
    claimed = [item for item in flat if isinstance(item, ClaimedTensor)]
    plain = [item for item in flat if isinstance(item, torch.Tensor) and not isinstance(item, ClaimedTensor)]
    name = func._schema.name.rpartition("::")[2]
    wanted = kwargs.get("device")
    target = _out_device(name, args, claimed, wanted)
    _check_devices(name, args, claimed, plain)
    _count(func, name, args, kwargs, claimed, target)
    args, kwargs = tree_unflatten([_inner(item) for item in flat], spec)
    if func is aten.bmm.dtype:  # has a kernel on CUDA only: the sums of 16-bit products, kept in float32
        func, args = aten.bmm.default, (args[0].float(), args[1].float())
    found = func(*args, **kwargs)
    if target.type != "cuda" or func is aten._local_scalar_dense.default:
        return found
    known = {id(item.numbers): item for item in claimed}
    return tree_map(
        lambda item: known.get(id(item), ClaimedTensor(item, target)) if isinstance(item, torch.Tensor) else item, found
    )


def _out_device(name: str, args: Any, claimed: list[ClaimedTensor], wanted: Any) -> torch.device:
    if wanted is not None:
        device = torch.device(wanted)
        return torch.device("cuda", device.index or 0) if device.type == "cuda" else device
    if name in _COPIES or (args and isinstance(args[0], ClaimedTensor)):
        return args[0].device  # type: ignore[no-any-return]
    return claimed[0].device if claimed else torch.device("cpu")


def _check_devices(name: str, args: Any, claimed: list[ClaimedTensor], plain: list[torch.Tensor]) -> None:
    if name in _COPIES:
        return
    if name in _INDEXING:
        own = args[0].device
        indices = [index for index in args[1] if index is not None]
        values = [item for item in args[2:] if isinstance(item, torch.Tensor) and item.dim()]
        wrong = [index for index in indices if isinstance(index, ClaimedTensor) and index.device != own]
        wrong += [value for value in values if value.device != own]
    else:
        devices = {item.device for item in claimed}
        first = next(iter(devices), None)
        wrong = [item for item in claimed if item.device != first]
        wrong += [item for item in plain if claimed and item.dim()]
    if wrong:
        places = sorted({str(item.device) for item in (*claimed, *plain)})
        raise RuntimeError(f"{name}: Expected all tensors to be on the same device, found {places}, at {_site()}")


def _count(func: Any, name: str, args: Any, kwargs: Any, claimed: list[Any], target: torch.device) -> None:
    if func in _WAITING and claimed:
        COUNTS.waits[f"{name} @ {_site()}"] += 1
    if name == "repeat_interleave" and claimed and kwargs.get("output_size") is None:
        COUNTS.waits[f"{name} @ {_site()}"] += 1
    if name in _INDEXING:
        for index in (index for index in args[1] if index is not None and args[0].device.type == "cuda"):
            if not isinstance(index, ClaimedTensor):
                COUNTS.waits[f"index from the host @ {_site()}"] += 1
            elif index.dtype in (torch.bool, torch.uint8):
                COUNTS.waits[f"index by a mask @ {_site()}"] += 1
    source = args[1].device if name == "copy_" else args[0].device if name == "_to_copy" else None
    if source is not None and source != target and not _asynchronous(name, args, kwargs):
        COUNTS.waits[f"{source.type} to {target.type} @ {_site()}"] += 1
    if name == "_to_copy" and isinstance(args[0], torch.nn.Parameter) and kwargs.get("dtype") != args[0].dtype:
        COUNTS.casts[str(tuple(args[0].shape))] += 1
    if target.type == "cuda" and name not in _VIEWS:
        COUNTS.kernels[name] += 1


def _asynchronous(name: str, args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))


def _inner(item: Any) -> Any:
    if isinstance(item, ClaimedTensor):
        return item.numbers
    return torch.device("cpu") if isinstance(item, torch.device) and item.type == "cuda" else item


def _site() -> str:
    """The innermost line of Covey, else of another package than torch."""
    other = ""
    for frame in reversed(traceback.extract_stack()):
        path = frame.filename
        if "/covey/" in path and "/tests/" not in path:
            return f"{path.rpartition('/covey/')[2]}:{frame.lineno}"
        if not other and "site-packages" in path and "/torch/" not in path:
            other = f"{path.rpartition('site-packages/')[2]}:{frame.lineno}"
    return other or "?"


_module_to = torch.nn.Module.to


def _to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """`Module.to`, which moves a module to a claimed device in place: torch would replace its parameters."""
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    if device is None or device.type != "cuda":
        return _module_to(module, *args, **kwargs)
    return move(module if dtype is None else _module_to(module, dtype), f"cuda:{device.index or 0}")


def _properties(*_: Any) -> SimpleNamespace:
    return SimpleNamespace(major=9, minor=0, name="Claimed", total_memory=80 << 30, gcnArchName="", warp_size=32)


@contextmanager
def claimed_cuda(devices: int = 1, capability: tuple[int, int] = (9, 0)) -> Iterator[None]:
    """Context manager: Python's questions about CUDA are answered as by a machine with these devices."""
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: capability >= (8, 0),
        "device_count": lambda: devices,
        "current_device": lambda: 0,
        "get_device_properties": _properties,
        "get_device_capability": lambda *_: capability,
        "get_device_name": lambda *_: "Claimed",
        "mem_get_info": lambda *_: (70 << 30, 80 << 30),
        "get_rng_state": lambda *_: torch.zeros(1, dtype=torch.uint8),
        "get_rng_state_all": list,
        **dict.fromkeys(("max_memory_allocated", "memory_allocated", "memory_reserved"), lambda *_: 0),
        **dict.fromkeys(
            (
                *("_lazy_init", "set_device", "manual_seed", "manual_seed_all", "synchronize", "empty_cache"),
                *("reset_peak_memory_stats", "ipc_collect", "set_rng_state", "set_rng_state_all"),
            ),
            lambda *_, **__: None,
        ),
    }
    import torch.cuda.amp.common as amp

    with (
        mock.patch.multiple(torch.cuda, **answers),
        mock.patch.object(amp, "amp_definitely_not_available", bool),
        mock.patch.object(torch.Tensor, "pin_memory", lambda self, *_: self),
        mock.patch.object(torch.nn.Module, "to", _to),
    ):
        torch._C._set_only_lift_cpu_tensors(True)  # type: ignore[attr-defined]
        yield
