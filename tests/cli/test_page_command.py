"""`pellucid page`: writes a file, tells its size, and refuses by name what no page runs yet."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

import pellucid
from pellucid.commands import main
from pellucid.engine.written_plan import written_plan
from pellucid.errors import UseError
from pellucid.html import live
from pellucid.html.live_tensors import Lengths, opened
from pellucid.ops import native


def test_a_page_is_written_and_its_size_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "reader.html"
    assert main(["page", "pellucid/reader", "--out", str(out), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written == {"schema": 1, "model": "pellucid/reader", "file": str(out), "bytes": out.stat().st_size}
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_what_no_page_runs_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST", 1000)
    out = tmp_path / "page.html"
    assert main(["page", "pellucid/reader", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "pellucid/reader" in error and "1000" in error and error.count("\n") == 1 and not out.exists()


def test_a_model_of_another_dtype_or_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UseError, match="bfloat16"):
        live.live_page(pellucid.load("pellucid/reader", dtype="bfloat16"))
    monkeypatch.setattr(live, "MOST", 1000)
    with pytest.raises(UseError, match="1000"):
        live.live_page(pellucid.load("pellucid/reader", dtype="float32"))


@pytest.mark.parametrize("name", ["reader", "capitals-prefix", "capitals-bert", "capitals-t5"])
def test_without_kernels_a_plan_is_refused_in_a_line(name: str) -> None:
    """A decoder, under a prefix mask too, an encoder, and both together: the sentence that names the kernels."""
    model = pellucid.load(f"pellucid/{name}", dtype="float32")
    with native.off(), pytest.raises(UseError, match="native kernels"):
        live.planned(model, 64)


def test_a_tensor_that_changes_otherwise_with_the_length_is_seen() -> None:
    """The documents of the runs are compared: a field that one of them has otherwise, and FLOPs that are no such sum, are named."""
    model = pellucid.load("pellucid/reader", dtype="float32")

    def seen(change: dict[str, object]) -> dict[str, Any]:
        lengths = [Lengths(t, t, s) for t, s in [(3, 3), (5, 5)]], [Lengths(3, 1, s) for s in (4, 5, 6, 7)]
        first, later = ([(at, document(at)) for at in each] for each in lengths)
        later[-1][1].update(change)
        return opened(model, "x", first, later)

    def document(at: Lengths) -> dict[str, Any]:
        flops = 2 * at.rows + 3 * at.rows * at.keys
        return {"path": "x", "dims": "B H T S", "shape": [1, 2, at.rows, at.keys], "flops": flops, "op": "y", "rows": None}

    right = seen({})
    assert right["shape"] == [1, 2, "T", "S"] and right["flops"] == [2, 3] and right["op"] == "y"
    for change in ({"op": "z"}, {"flops": 1}, {"shape": [1, 2, 1, 6]}):
        with pytest.raises(UseError, match=next(iter(change))):
            seen(change)


def test_weights_are_narrowed_only_where_that_loses_nothing(tmp_path: Path) -> None:
    model = pellucid.load("pellucid/reader", dtype="float32")
    assert {str(w.dtype) for w in written_plan(model.module, 64).weights.values()} == {"torch.bfloat16"}
    model.module.norm.weight.data[0] += 1e-4
    kinds = {name: str(w.dtype) for name, w in written_plan(model.module, 64).weights.items()}
    assert [name for name, kind in kinds.items() if kind == "torch.float32"] == ["norm.weight"]
    save_file(written_plan(model.module, 64).weights, tmp_path / "weights.safetensors")
