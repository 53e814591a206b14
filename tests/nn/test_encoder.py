"""Bidirectional encoders with two kinds of tokens, with and without a head, equal transformers' BERT in float64."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from judge import judge, promoted
from pellucid import watch
from pellucid.api.model import Model, load
from pellucid.batch.step import Step
from pellucid.config import Config
from pellucid.errors import CheckpointError, ConfigError, UseError
from pellucid.families import understand
from pellucid.nn import transformer
from pellucid.nn.attention import causal
from pellucid.nn.block import Block, PostBlock
from pellucid.nn.transformer import Encoder, Stack
from tiny import swapped, without

EXACT = 1e-9
IDS = torch.randint(97, (3, 19), generator=torch.Generator().manual_seed(3))
TYPES = (torch.arange(19) > torch.tensor([[4], [9], [17]])).long()
PADDING = (torch.arange(19) < torch.tensor([[19], [7], [1]])).long()
REAL = PADDING.bool()


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Return a folder as sentence encoders are published: no head, no prefix, a pooler."""
    bert = transformers.BertModel(judge("bert").hf.config).double()
    bert.load_state_dict(judge("bert").hf.bert.state_dict(), strict=False)
    bert.save_pretrained(tmp_path / "rows")
    return tmp_path / "rows"


def respelled(folder: Path, to: Path, change: Any, **config: Any) -> Path:
    """Return a copy of a folder with its tensors changed by `change` and other fields in its config.json."""
    shutil.copytree(folder, to)
    save_file(change(load_file(folder / "model.safetensors")), to / "model.safetensors")
    raw = json.loads((to / "config.json").read_text()) | config
    (to / "config.json").write_text(json.dumps(raw))
    return to


