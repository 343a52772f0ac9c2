"""TRL's client of a vLLM server, which also detects a lost or replaced server, and works on CPUs."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import requests
import torch
from trl.generation.vllm_client import VLLMClient

from covey.config.secrets import ENGINE_KEY
from covey.errors import EngineError
from covey.rollout.engine import NamedWeights
from covey.rollout.vllm.engine import WORKER
from covey.rollout.vllm.serve import INSTANCE_HEADER
from covey.rollout.weight_folder import read_folder, write_folder
from covey.runlog.directory import temporary_folder

logger = logging.getLogger(__name__)

_TRANSFER = ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update")
"""TRL's calls by which a server takes part in a transfer of weights."""
_LOOK_SECONDS = 10.0


class EngineClient(VLLMClient):
    """Tracks whether completions came from the server that was synced last."""

    lost: str | None = None
    """What went wrong with the server since `take_lost`, if anything."""
    instance: str | None = None
    """Id of the server process that answered last; None if the server does not send it."""
    peers: Sequence[EngineClient] = ()
    """Clients of other servers, which get the weights that this one sends, in the same transfer."""

    def __init__(self, *args: Any, connection_timeout: float = 0.0, **kwargs: Any) -> None:
        """As TRL's. Raises an `EngineError` if no server answers in time."""
        self._timeout = connection_timeout
        self._synced: str | None = None
        self._requests = Counter[str]()
        self._held: list[str] = []
        try:
            super().__init__(*args, connection_timeout=connection_timeout, **kwargs)
        except requests.ConnectionError as error:  # which TRL raises by its plain name
            raise EngineError(
                f"No vLLM server answers at {self.base_url} after {connection_timeout:g} s "
                "(training.vllm_server_timeout). Start one with `python -m covey.rollout.vllm.serve --model MODEL`, or "
                "have `covey launch` do it; training.vllm_server_host, vllm_server_port or vllm_server_base_url give "
                "its address."
            ) from error
        self.session.hooks["response"].append(self._record_instance)
        self.base_model: str = self.model

    @property
    def live(self) -> list[EngineClient]:
        """The servers that generate: this one."""
        return [self]

    def note(self, one: EngineClient, seconds: float, tokens: int) -> None:
        """Of several servers, each is counted."""

    def leave_out(self, one: EngineClient, why: str) -> None:
        """Of several servers, one can be done without."""

    def take_metrics(self) -> dict[str, float]:
        """Of several servers, what each has done."""
        return {}

    def check_server(self, *args: Any, **kwargs: Any) -> None:
        """As TRL's; the first request, from which on the API key is sent."""
        if key := os.environ.get(ENGINE_KEY):
            self.session.headers["Authorization"] = f"Bearer {key}"
        super().check_server(*args, **kwargs)

    def get_world_size(self) -> int:
        """As TRL's, with the workers of the other servers."""
        return sum(self._workers())

    def _workers(self) -> list[int]:
        return [VLLMClient.get_world_size(one) for one in (self, *self.peers)]

    def _post(self, url: str, **kwargs: Any) -> dict[str, Any]:
        """As TRL's. The calls that transfer weights go to all servers at once, whose workers have the ranks after those
        of the servers before."""
        path = url.removeprefix(self.base_url)
        if not self.peers or path not in _TRANSFER:
            return self._post_one(url, **kwargs)
        payloads = [kwargs.get("json", {})] * (1 + len(self.peers))
        if "init_info" in payloads[0]:
            first, workers = payloads[0]["init_info"], self._workers()
            ranks = [first["rank_offset"] + sum(workers[:number]) for number in range(len(workers))]
            payloads = [{"init_info": {**first, "rank_offset": rank}} for rank in ranks]
        with ThreadPoolExecutor(len(payloads)) as threads:
            calls = [
                threads.submit(one._post_one, f"{one.base_url}{path}", **{**kwargs, "json": payload})
                for one, payload in zip((self, *self.peers), payloads, strict=True)
            ]
        found = [call.result() for call in calls]
        return found[0]

    def _post_one(self, url: str, **kwargs: Any) -> dict[str, Any]:
        response = self.session.post(url, **kwargs)
        if response.status_code != 200:
            raise EngineError(f"The vLLM server refused {url} ({response.status_code}): {response.text[:500]}")
        answer: dict[str, Any] = response.json()
        return answer

    def _record_instance(self, response: requests.Response, *_: Any, **__: Any) -> None:
        self.instance = response.headers.get(INSTANCE_HEADER)

    def init_communicator(self, device: Any = 0) -> None:
        """Set up the transfer of weights: TRL's NCCL for a trainer on a GPU; a folder for one on a CPU."""
        self._device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        for one in (self, *self.peers):
            one._describe(self._device)
        if self._device.type != "cpu":
            super().init_communicator(self._device)

    def _describe(self, device: torch.device) -> None:
        """Read what the server is."""
        self._device, config = device, self.get_server_info()
        self.dtype = str(config["model_config"]["dtype"]).removeprefix("torch.")
        self.max_model_len = int(config["model_config"]["max_model_len"])
        self.max_logprobs = int(config["model_config"]["max_logprobs"])
        self._lora, self._replicas = config["lora_config"], int(config["parallel_config"]["data_parallel_size"])
        if device.type == "cpu" and config["parallel_config"].get("worker_extension_cls") != WORKER:
            raise EngineError(
                f"The vLLM server at {self.base_url} cannot take weights from a trainer on a CPU: start it with "
                "`python -m covey.rollout.vllm.serve --model MODEL`, on this machine."
            )
        self._connected = self.instance
        if self.instance is None:
            logger.warning(
                "The vLLM server at %s does not send an instance id, so a restart within a step is not "
                "detected. Servers started with `python -m covey.rollout.vllm.serve` or `covey launch` do.",
                self.base_url,
            )

    def look(self) -> None:
        """Ask the server once. Raises a `requests.RequestException` or an `EngineError` if it does not answer."""
        url = f"{self.base_url}/health"
        if requests.get(url, timeout=_LOOK_SECONDS).status_code != 200:
            raise EngineError(f"The vLLM server at {self.base_url} is not well.")
        self.session.get(f"{self.base_url}/v1/models", timeout=_LOOK_SECONDS).raise_for_status()

    @property
    def is_new(self) -> bool:
        """Whether another process than the one that was connected answers."""
        return self.instance != self._connected

    def forget_adapters(self) -> None:
        """Of a new process: it holds none."""
        self.model, self._held = self.base_model, []

    def reconnect(self) -> None:
        """Wait for a server, and set up the transfer of weights again if it is a new one. Raises an `EngineError` if
        none answers within `training.vllm_server_timeout`."""
        try:
            self.check_server(self._timeout)
            self._get(f"{self.base_url}/v1/models")
        except requests.RequestException as error:
            raise EngineError(
                f"The vLLM server at {self.base_url} went away, and none answered within {self._timeout:g} s "
                "(training.vllm_server_timeout). The run can resume from its newest checkpoint once a server is up; "
                "`covey launch` restarts a server that dies."
            ) from error
        if self.is_new:
            logger.warning("A new vLLM server answers at %s: weights are sent again.", self.base_url)
            self.close_communicator()
            self.init_communicator(self._device)
            self.forget_adapters()

    def take_lost(self) -> str | None:
        """Return and clear `lost`."""
        lost, self.lost = self.lost, None
        return lost

    def update_named_params(self, metadata: Any, named_params: NamedWeights) -> None:
        """Send weights. A failure sets `lost`, but all weights are consumed: gathering them is collective."""
        try:
            if self._device.type == "cpu":
                self._send_folder(named_params)
            else:
                super().update_named_params(metadata, named_params)
        except requests.RequestException as error:
            self.lost = f"it did not take the weights ({type(error).__name__})"
        for _ in named_params:
            pass
        self._have_weights()

    def _have_weights(self) -> None:
        for one in (self, *self.peers):
            one._synced = one.instance

    def _send_folder(self, named_params: NamedWeights) -> None:
        with temporary_folder("covey-weights-") as folder:
            self._load_folder(folder, write_folder(folder, named_params))

    def send_folder(self, folder: Path) -> None:
        """Send the weights that `covey.rollout.weight_folder.write_folder` has written. A failure sets `lost`. Raises
        an `EngineError` if the server does not see the folder, or refuses the weights."""
        if self._device.type != "cpu":
            metadata = [
                (name, str(weights.dtype).removeprefix("torch."), list(weights.shape))
                for name, weights in read_folder(folder)
            ]
            moved = ((name, weights.to(self._device)) for name, weights in read_folder(folder))
            self.update_named_params(metadata, moved)
            return
        try:
            self._load_folder(folder, sum(1 for _ in read_folder(folder)))
        except requests.RequestException as error:
            self.lost = f"it did not take the weights ({type(error).__name__})"
        self._have_weights()

    def _load_folder(self, folder: Path, tensors: int) -> None:
        if not tensors:
            raise EngineError(f"There are no weights in {folder}: was it removed?")
        with ThreadPoolExecutor(1 + len(self.peers)) as threads:
            list(threads.map(lambda one: one._load_own(folder, tensors), (self, *self.peers)))

    def _load_own(self, folder: Path, tensors: int) -> None:
        answer = self._post_one(
            f"{self.base_url}/collective_rpc", json={"method": "load_folder", "args": [str(folder)]}
        )
        if any(result != {"tensors": tensors} for result in answer["results"]):
            raise EngineError(
                f"The vLLM server at {self.base_url} did not find the {tensors} tensors that were written for it: "
                f"a server on a CPU must run on the trainer's machine and see the folder {folder}."
            )

    def adapter_refusal(self, rank: int) -> str | None:
        """Why the server does not take an adapter of this rank alone; None if it does."""
        again = f"start it with `python -m covey.rollout.vllm.serve --model MODEL --max-lora-rank {rank}`"
        if self._lora is None:
            return f"the server at {self.base_url} was started without adapters: {again}"
        if self._lora["max_lora_rank"] < rank:
            return f"the server at {self.base_url} takes ranks up to {self._lora['max_lora_rank']}: {again}"
        if self._replicas > 1:
            return f"only one of the {self._replicas} replicas of the server at {self.base_url} would get it"
        if self._device.type == "cpu" and self._lora["target_modules"] is None:
            return f"on a CPU, vLLM fails with adapters on the output layer (--lora-target-modules): {again}"
        return None

    def load_adapter(self, name: str, folder: Path) -> None:
        """Have the server use an adapter from now on, and drop those that no request uses any more.

        A server that is lost sets `lost`.

        Args:
            name: of the adapter.
            folder: with its weights and config, which the server must be able to read.

        Raises:
            EngineError: it does not take it.
        """
        try:
            self._call("load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
            self._held.append(name)
            self.model, self._synced = name, self.instance
            for old in [one for one in self._held if one != name and not self._requests[one]]:
                self._call("unload_lora_adapter", {"lora_name": old})
                self._held.remove(old)
        except requests.RequestException as error:
            self.lost = f"it did not take the adapter ({type(error).__name__})"

    def drop_adapters(self) -> None:
        """Use the model without an adapter from now on."""
        for name in self._held:
            with suppress(requests.RequestException):
                self._call("unload_lora_adapter", {"lora_name": name})
        self.model, self._held = self.base_model, []

    def _call(self, method: str, payload: dict[str, str]) -> None:
        """Call one of the server's methods for adapters: once, since it answers 500 to an adapter that is refused."""
        answer = requests.post(f"{self.base_url}/v1/{method}", json=payload, headers=dict(self.session.headers))
        self._record_instance(answer)
        if answer.status_code != 200:
            raise EngineError(
                f"The vLLM server at {self.base_url} does not take the adapter ({answer.status_code}, {method}): "
                f"{' '.join(answer.text.split())[:500]}. It must be able to read the trainer's folder "
                f"{payload.get('lora_path', '')}"
            )

    def reset_prefix_cache(self) -> None:
        """Drop the KV cache of the old weights; a lost server has none."""
        if self.lost is None:
            try:
                super().reset_prefix_cache()
            except requests.RequestException as error:
                self.lost = f"it did not reset its prefix cache ({type(error).__name__})"
        if self.lost is None and self.instance != self._synced:
            self.lost = "another server answered in the middle of a sync"

    def generate(self, prompts: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As TRL's; empty, with `lost` set, if the server is lost or a server answered that was not synced."""
        name = self.model
        self._requests[name] += 1
        try:
            output: dict[str, Any] = super().generate(prompts, *args, **kwargs)
        except requests.RequestException as error:
            self.lost = f"it did not answer ({type(error).__name__})"
        except EngineError:  # another server does not know the adapter
            if self.instance == self._synced:
                raise
        else:
            if self.instance == self._synced:
                return output
        finally:
            self._requests[name] -= 1
        self.lost = self.lost or "the completions came from another server, which does not have the weights"
        return {"prompt_ids": [], "completion_ids": [], "logprobs": None, "logprob_token_ids": None}

    def prompt_logps(self, rows: Sequence[Sequence[int]], *, base: bool = False) -> list[list[float]] | None:
        """Log-probabilities of each row's tokens after its first one, by the server's model.

        None, with `lost` set, if the server is lost or a server answered that was not synced.

        Args:
            rows: token ids.
            base: leave out the adapter that the server holds; it need not be synced.
        """
        payload = {
            "model": self.base_model if base else self.model,
            "prompt": [list(row) for row in rows],
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
        }
        try:
            choices = self._post(f"{self.base_url}/v1/completions", json=payload)["choices"]
        except requests.RequestException as error:
            self.lost = f"it did not answer the probe ({type(error).__name__})"
            return None
        if not base and self.instance != self._synced:
            self.lost = "the probe was answered by another server, which does not have the weights"
            return None
        return [
            [float(at[str(token)]["logprob"]) for token, at in zip(row[1:], choice["prompt_logprobs"][1:], strict=True)]
            for row, choice in zip(rows, choices, strict=True)
        ]
