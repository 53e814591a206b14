"""One more module beside a decoder, which predicts the token after the next (DeepSeek-V3, arXiv 2412.19437, equations 21 to 23)."""

from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.step import Step
from pellucid.nn.block import block
from pellucid.nn.linear import Linear
from pellucid.nn.norm import NORMS
from pellucid.nn.transformer import Decoder
from pellucid.watching.tap import tap


class MultiTokenPrediction(nn.Module):
    """Rows [B T D] that leave a decoder's last block, and the token after each [B T] -> logits [B T V] of the token after that.

    The decoder's table and head are shared and count there. Its block is another of the decoder's last kind; the paper's one matrix over
    both parts is two here, `from_rows` and `from_token`, whose products are added.
    """

    axes = {"hidden_norm": "D", "token_norm": "D", "from_rows": "D D", "from_token": "D D", "norm": "D"}

    def __init__(self, cfg: c.Config) -> None:
        super().__init__()
        self.hidden_norm, self.token_norm, self.norm = (NORMS[cfg.norm](cfg.width, cfg.eps) for _ in range(3))
        self.from_rows, self.from_token = Linear(cfg.width, cfg.width, False), Linear(cfg.width, cfg.width, False)
        self.block = block(cfg, cfg.layers[-1])

    def forward(self, model: Decoder, x: Tensor, following: Tensor, step: Step) -> Tensor:
        hidden = tap(self.hidden_norm(x), "hidden_norm: B T D")
        token = tap(self.token_norm(tap(model.embed(following), "following: B T D")), "token_norm: B T D")
        rows, added = tap(self.from_rows(hidden), "from_rows: B T D"), tap(self.from_token(token), "from_token: B T D")
        joined = tap(ops.add(rows, added), "joined: B T D")
        return model.logits(tap(self.norm(self.block(joined, step)), "norm: B T D"), step)
