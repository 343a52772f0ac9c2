"""Scores over a support, a repetition penalty and a reasoning vocabulary against all logits in float64."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Gemma3ForCausalLM, Gemma3TextConfig
from trl.trainer.utils import add_fused_lm_head

from covey.errors import TrainingError
from covey.training.scoring import ScoredRows, SharedScoring
from covey.training.trl import restricted_head
from covey.training.trl.restricted_head import RestrictedHead
from scored import ARCHITECTURES, gradients, make_rows, plain

V, TEMPERATURE, PENALTY = 61, 0.7, 1.3
CAPPED = "gemma3, capped"


def make(name: str, dtype: torch.dtype = torch.float32, *, cast: bool = False) -> Any:
    torch.manual_seed(0)
    if name == CAPPED:
        template = ARCHITECTURES["gemma3"]().config.to_dict()
        model: Any = Gemma3ForCausalLM(Gemma3TextConfig(**{**template, "final_logit_softcapping": 3.0}))
    else:
        model = ARCHITECTURES[name]()
    model = model.to(dtype)
    add_fused_lm_head(model, TEMPERATURE, outputs=("log_probs", "entropy"), cast_lm_head_to_fp32=cast)
    return model.train()


def make_support(rows: Any, *, width: int = 6) -> torch.Tensor:
    """The sampled token and up to five others in each place; in every fifth place, none."""
    ids, _, length = rows
    generator = torch.Generator().manual_seed(5)
    found = torch.full((len(ids), length, width), -1, dtype=torch.int32)
    for row in range(len(ids)):
        for place in range(length):
            if (row + place) % 5 == 4:
                continue
            target = int(ids[row, place - length])
            others = [token for token in torch.randperm(V, generator=generator).tolist() if token != target]
            kept = [target, *others[: (row + 2 * place) % width]]
            order = torch.randperm(len(kept), generator=generator)
            found[row, place, : len(kept)] = torch.tensor(kept)[order].int()
    return found


def by_definition(model: Any, rows: Any, support: torch.Tensor | None, penalty: float) -> Any:
    """From all of the model's logits in float64: penalty, temperature, restriction, log-softmax."""
    ids, mask, length = rows
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits.double()
    logps, entropies = torch.zeros(len(ids), length).double(), torch.zeros(len(ids), length).double()
    for row in range(len(ids)):
        for place in range(length):
            column = ids.shape[1] - length + place
            if not mask[row, column]:
                continue
            one = logits[row, column - 1]
            seen = torch.zeros(V, dtype=torch.bool)
            seen[ids[row, :column][mask[row, :column].bool()]] = True
            one = torch.where(seen, torch.where(one < 0, one * penalty, one / penalty), one) / TEMPERATURE
            kept = [] if support is None else [token for token in support[row, place].tolist() if token >= 0]
            among = one[kept] if kept else one
            found = among.log_softmax(0)
            logps[row, place] = one[ids[row, column]] - among.logsumexp(0)
            entropies[row, place] = -(found.exp() * found).sum()
    return logps, entropies


def scored(model: Any, rows: Any, support: torch.Tensor | None, penalty: float, *, packed: bool, size: int = 3) -> Any:
    ids, mask, length = rows
    head, sampled = RestrictedHead(None), ScoredRows(ids, mask, length, support, penalty)
    if packed:
        found: Any = SharedScoring().score(
            model,
            *rows,
            rows_per_forward=size,
            compute_entropy=True,
            restricted=lambda number: head.over(sampled, number),
        )
        assert found is not None
        return found
    with head.over(sampled, size):
        return plain(model, *rows, batch_size=size)


def counted(scores: Any, rows: Any) -> Any:
    mask = rows[1][:, -rows[2] :]
    return scores[0] * mask, scores[1] * mask


def assert_equal_scores(model: Any, exact: Any, rows: Any, support: Any, penalty: float, *, packed: bool) -> None:
    expected = by_definition(exact, rows, support, penalty)
    right = gradients(exact, expected)
    found = counted(scored(model, rows, support, penalty, packed=packed), rows)
    torch.testing.assert_close(found[0].double(), expected[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1].double(), expected[1], rtol=0, atol=1e-5)
    got = gradients(model, found)
    assert got.keys() == right.keys()
    scale = max(float(one.norm()) for one in right.values())
    for name, one in right.items():
        assert float((got[name] - one).norm()) <= 1e-4 * max(float(one.norm()), 1e-2 * scale), name


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("how", ["support", "support and penalty", "penalty"])
@pytest.mark.parametrize("name", [*ARCHITECTURES, CAPPED])
def test_scores_and_gradients_are_those_of_all_logits(
    name: str, how: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restricted_head, "LOGITS", 4 * V)  # several parts
    model = make(name)
    exact = make(name).double()
    rows = make_rows()
    support = make_support(rows) if "support" in how else None
    assert_equal_scores(model, exact, rows, support, PENALTY if "penalty" in how else 1.0, packed=packed)


