"""`pellucid show --adapter`: an adapter's matrices stand beside the model's, with the share that trains; `models` has headings."""

from pathlib import Path

import pytest

import pellucid
from pellucid.messages import filled, phrases
from test_commands import Captured, judged, run

SPECIMEN = "pellucid/capitals-llama"


@pytest.mark.parametrize("rank", [2, 4])
def test_an_adapters_share(rank: int, tmp_path: Path, capsys: Captured) -> None:
    """A matrix [m, n] has r(m + n) numbers; another rank has another count."""
    model = pellucid.load(SPECIMEN)
    before = model.num_parameters()
    wide = [model.module.get_parameter(f"layers.{i}.attn.{x}.weight").shape for i in range(4) for x in "qv"]
    model.lora(rank, ["layers.*.attn.[qv]"])
    model.save_adapter(tmp_path / "a")
    numbers = sum(rank * (m + n) for m, n in wide)
    for lang in ("en", "zh"):
        out = run(capsys, "show", SPECIMEN, "--adapter", tmp_path / "a", "--lang", lang)[1]
        share = f"{100 * numbers / before:.3f}"
        sentence = filled(phrases(lang)["show.adapter"], name="default", count=f"{numbers:,}", tensors=16, share=share, model=f"{before:,}")
        assert sentence in " ".join(out.split()) and "attn.q.adapters.default.lora_a.weight" in out
    _, document = judged(capsys, "show", SPECIMEN, "--adapter", tmp_path / "a")
    assert sum(w["count"] for w in document["weights"] if ".adapters." in w["path"]) == numbers == document["parameters"] - before
    assert "lora" not in run(capsys, "show", SPECIMEN)[1]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_column_of_models_has_a_heading(lang: str, capsys: Captured) -> None:
    first, titles, row, *_ = run(capsys, "models", "--lang", lang)[1].splitlines()
    words = [phrases(lang)[f"models.{key}"] for key in ("name", "family", "parameters", "bytes")]
    assert all(word in titles for word in words) and not any(word in first + row for word in words[:2])
