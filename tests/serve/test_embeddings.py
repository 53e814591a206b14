"""/v1/embeddings: an encoder's pooled rows, in both forms, each text as it is alone; decoders are refused by name."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from openai_served import OpenAiServed, openai_served
from pellucid.api.model import Model, load
from pellucid.batch.step import Step
from pellucid.errors import CheckpointError
from pellucid.nn.transformer import Stack
from pellucid.server.openai.embedder import Embedder, Pooling, pooling_of
from tiny import swapped

PATH = "/v1/embeddings"
TEXTS = ["The capital of France is Paris.", "Tokyo", "法国的首都是巴黎。"]


@pytest.fixture(scope="module")
def model() -> Model:
    return load("pellucid/capitals-bert")


@pytest.fixture(scope="module")
def server(model: Model) -> Iterator[OpenAiServed]:
    with openai_served(model) as served:
        yield served


def lone(model: Model, text: str) -> Tensor:
    """Return the mean of a text's last rows, from a forward of its own."""
    ids = torch.tensor([model.tokenizer.encode(text)])
    with torch.no_grad():
        return Stack.forward(model.module, model.module.embed(ids), Step.plain(ids))[0].mean(0)


def vector_faults(server: OpenAiServed, model: Model) -> list[str]:
    """Return the texts whose vectors, among others, are not those of the text alone, or differ between the forms."""
    plain = server.post(PATH, input=TEXTS, encoding_format="float")
    coded = server.post(PATH, input=TEXTS, encoding_format="base64")
    assert plain["usage"]["prompt_tokens"] == sum(len(model.tokenizer.encode(t)) for t in TEXTS)
    out = []
    for i, text in enumerate(TEXTS):
        floats = torch.tensor(plain["data"][i]["embedding"])
        raw = np.frombuffer(base64.b64decode(coded["data"][i]["embedding"]), "<f4")
        if float((floats - lone(model, text)).abs().max()) > 1e-5 or raw.tolist() != floats.tolist():
            out.append(text)
    return out


def test_vectors(server: OpenAiServed, model: Model) -> None:
    assert vector_faults(server, model) == []
    one = server.post(PATH, input=TEXTS[0])["data"][0]["embedding"]
    assert server.post(PATH, input=model.tokenizer.encode(TEXTS[0]))["data"][0]["embedding"] == one


def test_vectors_mutant(server: OpenAiServed, model: Model) -> None:
    """Texts that see each other are seen."""

    def together(self: Embedder, texts: list[list[int]]) -> list[Tensor]:
        ids = torch.tensor([[i for t in texts for i in t]])
        rows = Stack.forward(self.model.module, self.model.module.embed(ids), Step.plain(ids))[0]
        return [self.pooling(part) for part in rows.split([len(t) for t in texts])]

    with swapped(Embedder, "pooled", together):
        assert vector_faults(server, model)


def folder_of(path: Path, *modules: str, **modes: bool) -> Path:
    """Write the pooling files of sentence-transformers. Returns their folder."""
    (path / "1_Pooling").mkdir(parents=True)
    kinds = [
        {"idx": i, "name": str(i), "path": f"{i}_{m}" if i else "", "type": f"sentence_transformers.models.{m}"}
        for i, m in enumerate(modules)
    ]
    (path / "modules.json").write_text(json.dumps(kinds))
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 4} | modes))
    return path


def test_pooling_is_the_folders(tmp_path: Path) -> None:
    rows = torch.tensor([[3.0, 0.0], [1.0, 4.0], [2.0, 2.0]])
    assert pooling_of(None) == pooling_of(tmp_path) == Pooling("mean_tokens", False)
    cls = pooling_of(folder_of(tmp_path / "a", "Transformer", "Pooling", pooling_mode_cls_token=True, pooling_mode_mean_tokens=False))
    assert cls(rows).tolist() == [3.0, 0.0]
    last = pooling_of(folder_of(tmp_path / "b", "Transformer", "Pooling", "Normalize", pooling_mode_lasttoken=True))
    assert torch.allclose(last(rows), torch.tensor([0.5, 0.5]).sqrt()) and last.normalised
    for i, wrong in enumerate(
        ({"pooling_mode_weightedmean_tokens": True}, {}, {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True})
    ):
        with pytest.raises(CheckpointError):
            pooling_of(folder_of(tmp_path / f"c{i}", "Transformer", "Pooling", **wrong))
    with pytest.raises(CheckpointError):
        pooling_of(folder_of(tmp_path / "d", "Transformer", "Pooling", "Dense", pooling_mode_cls_token=True))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": 3}, "input"),
    ({"input": []}, "input"),
    ({"input": "a " * 200}, "input"),
    ({"dimensions": 3}, "dimensions"),
    ({"encoding_format": "hex"}, "encoding_format"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_a_wrong_value_is_named(server: OpenAiServed, fields: dict[str, Any], param: str) -> None:
    server.wrong(PATH, 400, param, **{"input": "a", **fields})


def test_each_kind_refuses_the_other(server: OpenAiServed) -> None:
    assert "capitals-bert" in server.wrong("/v1/completions", 400, "model", prompt="a")["message"]
    with openai_served(load("pellucid/capitals")) as decoder:
        assert "pellucid/capitals" in decoder.wrong(PATH, 400, "model", input="a")["message"]