@pytest.mark.parametrize("packed", [False, True])
def test_adapters_with_gradient_checkpointing(packed: bool) -> None:
    def with_adapters() -> Any:
        base = make("qwen3")
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model: Any = get_peft_model(base, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
        model.enable_input_require_grads()
        return model.train()

    rows = make_rows()
    model, exact = with_adapters(), with_adapters()
    exact.load_state_dict(model.state_dict())
    assert_equal_scores(model, exact.double(), rows, make_support(rows), PENALTY, packed=packed)


@pytest.mark.parametrize("penalty", [1.0, PENALTY])
def test_a_head_in_float32_on_a_model_in_bfloat16(penalty: float) -> None:
    rows = make_rows()
    support = make_support(rows)
    model = make("llama", torch.bfloat16, cast=True)
    bare = make("llama", torch.bfloat16)
    with torch.no_grad():
        found = counted(scored(model, rows, support, penalty, packed=False), rows)
        rough = counted(scored(bare, rows, support, penalty, packed=False), rows)
        hidden = model.base_model(input_ids=rows[0], attention_mask=rows[1]).last_hidden_state
        head = copy.deepcopy(model.lm_head).double()
        fake: Any = lambda **_: SimpleNamespace(logits=head(hidden.double()))  # noqa: E731
        expected = by_definition(fake, rows, support, penalty)
    torch.testing.assert_close(found[0].double(), expected[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1].double(), expected[1], rtol=0, atol=1e-5)
    assert 1e-4 < float((rough[0] - expected[0]).abs().max()) < 0.2


def test_only_the_rows_of_kept_tokens_are_multiplied() -> None:
    rows = make_rows()
    support = torch.where(make_support(rows)[..., :1] >= 0, rows[0][:, -rows[2] :, None] % 7, -1).int()
    support = torch.cat([support, rows[0][:, -rows[2] :, None].int()], -1)  # every place has one
    model, sizes = make("llama"), []
    linear = torch.nn.functional.linear

    def watched(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        sizes.append(len(weight))
        return linear(x, weight, bias)

    used = len(set(rows[0][:, -rows[2] :][rows[1][:, -rows[2] :].bool()].tolist()) | set(range(7)))
    assert used < V
    head = RestrictedHead(None)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        hidden = torch.randn(len(rows[0]) * (rows[0].shape[1] - 1), 32)
        with head.over(ScoredRows(*rows, support), len(rows[0])):
            patch.setattr(torch.nn.functional, "linear", watched)
            function: Any = restricted_head._TRL._ChunkedLogProbFunction
            targets = rows[0][:, 1:].flatten()
            function.apply(hidden, model.lm_head.weight, None, targets, 1.0, 8192, None, 1.0, ("log_probs",))
    assert sizes
    assert max(sizes) <= used


def test_very_low_logits_count_above_what_is_no_candidate() -> None:
    """As at a temperature near 0, of a model whose logits are all negative."""
    model = make("llama")
    rows = make_rows()
    support = make_support(rows)
    whole = scored(model, rows, support, 1.0, packed=False)[0]
    model.get_output_embeddings().bias = torch.nn.Parameter(torch.full((V,), -1e5))
    shifted = scored(model, rows, support, 1.0, packed=False)[0]
    has = (support >= 0).any(-1) & rows[1][:, -rows[2] :].bool()
    torch.testing.assert_close(shifted[has], whole[has], rtol=0, atol=0.05)


def test_rows_without_any_scored_token_give_a_differentiable_zero() -> None:
    ids, mask, length = make_rows()
    mask = mask.clone()
    mask[:, -length:] = 0
    model = make("llama")
    found = scored(model, (ids, mask, length), make_support((ids, mask, length)), PENALTY, packed=False)
    (found[0].sum() + found[1].sum()).backward()
    assert not found[0].any()


def test_measuring_gives_the_log_probs_over_all_tokens() -> None:
    rows = make_rows()
    support = make_support(rows)
    model, head = make("llama"), RestrictedHead(None)
    sampled = ScoredRows(*rows, support)
    with torch.no_grad():
        full = counted(scored(model, rows, None, 1.0, packed=True), rows)[0]
        kept = counted(scored(model, rows, support, 1.0, packed=True), rows)[0]
        with head.measuring() as found:
            again = SharedScoring().score(model, *rows, restricted=lambda size: head.over(sampled, size))
    assert again is not None
    torch.testing.assert_close(again[0], kept, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.cat(found), full[rows[1][:, -rows[2] :].bool()], rtol=0, atol=4e-6)
    assert float((kept - full).max()) > 0.5
    assert float((kept - full).min()) > -1e-6  # a token is likelier among fewer


def test_rows_divided_within_a_process_are_refused() -> None:
    rows = make_rows()
    with RestrictedHead(None).over(ScoredRows(*rows, make_support(rows)), len(rows[0])):
        function: Any = restricted_head._TRL._ChunkedLogProbFunction
        values = torch.zeros(5, 4), torch.zeros(V, 4), None, torch.zeros(5), 1.0, 8, None, 1.0, ("log_probs",)
        with pytest.raises(TrainingError, match="Start one process per GPU"):
            function.apply(*values)


def head_by_definition(hidden: Any, weight: Any, bias: Any, targets: Any, factor: float) -> tuple[Any, Any]:
    logits = torch.nn.functional.linear(hidden, weight, bias) * factor
    logps = logits.log_softmax(-1)
    return logps.gather(1, targets[:, None])[:, 0], -(logps.exp() * logps).sum(-1)


@pytest.mark.parametrize(("of_logps", "of_entropy"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("temperature", "scale"), [(1.0, 1.0), (0.7, 1.0), (1.0, 0.5)])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "computed-again"])
def test_the_head_on_a_cpu_is_no_worse_than_trls(
    monkeypatch: pytest.MonkeyPatch,
    kept: bool,
    temperature: float,
    scale: float,
    has_bias: bool,
    of_logps: bool,
    of_entropy: bool,
) -> None:
    """Values and gradients against all logits in float64, in several parts: at most three times TRL's error."""
    monkeypatch.setattr(restricted_head, "KEPT", 2**25 if kept else 0)
    monkeypatch.setattr(restricted_head, "LOGITS", 4 * 301)  # eight positions at a time
    monkeypatch.setattr(restricted_head, "_CACHED", 3 * 301)
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(*shape, generator=generator) for shape in ((29, 16), (301, 16), (301,))]
    targets = torch.randint(0, 301, (29,), generator=generator)
    targets[3] = targets[4]
    weights = [torch.randn(29, generator=generator) * wanted for wanted in (of_logps, of_entropy)]
    trls = restricted_head._TRL._ChunkedLogProbFunction
    rest = (temperature, 128, None, scale, ("log_probs", "entropy"))
    found = []
    for function, dtype in ((None, torch.float64), (trls, torch.float32), (True, torch.float32)):
        hidden, weight, bias = (one.to(dtype, copy=True).requires_grad_() for one in made)
        bias = bias if has_bias else None
        if function is None:
            outputs = head_by_definition(hidden, weight, bias, targets, scale / temperature)
        else:
            ours: Any = restricted_head.LogProbs
            outputs = (trls if function is trls else ours).apply(hidden, weight, bias, targets, *rest)[:2]
        used = [(one * by.to(dtype)).sum() for one, by in zip(outputs, weights, strict=True) if by.any()]
        torch.stack(used).sum().backward()
        found.append([one.detach().double() for one in (*outputs, hidden.grad, weight.grad)])
        found[-1] += [] if bias is None else [bias.grad.double()]
    for right, by_trl, own in zip(*found, strict=True):
        assert float((own - right).abs().max()) <= 3 * float((by_trl - right).abs().max()) + 1e-6


