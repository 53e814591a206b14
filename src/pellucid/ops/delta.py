"""The gated delta rule (arXiv 2412.06464): a matrix of each head that every token rewrites.

    S <- decay · S + k (beta · (v − decay · Sᵀk))ᵀ        y = Sᵀq

S is a memory of values by keys: it fades by `decay`, loses a part `beta` of what it holds under k, and gains as much of v there.
"""

from torch import Tensor

from pellucid.batch.states import States
from pellucid.ops.kinds import OpKind
from pellucid.ops.scan import Recurrence, ScanRows, scan

DELTA_RULE = OpKind(
    "delta rule",
    lambda m: f"read({m.inputs[0]}, state)",
    product=True,
    labels={"state": lambda m: "state"},
    result="product",
)
STATE = OpKind(
    "state",
    lambda m: f"delta({', '.join(m.inputs)})",
    product=True,
    labels={"before": lambda m: "S", "write": lambda m: "k (beta · (v − Sᵀk))ᵀ"},
    template=lambda m: "",
)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, states: States, scale: float) -> Tensor:
    """Rewrite each text's state by its rows one after another, and read each row's query from it. Returns y [B T H W].

    q, k [B T G K]: key head g serves the value heads of its group.  v [B T H W], decay, beta [B T H].  scale: of keys; of queries twice.
    FLOPs: 6·H·K·W a token, in three products of a state.
    """
    return scan(ScanRows(q, k, v, decay, beta), states, Recurrence(DELTA_RULE, STATE, corrects=True, scale=scale))
