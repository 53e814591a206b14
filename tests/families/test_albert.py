"""ALBERT: one block's weights for all blocks, counted and held once, read and multiplied with as often as there are blocks."""

from pathlib import Path

import torch

from judge import judge
from pellucid.api.count import count
from pellucid.api.model import load
from pellucid.checkpoint.safetensors_file import read_header
from pellucid.counting.bounds import moved
from pellucid.counting.textbook import attention_products
from pellucid.watching.watch import watch

D, F, L = 32, 48, 20  # widths of a row, of the feed-forward part and of the embedding
BLOCK = 4 * (D * D + D) + 2 * D * F + F + D + 4 * D  # with its two norms


def test_shared_weights_are_counted_once_and_read_by_every_block() -> None:
    """Five blocks of two groups, and three of one: by hand, in bytes of float32."""
    for quirk, blocks, groups in (("plain", 3, 1), ("two groups", 5, 2)):
        j = judge("albert", quirk)
        bill = count(j.folder, context=8, dtype="float32")
        positions, kinds, vocab = 64, 2, 97
        ends = L * (vocab + positions + kinds) + 2 * L + (L * D + D) + (D * L + L) + 2 * L + vocab
        assert int(bill["parameters.total"]) == ends + groups * BLOCK == j.hf.num_parameters()
        assert int(bill["bytes.total"]) == 4 * int(bill["parameters.total"])
        assert moved(bill) == 4 * (ends - L * (positions + kinds) + blocks * BLOCK)
        assert int(attention_products(bill)) == blocks * 2 * 2 * 8 * 8 * D
        assert sum(kind.count for kind in bill.reduced.kinds) == blocks == len(bill.config.layers)


def test_blocks_hold_the_same_tensors(tmp_path: Path) -> None:
    """Blocks of a group have the same parameters, also after a folder was read, and each block has its own tensors in a run."""
    model = load(judge("albert", "two groups").folder)
    blocks, first = model.module.get_submodule("layers"), [0, 0, 0, 3, 3]
    for i, one in enumerate(blocks):
        mine, owners = dict(one.named_parameters()), dict(blocks[first[i]].named_parameters())
        assert mine.keys() == owners.keys() and all(mine[name] is owners[name] for name in mine)
    assert blocks[0].attn.q.weight is not blocks[3].attn.q.weight
    assert model.num_parameters() == judge("albert", "two groups").hf.num_parameters()
    model.save(tmp_path / "again")
    stored = read_header(next((tmp_path / "again").glob("*.safetensors")))
    assert sum(torch.Size(entry.shape).numel() for entry in stored.values()) == model.num_parameters()
    with torch.no_grad(), watch(model.module, only="layers.*.ffn") as seen:
        model.module(torch.arange(6)[None])
    assert len(seen) == 5 and not torch.equal(seen["layers.0.ffn"].value, seen["layers.1.ffn"].value)