@pytest.mark.parametrize(
    "changed",
    [{"dtype": torch.bfloat16}, {"softcap": 3.0}, {"outputs": ("log_probs", "entropy", "is_top1")}, {"cast": True}],
)
def test_what_the_head_on_a_cpu_is_not_for_is_computed_by_trl(changed: dict[str, Any]) -> None:
    trls, found = restricted_head._TRL._ChunkedLogProbFunction, []
    for function in (trls, restricted_head.LogProbs):
        generator = torch.Generator().manual_seed(3)
        made = [torch.randn(*shape, generator=generator) for shape in ((9, 16), (301, 16))]
        hidden, weight = (one.to(changed.get("dtype", torch.float32)).requires_grad_() for one in made)
        rest = (0.7, 128, changed.get("softcap"), 1.0, changed.get("outputs", ("log_probs",)))
        with torch.autocast("cpu", enabled="cast" in changed):
            outputs = function.apply(hidden, weight, None, torch.arange(9), *rest)
        outputs[0].sum().backward()
        found.append([*(one for one in outputs if one is not None), hidden.grad, weight.grad])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_the_plain_path_has_trls_numbers_to_the_last_bit() -> None:
    model, rows = make("llama"), make_rows()
    ids, mask, length = rows
    with RestrictedHead(None).over(ScoredRows(ids, mask, length), len(ids), exact=True):
        assert restricted_head._TRL._ChunkedLogProbFunction is not restricted_head.LogProbs
        found = plain(model, *rows)
    assert torch.equal(found[0], plain(model, *rows)[0])
