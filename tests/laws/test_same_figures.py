"""One number looks the same in the terminal and on the page: numbers as Python writes them, which the page's own tests hold its twin to.

`python tests/laws/test_same_figures.py` writes web/src/tensor/amounts.json again.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.checkpoint.safetensors_file import read_header
from pellucid.commands import main
from pellucid.documents import amount
from pellucid.documents.amount import Amount, figures, scaled, seconds
from pellucid.messages import speaking
from tiny import swapped

VECTORS = Path(__file__).parents[2] / "web" / "src" / "tensor" / "amounts.json"
MODELS = {"qwen3-0.6b": {"context": 1000, "batch": 2}, "gpt2-small": {"context": 1000}, "pellucid/reader": {"dtype": "float32"}}
EDGES = [1, 999, 1000, 1023, 1024, 9_999, 99_950, 999_949, 999_950, 1_374_976, 999_999_999, 2**40, 10**21, 100.25, 4712.5, 4713.5]


def vectors() -> dict[str, list[list[Any]]]:
    """Return numbers of counted models, of edges and of chance, each with its text: bytes, FLOPs, counts, seconds and rates."""
    draws = (10 ** torch.rand(60, generator=torch.Generator().manual_seed(3), dtype=torch.float64).mul(12).sub(2)).tolist()
    counts = [pellucid.count(name, device="h100", **how) for name, how in MODELS.items()]  # type: ignore[arg-type]
    own = [float(n.value) for c in counts for path, n in c.numbers.items() if path in ("parameters.total", "bytes.total", "cache.bytes")]
    work = [float(c[path]) for c in counts for path in ("flops.prefill", "flops.decode")]
    large = [float(x) for x in [*EDGES, *own, *work, *draws]]
    small = [x * 10.0**-k for x in (1.0, 1.5, 2.64, 9.996, 123.45, 999.6) for k in range(0, 12, 3)]
    return {
        "bytes": [[x, scaled(x, "B")] for x in large],
        "flops": [[x, scaled(x, "FLOP")] for x in large],
        "amount": [[x, scaled(x)] for x in large],
        "seconds": [[x, seconds(x)] for x in [*small, *draws[:12]]],
        "figures": [[x, figures(x)] for x in [*(n for n in large if n < 1e15), *small]],
    }


def test_the_page_has_the_terminals_numbers() -> None:
    """The file that the page's tests read is of today's rules. The mutants: units of 1,024, three figures, and rates in powers of ten."""
    known = json.loads(VECTORS.read_text(encoding="utf-8"))
    assert known == json.loads(json.dumps(vectors()))
    for rule, text, name in (
        ("scaled", lambda x, unit="": f"{x / 1024:.4g} Ki{unit}", "bytes"),
        ("scaled", lambda x, unit="": f"{x:.3g} {unit}", "flops"),
        ("figures", lambda x: f"{x:.4g}", "figures"),
    ):
        with swapped(amount, rule, text):
            assert [[x, getattr(amount, rule)(x)] for x, _ in known[name]] != known[name]


def test_a_rate_is_written_as_a_number_and_kept_as_one() -> None:
    """4,713 tokens a second is no power of ten, and a count stays whole."""
    assert [str(Amount(x)) for x in (4712.6, 20866.0, 12.5, 7)] == ["4,713", "20,866", "12.5", "7"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_folder_is_counted_as_it_is_stored(dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Terminal, Python, the opened model and the page's default name one dtype and one number of bytes, which are those on disk."""
    pellucid.load("pellucid/reader", dtype=dtype).save(tmp_path / "own")
    folder = str(tmp_path / "own")
    counts, stored = pellucid.count(folder), sum(e.bytes for e in read_header(tmp_path / "own" / "model.safetensors").values())
    assert (counts.setting.weights, int(counts["bytes.total"])) == (dtype, stored)
    assert int(pellucid.count(pellucid.load(folder, dtype=dtype))["bytes.total"]) == stored
    with speaking("en"):
        assert main(["count", folder]) == 0
    line = next(row for row in capsys.readouterr().out.splitlines() if "on disk" in row)
    assert dtype in line and scaled(stored, "B") in line
    other = pellucid.count(folder, dtype="float64" if dtype == "float32" else "float32")  # the mutant: a dtype that it is not stored in
    assert int(other["bytes.total"]) != stored


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
