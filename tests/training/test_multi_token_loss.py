"""The loss of modules for multi-token prediction against plain torch that reads each document alone, in float64, with its gradients."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid.batch.step import Step
from pellucid.nn.multi_token import MultiTokenPrediction, stands_alone
from pellucid.nn.transformer import Decoder
from pellucid.training import multi_token_loss, targets
from pellucid.training.balance import Balance
from pellucid.training.criterion import losses
from pellucid.training.loop import initialise
from pellucid.training.multi_token_loss import MultiTokenLoss
from pellucid.training.objectives import IGNORED, Batch, Causal, Document
from pellucid.training.recipe_parts import MultiTokenSettings
from pellucid.training.recompute import Recompute
from pellucid.training.targets import ahead
from pellucid.training.text_objective import packed_batch
from pellucid.watching.watch import watch
from tiny import FAMILIES, swapped
from training import WORDS

V, D, HEADS, WIDTH = 23, 16, 2, 8
CONFIG = c.Config(V, D, (c.Layer(c.Attention(HEADS, 1, WIDTH, c.Rope(WIDTH)), c.Mlp(24)),) * 2)
SETTINGS = MultiTokenSettings(depth=2, weight=0.7)
LONG = Document([], [3, 1, 4, 1, 5, 9, 2, 6])
ANSWERED = Document([], [2, 7, 1, 8, 2, 8, 1], [False, False, False, True, True, False, True])
SHORT, SHORTEST = Document([], [6, 5, 4]), Document([], [9, 8])
DOCUMENTS = [LONG, ANSWERED, SHORTEST, SHORT]


def model_of(cfg: c.Config = CONFIG, depth: int = SETTINGS.depth) -> Decoder:
    """Return a decoder with modules, whose norms are far from 1."""
    model = Decoder(cfg)
    model.multi_token = nn.ModuleList(MultiTokenPrediction(cfg) for _ in range(depth))
    initialise(model, 1, 0.4, 5)
    draw = torch.Generator().manual_seed(6)
    for p in model.parameters():
        if p.ndim == 1:
            p.data += torch.randn(p.shape, generator=draw) * 0.3
    return model.double().requires_grad_()


def rms(x: Tensor, norm: Any) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + CONFIG.eps).sqrt() * norm.weight


def rotated(x: Tensor) -> Tensor:
    """Return heads [T H K] rotated by their positions, the halves of each against each other."""
    angles = torch.arange(len(x), dtype=x.dtype)[:, None] * 10000.0 ** (-torch.arange(0, WIDTH, 2, dtype=x.dtype) / WIDTH)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def block(part: Any, x: Tensor) -> Tensor:
    """A block of CONFIG over the rows [T D] of one document."""
    own = rms(x, part.attn_norm)
    q, k, v = ((own @ w.weight.T).unflatten(-1, (-1, WIDTH)) for w in (part.attn.q, part.attn.k, part.attn.v))
    q, k, v = rotated(q).transpose(0, 1), rotated(k).transpose(0, 1), v.transpose(0, 1)  # one key head for both queries
    scores = q @ k.transpose(1, 2) / WIDTH**0.5
    causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    z = scores.masked_fill(~causal, float("-inf")).softmax(-1) @ v
    x = x + z.transpose(0, 1).flatten(1) @ part.attn.o.weight.T
    own = rms(x, part.ffn_norm)
    hidden = nn.functional.silu(own @ part.ffn.gate.weight.T) * (own @ part.ffn.up.weight.T)
    return x + hidden @ part.ffn.down.weight.T


def by_paper(model: Decoder, documents: list[Document], settings: MultiTokenSettings = SETTINGS) -> tuple[Tensor, list[Tensor]]:
    """Return the loss and the modules' losses, a document and a token at a time. h_i, t_i are of position i, from 0."""
    main, modules = model.embed.weight.new_zeros(()), [model.embed.weight.new_zeros(()) for _ in range(settings.depth)]
    count = sum(i != IGNORED for d in documents for i in d.losses()[1:])
    for d in documents:
        t, learnt = d.target, [i != IGNORED for i in d.losses()]
        h = model.embed.weight[t[:-1]]
        for layer in model.layers:
            h = block(layer, h)
        h = rms(h, model.norm)
        main = main + summed(model, h, t, learnt, 1) / count
        for k, module in enumerate(model.multi_token or (), 1):
            rows = len(t) - k - 1  # of positions i whose token t_{i+k+1} is in the document
            if rows < 1:
                break
            m = torch.cat([module.from_rows.weight, module.from_token.weight], 1)  # type: ignore[list-item, union-attr]
            both = torch.cat([rms(h[:rows], module.hidden_norm), rms(model.embed.weight[t[k : k + rows]], module.token_norm)], -1)
            h = rms(block(module.block, both @ m.T), module.norm)
            modules[k - 1] = modules[k - 1] + summed(model, h, t, learnt, k + 1) / count
    return main + settings.weight / settings.depth * torch.stack(modules).sum(), modules