def far(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return (a - b).abs().max().item()


def their_rows(**how: Tensor) -> Tensor:
    """Return transformers' last rows of IDS, [B T D] in float64."""
    with promoted():
        return judge("bert").hf.bert(input_ids=IDS, **how).last_hidden_state  # type: ignore[no-any-return]


def off(model: Model) -> float:
    """Return how far a folder's rows are from transformers', for padded texts with two kinds of tokens."""
    theirs = their_rows(attention_mask=PADDING, token_type_ids=TYPES)
    return far(model(IDS, types=TYPES, padding=PADDING)[REAL], theirs[REAL])


def test_rows_of_a_model_without_a_head(rows: Path) -> None:
    model = load(rows, dtype="float64")
    assert isinstance(model.module, Encoder) and not model.config.head and model.module.head is None
    assert model.left == () and model.config.pooler and model.module.pooler.weight.shape == (32, 32)
    assert model(IDS).shape == (3, 19, 32)
    assert far(model(IDS), their_rows()) < EXACT
    assert off(model) < EXACT
    assert far(model(IDS, types=TYPES), their_rows(token_type_ids=TYPES)) < EXACT
    for other in (model(IDS), model(IDS, types=TYPES), model(IDS, padding=PADDING)):
        assert far(other[REAL], model(IDS, types=TYPES, padding=PADDING)[REAL]) > 1e-3


def test_the_pooler_reads_each_first_row(rows: Path) -> None:
    """The pooler's output is transformers' for a batch and for texts end to end."""
    model = load(rows, dtype="float64")
    other = transformers.BertModel.from_pretrained(rows).double()
    with promoted():
        wanted = other(input_ids=IDS).pooler_output
    assert model.num_parameters() == sum(p.numel() for p in other.parameters())
    with watch(model.module) as seen:
        model(IDS)
    assert seen["pooled"].dims == "N D" and far(seen["pooled"].value, wanted) < EXACT
    with watch(model.module) as packed:
        model.module(IDS.reshape(1, -1), Step.packed([19, 19, 19]))
    assert far(torch.cat([s.value for s in packed.all("pooled")]), wanted) < EXACT  # a record each
    with watch(model.module, request=1) as one:
        model(IDS)
    assert far(one["pooled"].value, wanted[1:2]) < EXACT
    assert set(seen["pooler"].weights) == {"pooler.weight", "pooler.bias"}
    right = transformer.Decoder.pool
    with swapped(transformer.Decoder, "pool", lambda self, x, step, pooler: right(self, x.flip(1), step, pooler)):
        again = load(rows, dtype="float64")
        with watch(again.module) as last:
            again(IDS)
    assert far(last["pooled"].value, wanted) > 1e-3


def test_a_model_without_a_pooler(rows: Path, tmp_path: Path) -> None:
    """A file without a pooler gives a model without one, where transformers makes one."""
    bare = respelled(rows, tmp_path / "bare", lambda t: {n: x for n, x in t.items() if "pooler" not in n})
    model = load(bare, dtype="float64")
    assert not model.config.pooler and model.module.pooler is None and off(model) < EXACT


def test_padding_changes_nothing(rows: Path) -> None:
    """A row's real tokens give what they give alone."""
    model = load(rows, dtype="float64")
    padded = model(IDS, padding=PADDING, types=TYPES)
    for row, (ids, types, real) in enumerate(zip(IDS, TYPES, REAL, strict=True)):
        assert far(padded[row : row + 1, real], model(ids[None, real], types=types[None, real])) < EXACT


MUTANTS = {
    "causal": (transformer.Encoder, "forward", lambda self, x, step: blinded(self, x, step)),
    "no types": without(Stack, "types"),
    "no embedding norm": without(Stack, "embed_norm"),
    "no positions": (Step, "position_ids", property(lambda self: self.positions * 0)),
    "norm before": (PostBlock, "sum", Block.sum),
}


def blinded(self: Encoder, x: Tensor, step: Step) -> Tensor:
    step.mask = causal
    return transformer.Decoder.forward(self, x, step)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_of_rows(rows: Path, mutant: str) -> None:
    with swapped(*MUTANTS[mutant]):
        assert off(load(rows, dtype="float64")) > 1e-3


# What is stored decides whether there is a head


def test_what_is_stored_decides(rows: Path, tmp_path: Path) -> None:
    """Stored tensors decide whatever config.json's class: with and without the prefix, in TensorFlow's spelling, with one more head."""
    folder = judge("bert").folder
    headless = respelled(folder, tmp_path / "a", lambda t: {n: x for n, x in t.items() if not n.startswith("cls.")})
    assert not load(headless, "float64").config.head and off(load(headless, "float64")) < EXACT
    end = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def old(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        named = {n.replace(x, y): t for n, t in tensors.items() for x, y in end.items() if n.endswith(x)}
        return named | {n: t for n, t in tensors.items() if not n.endswith(tuple(end))} | {"embeddings.position_ids": torch.arange(64)}

    assert off(load(respelled(rows, tmp_path / "b", old), "float64")) < EXACT
    more = {"cls.seq_relationship.weight": torch.ones(2, 32), "bert.pooler.dense.weight": torch.ones(32, 32)}
    more["cls.predictions.decoder.weight"] = load_file(folder / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    more["cls.predictions.decoder.bias"] = load_file(folder / "model.safetensors")["cls.predictions.bias"]
    full = load(respelled(folder, tmp_path / "c", lambda t: t | more, architectures=["BertModel"]), "float64")
    assert full.config.head and full.config.tied
    assert set(full.left) == {"cls.seq_relationship.weight", "bert.pooler.dense.weight"}
    assert far(full(IDS, types=TYPES), judge("bert").logits(IDS, token_type_ids=TYPES)) < EXACT
    for name in ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"):
        with pytest.raises(CheckpointError, match=name):
            load(respelled(folder, tmp_path / name, lambda t, n=name: t | {n: more[n] + 1}))
    with pytest.raises(CheckpointError, match=r"cls\.predictions\.transform"):
        load(respelled(folder, tmp_path / "d", lambda t: {n: x for n, x in t.items() if "transform" not in n}))
    with pytest.raises(CheckpointError, match=r"classifier\.weight"):
        load(respelled(rows, tmp_path / "e", lambda t: t | {"classifier.weight": torch.ones(2, 32)}))


def test_config_alone() -> None:
    """Without tensors the name of the architecture decides."""

    def read(*names: str) -> Config:
        return understand(judge("bert").config | {"architectures": list(names)})[1]

    assert read("BertForMaskedLM").head and read("BertForPreTraining").head and read().head
    assert not read("BertModel").head and not read("BertModel").tied
    with pytest.raises(ConfigError, match="is_decoder"):
        understand(judge("bert").config | {"is_decoder": True})


def test_saved_and_loaded(rows: Path, tmp_path: Path) -> None:
    """A saved encoder is read bit for bit, by Pellucid and by transformers."""
    model = load(rows)
    model.save(tmp_path / "again")
    again = load(tmp_path / "again")
    assert torch.equal(again(IDS, types=TYPES), model(IDS, types=TYPES)) and again.left == ()
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "again")
    assert isinstance(theirs, transformers.BertModel)
    assert all(
        torch.equal(p, q) for p, q in zip(theirs.embeddings.parameters(), judge("bert").hf.bert.embeddings.parameters(), strict=True)
    )
    assert far(theirs.double()(IDS).last_hidden_state, their_rows()) < 1e-5


# What an encoder computes


def test_what_an_encoder_refuses(rows: Path) -> None:
    model = load(rows)
    for call in (
        lambda: model.generate(IDS),
        lambda: model(IDS, types=TYPES + 1),
        lambda: model(IDS, types=TYPES[:, :5]),
        lambda: model(IDS, padding=PADDING[:, :5]),
        lambda: model(IDS, IDS),
        lambda: model(torch.zeros(1, 65).long()),
    ):
        with pytest.raises(UseError) as refused:
            call()
        assert "\n" not in str(refused.value)


def test_rows_are_seen(rows: Path) -> None:
    """All from the three tables to the last norm, and the pooler, is recorded by its path."""
    model = load(rows, dtype="float64")
    with watch(model) as seen:
        out = model(IDS, types=TYPES)
    paths = [s.path for s in seen]
    assert paths[:6] == ["embed", "positions", "start", "types", "typed", "embed_norm"]
    assert paths[-4:] == ["layers.1.ffn_norm", "first", "pooler", "pooled"] and torch.equal(seen["layers.1.ffn_norm"].value, out)
    pattern = seen["layers.0.attn.pattern"].value
    assert far(pattern.sum(-1), torch.ones(3, 4, 19)) < 1e-12 and (pattern[..., 0, -1] > 0).all()
