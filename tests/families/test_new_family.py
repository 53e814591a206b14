"""A family in one file outside the package gets explain, trace, count and parity: Persimmon, as its page adds it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

import pellucid
from pellucid import families
from pellucid.analysis.verify import verify
from pellucid.api.count import count
from pellucid.commands import main
from test_snippets import blocks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contributing" / "family.md").read_text(encoding="utf-8")
PERSIMMON = next(block.text for block in blocks(PAGE) if block.title.startswith("src/"))  # the page's own file


@pytest.fixture
def persimmon(tmp_path: Path) -> Iterator[Path]:
    """Return a folder of transformers' own, with the page's file in a folder that is searched before the package's."""
    (tmp_path / "families").mkdir()
    (tmp_path / "families" / "persimmon.py").write_text(PERSIMMON, encoding="utf-8")
    families.__path__.insert(0, str(tmp_path / "families"))
    own = sys.modules.pop("pellucid.families.persimmon", None)
    torch.manual_seed(0)
    cfg = transformers.PersimmonConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.PersimmonForCausalLM(cfg)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
    model.save_pretrained(tmp_path / "model")
    yield tmp_path / "model"
    families.__path__.pop(0)
    sys.modules.pop("pellucid.families.persimmon", None)
    sys.modules.update({} if own is None else {"pellucid.families.persimmon": own})


def test_one_file_brings_everything(persimmon: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(PERSIMMON.splitlines()) < 100
    report = verify(persimmon)
    assert report.agrees and report.logits < 1e-12
    assert sys.modules["pellucid.families.persimmon"].__file__ == str(tmp_path / "families" / "persimmon.py")
    assert main(["explain", str(persimmon), "5 6 7", "--ids", "--all", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    model = pellucid.load(persimmon)
    assert {w for t in document["tensors"] for w in t["weights"]} == {n for n, _ in model.module.named_parameters()}
    trace = pellucid.trace(model, [5, 6, 7])
    assert trace["layers.1.attn.pattern"].shape == (1, 4, 3, 3)
    assert int(count(persimmon)["parameters.total"]) == model.num_parameters()
    assert int(count(persimmon)["cache.bytes_per_token"]) == 2 * 2 * 4 * 8 * 4  # float32, as the folder is stored
    model.save(tmp_path / "saved")
    assert verify(tmp_path / "saved", persimmon).agrees
    assert model.generate([[5, 6, 7]], 4, eos=None)[0] == [int(i) for i in greedy(persimmon, [5, 6, 7], 4)]


def greedy(folder: Path, ids: list[int], new: int) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    out = model.generate(torch.tensor([ids]), max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0)
    return out[0, len(ids) :]


def test_the_guides_show_real_files() -> None:
    guide = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    assert (ROOT / "src" / "pellucid" / "families" / "qwen3.py").read_text(encoding="utf-8") in guide
    shown = {block.title: block.text for block in blocks(PAGE) if block.title}
    assert shown == {name: (ROOT / name).read_text(encoding="utf-8") for name in shown} and len(shown) == 2