def summed(model: Decoder, h: Tensor, t: list[int], learnt: list[bool], by: int) -> Tensor:
    """Return the sum of -log P(t_{i+by}) over rows i whose token carries loss."""
    logprobs = (h @ model.head.weight.T).log_softmax(-1)
    rows = [-logprobs[i, t[i + by]] for i in range(len(h)) if i + by < len(t) and learnt[i + by]]
    return torch.stack(rows).sum() if rows else logprobs.sum() * 0


def gradients(model: Decoder, loss: Tensor) -> dict[str, Tensor]:
    """Return the gradient of every parameter by its path."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    every = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {name: p.new_zeros(p.shape) if g is None else g for name, p, g in zip(names, parameters, every, strict=True)}


def ours(model: Decoder, parts: list[Batch]) -> Tensor:
    """Return what a step on these micro-batches differentiates."""
    return torch.stack([part.differentiated for part in losses(MultiTokenLoss(SETTINGS), model, parts, Balance(model, 0.0))]).sum()


def stacked_batch(documents: list[Document]) -> Batch:
    return Causal(WORDS).batch(documents)


def halves(make: Callable[[list[Document]], Batch]) -> Callable[[list[Document]], list[Batch]]:
    return lambda documents: [make(documents[:1]), make(documents[1:])]


@pytest.fixture
def model() -> Decoder:
    return model_of()


LAYOUTS: dict[str, Callable[[list[Document]], list[Batch]]] = {
    "packed": lambda documents: [packed_batch(documents)],
    "padded": lambda documents: [stacked_batch(documents)],
    "packed, two parts": halves(packed_batch),
    "padded, two parts": halves(stacked_batch),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradients_are_the_papers(layout: str, model: Decoder) -> None:
    """However documents share rows and micro-batches: one carries loss in part, one has no token two ahead, one none three ahead."""
    wanted, _ = by_paper(model, DOCUMENTS)
    got = ours(model, LAYOUTS[layout](DOCUMENTS))
    assert abs((got - wanted).item()) < 1e-10
    expected = gradients(model, wanted)
    for name, gradient in gradients(model, got).items():
        assert expected[name].abs().max() > 1e-4, name  # no gradient is 0 in both
        assert torch.allclose(gradient, expected[name], rtol=0, atol=1e-10), name


def mutants() -> Iterator[tuple[str, Any, str, Any]]:
    yield "a token further", multi_token_loss, "ahead", lambda batch, k: ahead(batch, k + 1)
    yield "the row's own token", multi_token_loss, "ahead", lambda batch, k: (batch.inputs[0], ahead(batch, k)[1])
    yield "documents of a row see each other", multi_token_loss, "ahead", across
    yield "norms swapped", MultiTokenPrediction, "forward", norms_swapped
    yield "the rows of the model for each module", MultiTokenPrediction, "forward", from_the_model


def across(batch: Batch, k: int) -> tuple[Tensor, Tensor]:
    """A row as one text: tokens and targets of the next document at a border."""
    tokens = batch.inputs[0]
    return ahead(Batch((tokens, Step.plain(tokens)), batch.targets), k)


forward = MultiTokenPrediction.forward


def norms_swapped(self: Any, *given: Any) -> Any:
    self.hidden_norm, self.token_norm = self.token_norm, self.hidden_norm
    try:
        return forward(self, *given)
    finally:
        self.hidden_norm, self.token_norm = self.token_norm, self.hidden_norm


def from_the_model(self: Any, model: Decoder, x: Tensor, following: Tensor, step: Step) -> Any:
    assert step.last is not None
    return forward(self, model, step.last, following, step)


@pytest.mark.parametrize("mutant", list(mutants()), ids=lambda mutant: mutant[0])
def test_mutants_have_another_loss(mutant: tuple[str, Any, str, Any], model: Decoder) -> None:
    wanted, _ = by_paper(model, DOCUMENTS)
    with swapped(*mutant[1:]):
        assert abs((ours(model, [packed_batch(DOCUMENTS)]) - wanted).item()) > 1e-4


def test_tokens_and_targets_stay_within_a_document() -> None:
    """The picture in training/multi_token_loss.py."""
    a, b, c_, d, e, f, g, h = range(8)
    batch = packed_batch([Document([], [a, b, c_, d, e]), Document([], [f, g, h])])
    following, wanted = ahead(batch, 1)
    assert following.tolist() == [[b, c_, d, d, g, g]]
    assert wanted.tolist() == [[c_, d, e, IGNORED, h, IGNORED]]
    following, wanted = ahead(batch, 3)
    assert following.tolist() == [[d, d, d, d, g, g]] and wanted.tolist() == [[e, *[IGNORED] * 5]]


def test_the_figures_are_the_modules_losses(model: Decoder) -> None:
    """Each by its path, in parts of a step as in one; the loss itself is the model's own, with and without modules."""
    _, modules = by_paper(model, DOCUMENTS)
    parts = list(losses(MultiTokenLoss(SETTINGS), model, [packed_batch(DOCUMENTS[:1]), packed_batch(DOCUMENTS[1:])], Balance(model, 0.0)))
    for k, wanted in enumerate(modules):
        assert sum(part.figures[f"multi_token.{k}"] for part in parts) == pytest.approx(wanted.item(), abs=1e-10)
    alone = MultiTokenLoss(SETTINGS, 0.0).judge(model, packed_batch(DOCUMENTS)).loss.item()
    assert sum(part.loss.item() for part in parts) == pytest.approx(alone, abs=1e-10)
    model.multi_token = None
    assert MultiTokenLoss(SETTINGS, 0.0).judge(model, packed_batch(DOCUMENTS)).loss.item() == alone


