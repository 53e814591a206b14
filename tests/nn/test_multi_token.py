"""The module that predicts two tokens ahead, against the paper's equations with one matrix over both parts, in float64."""

import pytest
import torch
from torch import Tensor

from pellucid.api.count import described
from pellucid.batch.step import Step
from pellucid.nn.multi_token import MultiTokenPrediction
from pellucid.nn.transformer import Decoder
from pellucid.watching.meta import META
from pellucid.watching.watch import watch
from tiny import FAMILIES, ids, tiny

T = 6


def module_of(model: Decoder) -> MultiTokenPrediction:
    draw = torch.Generator().manual_seed(1)
    own = MultiTokenPrediction(model.config)
    for p in own.parameters():
        p.data = torch.randn(p.shape, generator=draw, dtype=torch.float64)
    return own.requires_grad_(False)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def by_equation(model: Decoder, own: MultiTokenPrediction, x: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
    """M [RMSNorm(h); RMSNorm(Emb(t))], a block, a norm, and the shared head: equations 21 to 23. Returns rows and logits."""
    eps = model.config.eps
    both = torch.cat([rms(x, own.hidden_norm.weight, eps), rms(model.embed.weight[following], own.token_norm.weight, eps)], -1)
    joined = both @ torch.cat([own.from_rows.weight, own.from_token.weight], -1).T
    rows = rms(own.block(joined, Step.plain(following)), own.norm.weight, eps)
    return rows, rows @ model.head.weight.T


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_it_is_the_papers(family: str) -> None:
    model = tiny(FAMILIES[family])
    assert isinstance(model, Decoder)
    own, tokens = module_of(model), ids(2, T + 1)
    with torch.no_grad():
        x = model.embed(tokens[:, :-1])
        got = own(model, x, tokens[:, 1:], Step.plain(tokens[:, :-1]))
        for one, wanted in zip(got, by_equation(model, own, x, tokens[:, 1:]), strict=True):
            assert torch.allclose(one, wanted, atol=1e-10)
        wrong = by_equation(model, own, x, tokens[:, :-1])  # the mutant: the row's own token is fed
        assert not torch.allclose(got[1], wrong[1], atol=1e-3)
        own.hidden_norm, own.token_norm = own.token_norm, own.hidden_norm  # the mutant: norms swapped
        assert not torch.allclose(got[1], own(model, x, tokens[:, 1:], Step.plain(tokens[:, :-1]))[1], atol=1e-3)


def test_the_token_fed_is_recorded() -> None:
    model = tiny(FAMILIES["llama"])
    assert isinstance(model, Decoder)
    own, tokens = module_of(model), ids(1, T + 1)
    with torch.no_grad(), watch(own) as seen:
        own(model, model.embed(tokens[:, :-1]), tokens[:, 1:], Step.plain(tokens[:, :-1]))
    assert torch.equal(seen["following"].value, model.embed(tokens[:, 1:]).detach())
    assert torch.equal(seen["joined"].value, seen["from_rows"].value + seen["from_token"].value)


def test_the_published_count() -> None:
    """DeepSeek-V3's module has 11,610,067,968 parameters beside the table and the head, which it shares."""
    with META:
        own = MultiTokenPrediction(described("deepseek-v3")[1])
    assert sum(p.numel() for p in own.parameters()) == 11_610_067_968
