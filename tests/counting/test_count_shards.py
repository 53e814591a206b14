"""What data ranks that share a copy of a model have of it: rows of every weight, and all of those that several blocks read."""

from math import ceil

import pytest

from pellucid.counting import Setting, counted, training_ranks
from pellucid.counting.training_ranks import TrainingGrid, of_rank, orthogonalised
from pellucid.data_shards import read_by_several
from pellucid.nn.transformer import build
from pellucid.watching.meta import META
from rank_grids import config
from tiny import swapped

DATA, SHARD = 4, 2


def measured(family: str) -> dict[str, int]:
    """Return the bytes of a rank by the parameters of a model, and by the rule of what is shared out of them. Matrices are Muon's."""
    with META:
        model = build(config(family))
    several = read_by_several(model)
    own = {path: p.numel() if p in several else ceil(len(p) / SHARD) * p[0].numel() for path, p in model.named_parameters()}
    matrices = [path for path, p in model.named_parameters() if orthogonalised(path, p.ndim)]
    complete = sum(p.numel() for p in several)
    gathered = sum(own[path] for path in matrices if (p := model.get_parameter(path)) not in several and p.ndim == 2)
    return {
        "weights": 4 * sum(own.values()),
        "moments": 4 * (2 * sum(own.values()) - sum(own[path] for path in matrices)),
        "scattered": 4 * (SHARD - 1) * (sum(own.values()) - complete),
        "matrices": 4 * (SHARD - 1) * gathered,
        "added_up": 2 * 4 * (sum(own.values()) - complete) // 2 + 2 * 3 * 4 * complete // 4,
    }


def billed(family: str) -> dict[str, int]:
    bill = counted(config(family), family, family, Setting(8, 2, None, *["float32"] * 3))
    counts = of_rank(bill, TrainingGrid(data=DATA, shard=SHARD, muon=True))
    return {name: int(counts.get(name, 0)) for name in ("weights", "moments", "scattered", "matrices", "added_up")}


@pytest.mark.parametrize("family", ["llama", "t5", "albert"])
def test_what_several_blocks_read_is_not_divided(family: str) -> None:
    """T5's distances, and all of ALBERT's blocks; without the rule their bill is too small."""
    assert billed(family) == measured(family)
    with swapped(training_ranks, "read_by_several", lambda *_: False):
        assert (billed(family) == measured(family)) is (family == "llama")
