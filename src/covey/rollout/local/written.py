"""What the rows of a call of `sample` have written: tokens, their log-probabilities, and their supports."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from covey.model.device import on_device
from covey.rollout.engine import Completion
from covey.rollout.local.supports import Supports
from covey.rollout.local.token_sampling import SampledTokens


class Written:
    """The tokens of all rows on the device: prompts, right-aligned, then completions."""

    def __init__(
        self,
        prompt_ids: Sequence[Sequence[int]],
        max_completion_length: int,
        pad_token_id: int,
        device: torch.device,
        *,
        logps: bool,
    ) -> None:
        """
        Args:
            prompt_ids: of the rows.
            max_completion_length: most tokens of a completion.
            pad_token_id: stands before shorter prompts.
            device: of the model.
            logps: whether there are log-probabilities.
        """
        self._pad = pad_token_id
        self._device = device
        self._longest = max(map(len, prompt_ids), default=0)
        shape = (len(prompt_ids), self._longest + max_completion_length)
        sequences = torch.full(shape, pad_token_id, dtype=torch.long)
        for row, ids in enumerate(prompt_ids):
            sequences[row, self._longest - len(ids) : self._longest] = torch.tensor(ids)
        self._sequences = on_device(sequences, device)
        self._logps = torch.zeros(shape, device=device) if logps else None
        self.supports = Supports(len(prompt_ids))

    def put(self, rows_b: torch.Tensor, counts: torch.Tensor | int, sampled: SampledTokens) -> None:
        """Append a token to each of these rows.

        Args:
            counts: tokens of their completions so far.
            sampled: their tokens.
        """
        columns = self._longest + counts
        self._sequences[rows_b, columns] = sampled.tokens_b
        if self._logps is not None and sampled.logps_b is not None:
            self._logps[rows_b, columns] = sampled.logps_b

    def so_far(
        self, rows_b: torch.Tensor, width: int, most: int, starts_b: torch.Tensor, behind_b: torch.Tensor | None
    ) -> torch.Tensor:
        """The tokens of these rows, padded on the left: `[b, width]`.

        Args:
            width: tokens of the longest one.
            most: tokens of the longest completion of them.
            starts_b: where each row's tokens begin.
            behind_b: how many tokens each row's completion has less than that; None means none.
        """
        end = self._longest + most
        if behind_b is None:
            return self._sequences[rows_b, end - width : end]
        columns_bS = torch.arange(end - width, end, device=self._device) - behind_b[:, None]
        found_bS = self._sequences[rows_b[:, None], columns_bS.clamp(min=0)]
        padding_bS = torch.arange(width, device=self._device) < starts_b[:, None]
        return found_bS.masked_fill(padding_bS, self._pad)

    def read(
        self, rows: Sequence[int], lengths: Sequence[int], limits: Sequence[int], eos_token_ids: Collection[int]
    ) -> list[Completion]:
        """The completions of these rows, each up to its first end-of-sequence token. The host waits for the device.

        Args:
            lengths: tokens of their completions, perhaps with some after the end.
            limits: most tokens of each; one without an end and with fewer is unfinished.
            eos_token_ids: tokens that end a completion.
        """
        if not rows:
            return []
        rows_b = on_device(rows, self._device)
        columns = slice(self._longest, self._longest + max(lengths))
        completions = self._sequences[rows_b, columns].tolist()
        logps = None if self._logps is None else self._logps[rows_b, columns].tolist()
        eos, found = set(eos_token_ids), []
        for place, (row, ids, length, limit) in enumerate(zip(rows, completions, lengths, limits, strict=True)):
            end = next((count for count, token in enumerate(ids[:length], start=1) if token in eos), None)
            kept = slice(length if end is None else end)
            found.append(
                Completion(
                    ids[kept],
                    truncated=end is None and length == limit,
                    logps=None if logps is None else logps[place][kept],
                    support=self.supports.read(row, length if end is None else end),
                    unfinished=end is None and length < limit,
                )
            )
        return found
