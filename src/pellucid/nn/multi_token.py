"""Multi-token prediction: modules behind a decoder, the k-th of which predicts the token after the k next (arXiv 2412.19437, §2.2).

    h'_i = M [norm(h_i); norm(Emb(t_{i+k}))]        h_i := norm(block(h'_i))        P(t_{i+k+1}) = softmax(head(h_i))

The first reads the decoder's last rows, behind its last norm as the published checkpoints do, and each further one those of the module
before it.
"""

from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.step import Step
from pellucid.nn.block import block
from pellucid.nn.linear import Linear
from pellucid.nn.norm import NORMS
from pellucid.nn.transformer import Decoder
from pellucid.watching.tap import tap


def stands_alone(cfg: c.Config) -> bool:
    """True if one more block of the last kind would read its rows alone, and those before each: blocks share no table, keys or entry."""
    last = cfg.layers[-1]
    shared = last.attn.keys != "own" or (last.attn.buckets is not None and not last.attn.buckets.own) or last.input is not None
    return not (shared or cfg.embed_width is not None or cfg.whole_prompts or cfg.bidirectional or cfg.encoder is not None)


class MultiTokenPrediction(nn.Module):
    """Rows [B T D] of a decoder, or of the module before, and the token k places on of each [B T] -> its own rows, and logits [B T V].

    The decoder's table and head are shared and count there. Its block is another of the decoder's last kind; the paper's one matrix over
    both parts is two here, `from_rows` and `from_token`, whose products are added.
    """

    axes = {"hidden_norm": "D", "token_norm": "D", "from_rows": "D D", "from_token": "D D", "norm": "D"}

    def __init__(self, cfg: c.Config) -> None:
        super().__init__()
        self.hidden_norm, self.token_norm, self.norm = (NORMS[cfg.norm](cfg.width, cfg.eps) for _ in range(3))
        self.from_rows, self.from_token = Linear(cfg.width, cfg.width, False), Linear(cfg.width, cfg.width, False)
        self.block = block(cfg, cfg.layers[-1])

    def forward(self, model: Decoder, x: Tensor, following: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        hidden = tap(self.hidden_norm(x), "hidden_norm: B T D")
        token = tap(self.token_norm(tap(model.embed(following), "following: B T D")), "token_norm: B T D")
        rows, added = tap(self.from_rows(hidden), "from_rows: B T D"), tap(self.from_token(token), "from_token: B T D")
        joined = tap(ops.add(rows, added), "joined: B T D")
        x = tap(self.norm(model.run_block(self.block, joined, step)), "norm: B T D")
        return x, model.logits(x, step)
