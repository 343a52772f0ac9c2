"""Attention over a prompt and a completion's own tokens, against one softmax over both."""

from __future__ import annotations

import pytest
import torch

from covey.rollout.local.cache import Order, Part, split_attention

P, H, GROUPED, D, L, OWN = 3, 2, 4, 8, 7, 5
PROMPT_OF = [2, 0, 0, 2, 2]  # prompt 1 has no rows
SCALING = 0.31


def made(lengths: list[int], starts: list[int]) -> tuple[torch.Tensor, Part, Part, Order]:
    """Random states; prompt p has `lengths[p]` tokens, right-aligned, and row b's own tokens begin at `starts[b]`."""
    generator = torch.Generator().manual_seed(5)
    b = len(PROMPT_OF)

    def states(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 2

    hidden_PL = torch.arange(L) < (L - torch.tensor(lengths))[:, None]
    hidden_bt = torch.arange(OWN) < torch.tensor(starts)[:, None]
    bias_PL = torch.zeros(P, L).masked_fill(hidden_PL, -torch.inf)
    some = bool(hidden_PL.any() or hidden_bt.any())
    prompts = Part(states(P, H, L, D), states(P, H, L, D), bias_PL[PROMPT_OF][:, None] if some else None)
    completion_bias = torch.zeros(b, OWN).masked_fill(hidden_bt, -torch.inf)[:, None]
    completions = Part(states(b, H, OWN, D), states(b, H, OWN, D), completion_bias if some else None)
    places: list[list[int]] = [[row for row in range(b) if PROMPT_OF[row] == p] for p in range(P)]
    most = max(map(len, places))
    slots = [row * H + h for p in range(P) for h in range(H) for row in places[p] + [0] * (most - len(places[p]))]
    seat = [places[p].index(row) for row, p in enumerate(PROMPT_OF)]
    back = [(p * H + h) * most + seat[row] for row, p in enumerate(PROMPT_OF) for h in range(H)]
    order = Order(torch.tensor(slots), torch.tensor(back))
    return states(b, H, GROUPED, D), prompts, completions, order


def plain(query: torch.Tensor, prompts: Part, completions: Part, lengths: list[int], starts: list[int]) -> torch.Tensor:
    """Row by row and head by head, in double precision."""
    found = torch.empty_like(query)
    for row, p in enumerate(PROMPT_OF):
        for h in range(H):
            seen = slice(L - lengths[p], None), slice(starts[row], None)
            keys = torch.cat([prompts.keys[p, h, seen[0]], completions.keys[row, h, seen[1]]]).double()
            values = torch.cat([prompts.values[p, h, seen[0]], completions.values[row, h, seen[1]]]).double()
            shares = (query[row, h].double() @ keys.T * SCALING).softmax(-1)
            found[row, h] = (shares @ values).float()
    return found


@pytest.mark.parametrize(
    ("lengths", "starts"), [([L] * P, [0] * 5), ([L, 2, 3], [0] * 5), ([4, 5, L], [0, 2, 4, 1, 0])]
)
def test_split_attention_is_one_softmax_over_both_parts(lengths: list[int], starts: list[int]) -> None:
    query, prompts, completions, order = made(lengths, starts)
    right = plain(query, prompts, completions, lengths, starts)
    torch.testing.assert_close(
        split_attention(query, SCALING, prompts, completions, order), right, rtol=1e-5, atol=1e-6
    )


def test_without_prompt_tokens_only_own_tokens_count() -> None:
    query, prompts, completions, order = made([L] * P, [0, 2, 4, 1, 0])
    nothing = Part(
        prompts.keys[:, :, :0], prompts.values[:, :, :0], prompts.bias[:, :, :0] if prompts.bias is not None else None
    )
    right = plain(query, prompts, completions, [0] * P, [0, 2, 4, 1, 0])
    torch.testing.assert_close(
        split_attention(query, SCALING, nothing, completions, order), right, rtol=1e-5, atol=1e-6
    )
