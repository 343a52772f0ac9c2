"""Several vLLM servers behind the interface of one client: prompts in parts, weights to all, and what each has done."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import requests
import torch
from requests.adapters import HTTPAdapter, Retry

from covey.config.vllm import LOCAL_HOSTS
from covey.errors import EngineError
from covey.rollout.engine import NamedWeights
from covey.training.trl.engine_client import EngineClient

logger = logging.getLogger(__name__)

T = TypeVar("T")
_ASK_AGAIN = Retry(total=1, status_forcelist=(500, 502, 503), allowed_methods=None)
"""Retries of a request: where TRL's client would try for a minute, another server answers."""
_REQUESTS = 64
"""At once to a server, as TRL's client sends them."""
_WAIT_SECONDS = 2.0


def connect(base_url: str | Sequence[str] | None, **kwargs: Any) -> EngineClient | EngineClients:
    """The client of one server, or of several.

    Args:
        base_url: their addresses.
        kwargs: `EngineClient`'s.
    """
    if not base_url or isinstance(base_url, str):
        return EngineClient(base_url=base_url, **kwargs)
    return EngineClient(base_url=base_url[0], **kwargs) if len(base_url) == 1 else EngineClients(base_url, **kwargs)


class EngineClients:
    """Servers of the same model. One that is lost is left out until it answers again, at a sync."""

    def __init__(self, urls: Sequence[str], *, connection_timeout: float = 0.0, **kwargs: Any) -> None:
        """As `EngineClient`, for every address. Raises an `EngineError` if one does not answer in time."""
        self._timeout = connection_timeout

        def client(url: str) -> EngineClient:
            made = EngineClient(base_url=url, connection_timeout=connection_timeout, **kwargs)
            for scheme in ("http://", "https://"):
                made.session.mount(scheme, HTTPAdapter(max_retries=_ASK_AGAIN, pool_maxsize=_REQUESTS))
            return made

        with ThreadPoolExecutor(len(urls)) as threads:
            self.all = list(threads.map(client, urls))
        self.live: list[EngineClient] = list(self.all)
        """Those that have the weights."""
        self._joined: list[EngineClient] = []
        """Those that the transfer of weights was set up with."""
        self.lost: str | None = None
        self._seconds, self._tokens = [0.0] * len(urls), [0] * len(urls)
        self._times_lost = [0] * len(urls)
        away = [one.host for one in self.all if one.host not in LOCAL_HOSTS]
        self.host: str = away[0] if away else self.all[0].host

    @property
    def base_url(self) -> str:
        return ", ".join(one.base_url for one in self.live)

    @property
    def dtype(self) -> str:
        return self.live[0].dtype

    @property
    def max_model_len(self) -> int:
        return min(one.max_model_len for one in self.live)

    @property
    def max_logprobs(self) -> int:
        return min((one.max_logprobs for one in self.live if one.max_logprobs >= 0), default=-1)

    def get_server_info(self) -> Any:
        """As TRL's, of the first server."""
        return self.live[0].get_server_info()

    def init_communicator(self, device: Any = 0) -> None:
        """Set up the transfer of weights to all live servers: one NCCL group, in which the workers of each follow those
        of the one before. Raises an `EngineError` if their models differ."""
        self._device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        for one in self.all:
            one.peers = ()
        first, *others = self._joined = list(self.live)
        first.peers = others
        first.init_communicator(self._device)
        for other in others:
            if (other.base_model, other.dtype) != (first.base_model, first.dtype):
                raise EngineError(
                    f"The vLLM servers at {first.base_url} and {other.base_url} differ: {first.base_model} in "
                    f"{first.dtype}, and {other.base_model} in {other.dtype}. All must serve the same model alike."
                )

    def reconnect(self) -> None:
        """Find out which servers are there, and set up the transfer of weights again where one is new or gone. Raises
        an `EngineError` if none answers within `training.vllm_server_timeout`."""
        began = time.monotonic()
        while not (there := [one for one in self._each(_if_it_answers, self.all) if one is not None]):
            if time.monotonic() > began + self._timeout:
                raise EngineError(
                    f"The vLLM servers at {', '.join(one.base_url for one in self.all)} went away, and none answered "
                    f"within {self._timeout:g} s (training.vllm_server_timeout). The run can resume from its newest "
                    "checkpoint once servers are up; `covey launch` restarts those that die."
                )
            time.sleep(_WAIT_SECONDS)
        for one in set(self.live).symmetric_difference(there):
            if one in there:
                logger.warning("The vLLM server at %s answers again, and gets weights from now on.", one.base_url)
            else:
                logger.warning(
                    "The vLLM server at %s does not answer: %d of %d generate until it does.",
                    one.base_url, len(there), len(self.all),
                )  # fmt: skip
        self.live = there
        if there != self._joined or any(one.is_new for one in there):
            self.close_communicator()
            for one in there:
                if one.is_new:
                    one.forget_adapters()
            self.init_communicator(self._device)

    def take_lost(self) -> str | None:
        """What went wrong with a server since the last time, if anything."""
        found = [self.lost, *(one.take_lost() for one in self.all)]
        self.lost = None
        return next(filter(None, found), None)

    def update_named_params(self, metadata: Any, named_params: NamedWeights) -> None:
        """As `EngineClient`'s, to all."""
        self.live[0].update_named_params(metadata, named_params)

    def send_folder(self, folder: Path) -> None:
        """As `EngineClient`'s, to all."""
        self.live[0].send_folder(folder)

    def reset_prefix_cache(self) -> None:
        """As `EngineClient`'s, of all."""
        self._each(EngineClient.reset_prefix_cache)

    def close_communicator(self) -> None:
        """As TRL's."""
        for one in self.all:
            one.close_communicator()

    def adapter_refusal(self, rank: int) -> str | None:
        """As `EngineClient`'s, of the first server that refuses."""
        return next(filter(None, (one.adapter_refusal(rank) for one in self.live)), None)

    def load_adapter(self, name: str, folder: Path) -> None:
        """As `EngineClient`'s, for all."""
        self._each(lambda one: one.load_adapter(name, folder))

    def drop_adapters(self) -> None:
        """As `EngineClient`'s, for all."""
        self._each(EngineClient.drop_adapters)

    def image_features(self, *args: Any, **kwargs: Any) -> Any:
        """As TRL's: they depend on the images alone."""
        return self.live[0].image_features(*args, **kwargs)

    def generate(self, prompts: Sequence[Any], features: Sequence[Any] | None = None, **kwargs: Any) -> dict[str, Any]:
        """As `EngineClient`'s. Each server generates for prompts that follow each other, whose completions stay in
        their order; the part of one that is lost is asked again of the others."""
        parts, left = dict[int, dict[str, Any]](), [(0, len(prompts))]
        asked = list(self.live)
        while left and asked:
            shares = [share for start, stop in left for share in cut(start, stop, len(asked))]
            calls = [(one, *share) for share, one in zip(shares, asked * len(left), strict=False)]

            def ask(call: tuple[EngineClient, int, int]) -> dict[str, Any]:
                one, start, stop = call
                began = time.monotonic()
                own = None if features is None else features[start:stop]
                output = one.generate(prompts[start:stop], features=own, **kwargs)
                if one.lost is None:
                    self.note(one, time.monotonic() - began, sum(map(len, output["completion_ids"])))
                return output

            outputs, left = self._each(ask, calls), []
            for (one, start, stop), output in zip(calls, outputs, strict=True):
                if one.lost is None:
                    parts[start] = output
                else:
                    left.append((start, stop))
            for one in [one for one in asked if one.lost is not None]:
                why = one.take_lost()
                asked.remove(one)
                if asked:
                    self.leave_out(one, f"{why}")
                else:
                    self.lost = why
        ordered = [parts[start] for start in sorted(parts)] if not left else []
        return {key: _joined([one[key] for one in ordered]) for key in _KEYS}

    def leave_out(self, one: EngineClient, why: str) -> None:
        """Do without a server until the next sync."""
        logger.warning("The vLLM server at %s was lost: %s. The others generate its part.", one.base_url, why)
        self._times_lost[self.all.index(one)] += 1
        self.live = [other for other in self.live if other is not one]

    def note(self, one: EngineClient, seconds: float, tokens: int) -> None:
        """Count what a server has generated."""
        number = self.all.index(one)
        self._seconds[number] += seconds
        self._tokens[number] += tokens

    def take_metrics(self) -> dict[str, float]:
        """Of each server since the last call: seconds in which it generated, tokens, and how often it was lost."""
        found: dict[str, float] = {}
        for number in range(len(self.all)):
            name = f"rollout/server_{number}"
            found[f"{name}/seconds"], self._seconds[number] = self._seconds[number], 0.0
            found[f"{name}/tokens"], self._tokens[number] = float(self._tokens[number]), 0
            found[f"{name}/lost"], self._times_lost[number] = float(self._times_lost[number]), 0
        return found

    def _each(self, call: Callable[[Any], T], over: Sequence[Any] | None = None) -> list[T]:
        """Call it for every live server, or all of `over`, at once."""
        over = self.live if over is None else over
        with ThreadPoolExecutor(max(1, len(over))) as threads:
            return list(threads.map(call, over))


_KEYS = ("prompt_ids", "completion_ids", "logprobs", "logprob_token_ids")


def cut(start: int, stop: int, parts: int) -> Iterator[tuple[int, int]]:
    """Cut a range into at most so many parts, as equal as possible; empty ones are left out."""
    edges = [start + (stop - start) * number // parts for number in range(parts + 1)]
    yield from ((first, last) for first, last in pairwise(edges) if first < last)


def _joined(parts: Sequence[Any]) -> Any:
    return None if any(one is None for one in parts) else [item for one in parts for item in one]


def _if_it_answers(one: EngineClient) -> EngineClient | None:
    with suppress(requests.RequestException, ConnectionError, EngineError):
        one.look()
        return one
    return None
