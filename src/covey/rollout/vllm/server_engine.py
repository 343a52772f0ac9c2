"""vLLM servers as an engine beside training: one request per completion, ended early on demand, repeated when lost.

Nothing here imports vLLM. The trainer's client connects to the server and sends weights.
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import requests
from requests.adapters import HTTPAdapter

from covey.errors import EngineError
from covey.rollout.engine import Capabilities, Completion, NamedWeights, OnEnded, SamplingSettings
from covey.rollout.vllm.engine import candidates, sampled_logps, support_of
from covey.rollout.vllm.serve import INSTANCE_HEADER
from covey.rollout.weight_folder import write_folder
from covey.runlog.directory import temporary_folder

logger = logging.getLogger(__name__)

_TRIES = 5
"""How often requests or a sync are tried with a new server."""
_POLL_SECONDS = 0.05
"""Between two questions whether a call is interrupted."""
_CONNECT_SECONDS = 10.0
_COMMAND_SECONDS = 120.0
"""That the server gets to connect, and to carry out a command."""
_ABORT_SECONDS = 1.0
"""That aborted requests get to answer before those are aborted that have come in since."""


class Server(Protocol):
    """One server that a client is connected to."""

    base_url: str
    model: str
    instance: str | None
    session: requests.Session


class Client(Protocol):
    """A connection to one server or several: `EngineClient` and `EngineClients` of `covey.training.trl`."""

    @property
    def live(self) -> Sequence[Any]:
        """The servers (`Server`) that have the weights."""

    def note(self, one: Any, seconds: float, tokens: int) -> None:
        """Count what one of them has generated."""

    def leave_out(self, one: Any, why: str) -> None:
        """Do without one of several until the next sync."""

    def reconnect(self) -> None:
        """Wait for a server, and set up the transfer of weights again if it is a new one."""

    def send_folder(self, folder: Path) -> None:
        """Send the weights in a folder."""

    def reset_prefix_cache(self) -> None:
        """Drop the KV cache of the old weights."""

    def take_lost(self) -> str | None:
        """What went wrong with the server since the last time."""


class _LostError(Exception):
    """A request was not answered by a server with the weights; the message says why."""


class ServerEngine:
    """A vLLM server. Calls may come from any thread, one at a time; nobody else may send it weights meanwhile.

    A completion has a seed of its own. vLLM computes whatever is there in one batch, which changes the last bits of
    log-probabilities, so that the same seeds give the same tokens almost always, but are no guarantee.
    """

    capabilities = Capabilities(
        logprobs=True,
        seeded=True,
        reasoning_vocab=True,
        row_limits=True,
        support=True,
        row_seeds=True,
        interruptible=True,
    )

    def __init__(
        self,
        client: Client,
        *,
        vocab_size: int,
        concurrency: int = 256,
        seed: int = 0,
        synced: Callable[[int], None] = lambda version: None,
    ) -> None:
        """
        Args:
            client: connected to the servers.
            vocab_size: of their model.
            concurrency: most requests at once, to each.
            seed: of the calls that have none.
            synced: called when weights of a version were sent; may raise an `EngineError`.
        """
        self._synced = synced
        self.version: int | None = None
        self._client = client
        self._vocab_size = vocab_size
        self._draw = random.Random(seed)
        self._concurrency = concurrency
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=concurrency))
        self._folder: Path | None = None
        self._own_folder = ExitStack()
        self._instances = {one.base_url: one.instance for one in client.live}
        self._closed = False

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingSettings,
        *,
        seed: int | Sequence[int] | None = None,
        max_lengths: Sequence[int] | None = None,
        interrupted: Callable[[], bool] | None = None,
        on_ended: OnEnded | None = None,
    ) -> list[Completion]:
        """See `InferenceEngine` and `Capabilities`.

        Args:
            seed: of the call, or of each prompt.
            max_lengths: the longest completion of each prompt, where it is below that of the settings.
            interrupted: see `Capabilities.interruptible`; asked about twenty times a second, by this thread.
            on_ended: see `Capabilities.interruptible`; called by this thread.

        Raises:
            EngineError: the server refuses a request, or no server answered; or the engine was closed meanwhile.
        """
        base = self._draw.randrange(2**31) if seed is None else seed
        seeds = [base] * len(prompts) if isinstance(base, int) else list(base)
        shared = isinstance(base, int)
        limits = max_lengths or [sampling.max_completion_length] * len(prompts)
        most = candidates(sampling, self._vocab_size)
        payloads = [
            self._payload(ids, sampling, most, _mixed(seeds[row], len(ids), row if shared else 0), limits[row])
            for row, ids in enumerate(prompts)
        ]
        found: dict[int, Completion] = {}

        def ended(row: int, one: Completion) -> None:
            found[row] = one
            if on_ended is not None and not one.unfinished:
                on_ended(row, one)

        def stops() -> bool:
            return self._closed or (interrupted is not None and interrupted())

        lost: dict[str, str] = {}
        for _ in range(_TRIES):
            left = [one for one in self._client.live if one.base_url not in lost]
            if lost and left:
                for one in self._client.live:
                    if one.base_url in lost:
                        self._client.leave_out(one, lost[one.base_url])
            elif lost:
                why = next(iter(lost.values()))
                logger.warning("The vLLM server was lost during generation: %s. Its requests are repeated.", why)
                if self._folder is not None and self.version is not None:
                    self.sync_folder(self._folder, self.version)
                else:
                    self._client.reconnect()
                    self._instances = {one.base_url: one.instance for one in self._client.live}
            lost = self._ask({row: one for row, one in enumerate(payloads) if row not in found}, most, ended, stops)
            if self._closed:
                raise EngineError("The engine was closed.")
            if not lost or stops():
                return [found.get(row, _UNBEGUN) for row in range(len(prompts))]
        why = next(iter(lost.values()))
        raise EngineError(f"No vLLM server generated these completions in {_TRIES} tries: {why}.")

    def sync(self, weights: NamedWeights, version: int) -> None:
        """See `InferenceEngine`. The weights stay in a folder until the next sync, for a server that is restarted."""
        with ExitStack() as new:
            folder = new.enter_context(temporary_folder("covey-weights-"))
            write_folder(folder, weights)
            self.sync_folder(folder, version)
            self._own_folder.close()
            self._own_folder = new.pop_all()

    def sync_folder(self, folder: Path, version: int) -> None:
        """As `sync`, with weights that `covey.rollout.weight_folder.write_folder` has written.

        Args:
            folder: it is read again for a server that was restarted, so it stays as it is until the next sync has
                returned. On a CPU, the server must see it.
            version: of these weights, from now on.
        """
        lost = None
        for _ in range(_TRIES):
            self._client.reconnect()
            self._client.send_folder(folder.resolve())
            self._client.reset_prefix_cache()
            lost = self._client.take_lost()
            if lost is None:
                self._synced(version)
                lost = self._client.take_lost()
            if lost is None:
                self._instances = {one.base_url: one.instance for one in self._client.live}
                self._folder, self.version = folder, version
                return
            logger.warning("The vLLM server was lost during a weight sync: %s. The sync is retried.", lost)
        raise EngineError(f"The weights could not be sent to a vLLM server in {_TRIES} tries: {lost}.")

    def close(self) -> None:
        """End a call that is waiting. The server runs on."""
        self._closed = True
        self._session.close()
        self._own_folder.close()

    def _payload(
        self, ids: Sequence[int], sampling: SamplingSettings, most: int, seed: int, limit: int
    ) -> dict[str, Any]:
        return {
            "prompt": list(map(int, ids)),
            "max_tokens": min(int(limit), sampling.max_completion_length),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": most or sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": most if sampling.logprobs or most else None,
            "seed": seed,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }

    def _ask(
        self, payloads: dict[int, dict[str, Any]], most: int, ended: OnEnded, stops: Callable[[], bool]
    ) -> dict[str, str]:
        """Send these requests, to each server those of rows that follow each other; `ended` gets each completion.
        Returns the addresses of servers that did not answer some of them, with the reasons."""
        servers, began = list(self._client.live), time.monotonic()
        of_row = {row: servers[at * len(servers) // len(payloads)] for at, row in enumerate(payloads)}
        most_of_one = min(self._concurrency, len(payloads)) or 1
        threads = {server.base_url: ThreadPoolExecutor(most_of_one) for server in servers}
        rows = {
            threads[of_row[row].base_url].submit(self._complete, of_row[row], one, most): row
            for row, one in payloads.items()
        }
        pending, stopped, lost = set(rows), False, dict[str, str]()
        worked: dict[str, tuple[float, int]] = {}
        try:
            while pending:
                done, pending = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
                for one in sorted(done, key=lambda future: rows[future]):
                    name = of_row[rows[one]].base_url
                    try:
                        found = _UNBEGUN if one.cancelled() else one.result()
                        if found.unfinished and not stopped:
                            raise _LostError("it ended a request early")
                    except _LostError as error:
                        if not stopped:
                            lost[name] = str(error)
                            continue
                        found = _UNBEGUN
                    worked[name] = time.monotonic() - began, worked.get(name, (0.0, 0))[1] + len(found.ids)
                    ended(rows[one], found)
                if not stopped and stops():
                    stopped = True
                    self._abort(pending, servers)
        finally:
            self._abort(pending, servers)  # where something was raised
            for pool in threads.values():
                pool.shutdown()
        for server in servers:
            self._client.note(server, *worked.get(server.base_url, (0.0, 0)))
        return lost

    def _abort(self, pending: Iterable[Future[Completion]], servers: Sequence[Server]) -> None:
        """Have the servers answer these requests now, with the tokens that there are."""
        running = {one for one in pending if not one.cancel()}
        if not running:
            return
        reached = list(servers)
        while running and reached:  # some may not have been in a server's queue when it was emptied
            reached = [one for one in reached if self._commanded(one, "pause", mode="abort", clear_cache="false")]
            running = wait(running, _ABORT_SECONDS).not_done
        for one in reached:
            self._commanded(one, "resume")
        wait(running)  # without a server, they end by themselves

    def _commanded(self, server: Server, name: str, **options: str) -> bool:
        """Give a server a command; whether it took it."""
        headers = dict(server.session.headers)
        timeout = (_CONNECT_SECONDS, _COMMAND_SECONDS)
        try:
            url = f"{server.base_url}/{name}"
            self._session.post(url, params=options, headers=headers, timeout=timeout).raise_for_status()
        except requests.RequestException:
            return False
        return True

    def _complete(self, server: Server, payload: dict[str, Any], most: int) -> Completion:
        """The completion of a request.

        Raises:
            _LostError: the server is gone, or another one answered.
            EngineError: the server refuses the request.
        """
        try:
            url, headers = f"{server.base_url}/v1/completions", dict(server.session.headers)
            asked = {"model": server.model, **payload}
            answer = self._session.post(url, json=asked, headers=headers, timeout=(_CONNECT_SECONDS, None))
            if answer.headers.get(INSTANCE_HEADER) != self._instances.get(server.base_url):
                raise _LostError("the completions came from another server, which does not have the weights")
            if answer.status_code >= 500:
                raise _LostError(f"it answered {answer.status_code}, {' '.join(answer.text.split())[:300]}")
            if answer.status_code != 200:
                text = " ".join(answer.text.split())[:500]
                raise EngineError(f"The vLLM server refused a request ({answer.status_code}): {text}")
            return _completion(answer.json()["choices"][0], support=most > 0)
        except requests.RequestException as error:
            raise _LostError(f"it did not answer ({type(error).__name__})") from None


_UNBEGUN = Completion([], truncated=False, logps=[], unfinished=True)


def _mixed(seed: int, length: int, row: int) -> int:
    """The seed of a request, below 2^63: another one for each row, and where a completion goes on."""
    return int.from_bytes(hashlib.sha256(f"{seed} {length} {row}".encode()).digest()[:8], "big") >> 1


def _completion(choice: dict[str, Any], *, support: bool) -> Completion:
    """A choice of the server's answer, with tokens as ids."""
    ids, why, found = list(choice["token_ids"] or ()), choice["finish_reason"], choice["logprobs"]
    options: dict[str, Any] = {"truncated": why == "length", "unfinished": why == "abort"}
    if found is None or not ids:
        return Completion(ids, logps=None if found is None and ids else [], **options)
    sampled = zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)
    tops = [{token: logp, **(top or {})} for token, logp, top in sampled]
    tokens = [[int(token.removeprefix("token_id:")) for token in top] for top in tops]
    values = [list(top.values()) for top in tops]
    if not support:
        return Completion(ids, logps=sampled_logps(ids, tokens, values), **options)
    logps, kept = support_of(ids, tokens, values)
    return Completion(ids, logps=logps, support=kept, **options)
