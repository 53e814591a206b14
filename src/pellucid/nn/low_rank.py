"""A matrix as the product of two thin ones: y = (x Aᵀ) Bᵀ + b, with L numbers between."""

from torch import Tensor, nn

from pellucid.nn.linear import Linear
from pellucid.watching.tap import tap

READ = {"kv_b", "distance", "router"}  # matrices that their part reads and never calls


class LowRank(nn.Module):
    """x [... in] -> [... out]; narrow is [L in], widen [out L]. axes: the full matrix's, "F D".  rows: the letter of the rows it meets."""

    def __init__(self, full: Linear, rank: int, axes: str, rows: str) -> None:
        super().__init__()
        out, _, inner = axes.rpartition(" ") if axes.startswith("(") else axes.partition(" ")
        self.axes = {"narrow": f"L {inner}", "widen": f"{out} L"}
        self.rows = rows
        self.narrow = Linear(full.in_features, rank, False)
        self.widen = Linear(rank, full.out_features, full.bias is not None)

    def forward(self, x: Tensor) -> Tensor:
        return self.widen(tap(self.narrow(x), f"narrow: B {self.rows} L"))  # type: ignore[no-any-return]


def thin(block: nn.Module, path: str, rank: int) -> None:
    """Put a LowRank in place of the Linear at `path` of a block."""
    above, _, name = path.rpartition(".")
    owner, full = block.get_submodule(above), block.get_submodule(path)
    assert isinstance(full, Linear)
    rows = "S" if name in getattr(owner, "reads_source", ()) else "T"
    setattr(owner, name, LowRank(full, rank, getattr(owner, "axes")[name], rows))  # noqa: B009


def thinnable(model: nn.Module) -> dict[str, Linear]:
    """Return the Linears of a model's blocks by path, those that `thin` can replace."""
    inside = {path: m for path, m in model.named_modules() if "layers." in path and type(m) is Linear}
    return {path: m for path, m in inside.items() if path.rpartition(".")[2] not in READ | {"narrow", "widen"}}