def test_a_watch_names_each_modules_tensors(model: Decoder) -> None:
    """With the parts of its loss; watching changes no number."""
    batch = packed_batch(DOCUMENTS)
    plain = ours(model, [batch])
    with watch(model, inside="beside") as seen:
        watched = ours(model, [batch])
    assert torch.equal(plain, watched)
    for name in ("following", "joined", "block.out", "norm", "logits"):
        assert len(seen.all(f"multi_token.1.{name}")) == len(DOCUMENTS)
    assert float(seen["multi_token.0.loss.tokens"].value.sum()) / 13 == pytest.approx(by_paper(model, DOCUMENTS)[1][0].item(), abs=1e-10)


def test_recomputation_changes_no_bit(model: Decoder) -> None:
    batch = packed_batch(DOCUMENTS)
    plain = gradients(model, ours(model, [batch]))
    Recompute(model, True)
    again = gradients(model, ours(model, [batch]))
    assert all(torch.equal(g, again[name]) for name, g in plain.items())


def test_experts_of_a_module_are_counted_for_its_own_rows() -> None:
    """Rows at a document's end have no token so far ahead: the loads of its router are those of the others."""
    model = model_of(FAMILIES["deepseek_v3"], 1)
    balance, batch = Balance(model, 0.1), packed_batch([LONG, SHORT])
    list(losses(MultiTokenLoss(MultiTokenSettings()), model, [batch], balance))
    sums = {path: int(load.sum()) for path, load in balance.loads.items()}
    chosen = FAMILIES["deepseek_v3"].layers[-1].ffn.chosen  # type: ignore[union-attr]
    assert sums.pop("multi_token.0.block.ffn") == (6 + 1) * chosen and set(sums.values()) == {(7 + 2) * chosen}
    assert targets.real_rows(batch, "multi_token.0.block.ffn").sum() == 7


def test_models_whose_last_block_needs_others_have_none() -> None:
    """Every decoder but those whose blocks share something; an encoder-decoder has none."""
    alone = {name for name, cfg in FAMILIES.items() if stands_alone(cfg)}
    assert alone == set(FAMILIES) - {"t5"}
