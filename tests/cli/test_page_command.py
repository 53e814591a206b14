"""`pellucid page`: writes a file, tells its size, and refuses by name what no page runs yet."""

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

import pellucid
from pellucid.commands import main
from pellucid.engine.written_plan import written_plan
from pellucid.errors import UseError
from pellucid.html import live

REFUSED = {
    "capitals-bert": "rows see no later ones",
    "capitals-t5": "rows see no later ones",
    "capitals-prefix": "rows see no later ones",
    "capitals-deepseek": "layers.1.ffn.routed",
}


def test_a_page_is_written_and_its_size_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "reader.html"
    assert main(["page", "pellucid/reader", "--out", str(out), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written == {"schema": 1, "model": "pellucid/reader", "file": str(out), "bytes": out.stat().st_size}
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(("name", "why"), REFUSED.items())
def test_what_no_page_runs_is_refused_in_a_line(name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert main(["page", f"pellucid/{name}", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert f"pellucid/{name}" in error and why in error and error.count("\n") == 1 and not out.exists()


def test_a_model_of_another_format_or_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UseError, match="bfloat16"):
        live.live_page(pellucid.load("pellucid/reader", dtype="bfloat16"))
    with pytest.raises(UseError, match="int8"):
        live.live_page(pellucid.load("pellucid/reader", quant="int8"))
    monkeypatch.setattr(live, "MOST", 1000)
    with pytest.raises(UseError, match="1000"):
        live.live_page(pellucid.load("pellucid/reader", dtype="float32"))


def test_a_tensor_that_changes_otherwise_with_the_length_is_seen() -> None:
    """The documents of the runs are compared: a field that one of them has otherwise, and FLOPs that are no such sum, are named."""
    model = pellucid.load("pellucid/reader", dtype="float32")

    def seen(change: dict[str, object]) -> list[tuple[int, int, dict[str, object]]]:
        rows = [(3, 3), (1, 4), (1, 5), (5, 5), (1, 6), (1, 7)]
        made = [(t, s, {"path": "x", "dims": "B H T S", "shape": [1, 2, t, s], "flops": 7 + 2 * t + 3 * t * s, "op": "y"}) for t, s in rows]
        made[-1][2].update(change)
        return made  # type: ignore[return-value]

    assert live.opened(model, seen({})) == {"path": "x", "dims": "B H T S", "op": "y", "shape": [1, 2, "T", "S"], "flops": [7, 2, 3]}  # type: ignore[arg-type]
    for change in ({"op": "z"}, {"flops": 1}, {"shape": [1, 2, 1, 6]}):
        with pytest.raises(UseError, match=next(iter(change))):
            live.opened(model, seen(change))  # type: ignore[arg-type]


def test_weights_are_narrowed_only_where_that_loses_nothing(tmp_path: Path) -> None:
    model = pellucid.load("pellucid/reader", dtype="float32")
    assert {str(w.dtype) for w in written_plan(model.module, 64).weights.values()} == {"torch.bfloat16"}
    model.module.norm.weight.data[0] += 1e-4
    kinds = {name: str(w.dtype) for name, w in written_plan(model.module, 64).weights.items()}
    assert [name for name, kind in kinds.items() if kind == "torch.float32"] == ["norm.weight"]
    save_file(written_plan(model.module, 64).weights, tmp_path / "weights.safetensors")
