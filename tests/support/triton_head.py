"""TRL's fused head by Triton's interpreter, beside the same computed densely: run with TRITON_INTERPRET=1.

Prints a line of JSON per case: the largest differences of log-probs, entropies and gradients.
"""

from __future__ import annotations

import json

import torch
import trl.kernels.chunked_logprob as head

from covey.training.trl.restricted_head import NEVER

TOKENS, HIDDEN, VOCABULARY, COPIES = 7, 16, 2500, 500
TEMPERATURE = 0.9


def main() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(TOKENS, HIDDEN), torch.randn(VOCABULARY, HIDDEN)
    targets = torch.randint(0, VOCABULARY - COPIES, (TOKENS,))
    masked = torch.zeros(VOCABULARY)
    masked[-COPIES:] = NEVER
    head._use_triton = lambda device: True
    for case, bias in (("no bias", None), ("reasoning vocabulary", masked)):
        found, wanted = fused(hidden, weight, bias, targets), dense(hidden, weight, bias, targets)
        names = ("log-probs", "entropy", "gradient of hidden", "gradient of weight")
        gaps = {
            name: float((a - b).abs().max() / max(1.0, float(b.abs().max())))
            for name, a, b in zip(names, found, wanted, strict=True)
        }
        print(json.dumps({"case": case, "kernel": type(head._forward_kernel).__name__, **gaps}))


def fused(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor
) -> list[torch.Tensor]:
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    outputs = ("log_probs", "entropy")
    logps, entropy, *_ = head.ChunkedLogProbFunction.apply(
        hidden, weight, bias, targets, TEMPERATURE, 1024, None, 1.0, outputs
    )
    return graded(logps, entropy, hidden, weight)


def dense(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor
) -> list[torch.Tensor]:
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    logps = (torch.nn.functional.linear(hidden, weight, bias) / TEMPERATURE).log_softmax(-1)
    entropy = -(logps.exp() * logps).sum(-1)
    return graded(logps.gather(1, targets[:, None]).squeeze(1), entropy, hidden, weight)


def graded(
    logps: torch.Tensor, entropy: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor
) -> list[torch.Tensor]:
    (logps.sum() + 0.1 * entropy.sum()).backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return [logps.detach(), entropy.detach(), hidden.grad, weight.grad]


if __name__ == "__main__":
    main()
