"""A module as an edit is a part of the model: its tensors are recorded, explained, changed and swept. Its weights come from a folder."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import pellucid
from pellucid.checkpoint.coder_file import load_coder
from pellucid.errors import CheckpointError
from pellucid.nn.sparse_coder import SparseCoder
from pellucid.watching import wrap
from pellucid.watching.change import as_changes

PROMPT, PATH, F = "The capital of France is", "layers.2.out", 24


@pytest.fixture(scope="module")
def model() -> pellucid.Model:
    return pellucid.load("pellucid/capitals", dtype="float64")


def weights(threshold: bool = True) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    shapes = {"W_enc": (128, F), "b_enc": (F,), "W_dec": (F, 128), "b_dec": (128,)} | ({"threshold": (F,)} if threshold else {})
    return {name: torch.randn(shape, generator=draw, dtype=torch.float64) * 0.05 for name, shape in shapes.items()}


@pytest.fixture
def coder(tmp_path: Path) -> SparseCoder:
    save_file(weights(), tmp_path / "coder.safetensors")
    return load_coder(tmp_path)


def by_hand(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features and the reconstruction of x."""
    w = weights()
    pre = x @ w["W_enc"] + w["b_enc"]
    features = pre * (pre > w["threshold"])
    return features, features @ w["W_dec"] + w["b_dec"]


@torch.no_grad()
def test_it_is_recorded_below_its_path(model: pellucid.Model, coder: SparseCoder) -> None:
    plain = pellucid.trace(model, PROMPT)
    seen = pellucid.trace(model, PROMPT, edit={PATH: coder}, terms=True)
    features, decoded = by_hand(plain[PATH].value)
    own = seen[f"{PATH}.coder.features"]
    assert torch.allclose(own.value, features, atol=1e-12) and own.op == "jump" and own.dims == "B T F"
    assert torch.allclose(seen[f"{PATH}.coder.decoded"].value, decoded, atol=1e-12)
    assert seen[f"{PATH}.coder.pre"].weights == (f"{PATH}.coder.encode.weight", f"{PATH}.coder.encode.bias")
    assert seen[f"{PATH}.coder.decoded"].flops == 2 * 5 * F * 128
    assert torch.allclose(seen[PATH].value, plain[PATH].value, atol=1e-12) and seen[PATH].source == "edited"  # with its error
    for path in ("pre", "features", "decoded"):
        record = seen[f"{PATH}.coder.{path}"]
        assert record.terms is not None
        assert record.terms((0, 3, 2)).total() == pytest.approx(float(record.value[0, 3, 2]), abs=1e-12)
    assert f"{PATH}.coder.features" not in plain


@torch.no_grad()
def test_without_its_error_the_stream_is_the_reconstruction(model: pellucid.Model, coder: SparseCoder) -> None:
    coder.error = False
    plain, seen = pellucid.trace(model, PROMPT), pellucid.trace(model, PROMPT, edit={PATH: coder})
    assert torch.allclose(seen[PATH].value, by_hand(plain[PATH].value)[1], atol=1e-12)
    assert f"{PATH}.coder.error" not in seen and not torch.equal(seen["logits"].value, plain["logits"].value)


@torch.no_grad()
def test_a_feature_is_changed(model: pellucid.Model, coder: SparseCoder) -> None:
    """The stream moves by the feature's column; a function beside the module finds the path of a part that is no longer there unmet."""
    plain = pellucid.trace(model, PROMPT)
    features, _ = by_hand(plain[PATH].value)
    n = int(features[0, -1].argmax())
    edit = [*as_changes({PATH: coder}), pellucid.zero(f"{PATH}.coder.features", F=n, T=-1)]
    seen = pellucid.trace(model, PROMPT, edit=edit)
    moved = plain[PATH].value.clone()
    moved[0, -1] -= features[0, -1, n] * weights()["W_dec"][n]
    assert torch.allclose(seen[PATH].value, moved, atol=1e-12) and float(features[0, -1, n]) > 0
    with pytest.raises(pellucid.PellucidError, match=r"coder\.features"):
        pellucid.trace(model, PROMPT, edit=[pellucid.zero(f"{PATH}.coder.features", F=n)])


@torch.no_grad()
def test_features_are_swept(model: pellucid.Model, coder: SparseCoder) -> None:
    """Each feature off, under a watch that holds the coder: the number is that of the lone run."""
    with pellucid.watch(model, only=(), edit={PATH: coder}):
        s = pellucid.ablate(model, PROMPT, f"{PATH}.coder.features", "F", metric=" Paris")
        alone = [float(s.run(f"{PATH}.coder.features", F=n).last_logits(0).log_softmax(-1)[4060]) for n in range(0, F, 5)]
    assert s.values.shape == (1, F) and alone == pytest.approx(s.values[0, ::5].tolist(), abs=1e-9)
    assert float((s.values - s.base).abs().max()) > 1e-6


def test_it_is_a_part_while_it_is_watched(model: pellucid.Model, coder: SparseCoder) -> None:
    with pellucid.watch(model, only=(), edit={"layers.*.out": coder}):
        model(torch.tensor([model.ids(PROMPT)]))
        assert coder in wrap.wrapped
    assert not wrap.wrapped and "forward" not in coder.__dict__


@torch.no_grad()
def test_at_several_places_each_has_its_path(model: pellucid.Model, coder: SparseCoder) -> None:
    seen = pellucid.trace(model, PROMPT, edit={"layers.*.out": coder}, only="*.coder.features")
    assert seen.paths() == [f"layers.{i}.out.coder.features" for i in range(4)]


@torch.no_grad()
def test_any_module_may_be_one(model: pellucid.Model) -> None:
    """A module without taps changes the tensor, and is no record of its own."""
    seen = pellucid.trace(model, PROMPT, edit={PATH: nn.Identity()})
    assert torch.equal(seen["logits"].value, pellucid.trace(model, PROMPT)["logits"].value)


@torch.no_grad()
def test_over_a_cache_it_is_the_same(model: pellucid.Model, coder: SparseCoder) -> None:
    coder.error = False
    with pellucid.watch(model, only=(), edit={PATH: coder}):
        new = pellucid.trace(model, PROMPT, 3).new
        ids = model.ids(PROMPT)
        for token in new:
            assert int(model(torch.tensor([ids]))[0, -1].argmax()) == token
            ids = [*ids, token]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"W_dec": None}, "W_dec"),
        ({"b_enc": torch.zeros(3)}, "b_enc"),
        ({"W_enc": torch.zeros(3)}, "W_enc"),
        ({"threshold": torch.zeros(2)}, "thresh"),
    ],
)
def test_a_wrong_folder_is_one_line(tmp_path: Path, change: dict[str, Tensor | None], word: str) -> None:
    save_file({name: x for name, x in (weights() | change).items() if x is not None}, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=word) as refused:
        load_coder(tmp_path)
    assert "\n" not in str(refused.value)


def test_without_a_threshold_it_is_relu(tmp_path: Path) -> None:
    save_file(weights(threshold=False), tmp_path / "a.safetensors")
    coder = load_coder(tmp_path / "a.safetensors")
    x = torch.randn(1, 2, 128, dtype=torch.float64)
    made = torch.relu(x @ weights()["W_enc"] + weights()["b_enc"])
    with torch.no_grad(), pellucid.watch(coder, only="features") as seen:
        coder(x)
    assert torch.allclose(seen["features"].value, made)
