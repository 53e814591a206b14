"""Scores of a text: the log-probability of each token after those before it.

A text longer than the model's window is read in windows that overlap, so that each token is predicted from many:

    window 8, stride 6    0 1 2 3 4 5 6 7
                                      6 7 8 9 ...     8 and 9 are predicted from 6 and 7 on
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pellucid.engine.engine import Engine
from pellucid.engine.requests import Request, check_ids
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder, Encoder, EncoderDecoder
from pellucid.ops.precision import wide

ROWS = 256  # of one forward, whose logits are in memory at once
WINDOW = 2048  # of a model that names no length of its own


def score(
    module: Decoder | EncoderDecoder,
    ids: Sequence[int],
    window: int | None = None,
    stride: int | None = None,
    source: Sequence[int] = (),
    kv: str | None = None,
) -> Tensor:
    """Return the log-probability of every token but the first, [len(ids) - 1], in float32 at least; with a source, of every token.

    window: tokens read together, by default the model's own length.  stride: new ones in each window, by default half.
    kv: the format of keys and values, see Engine.of.
    Raises UseError for ids outside the vocabulary, too few or too many of them, and a window or stride that does not fit.
    """
    window, stride = bounds(module, window, stride)
    check_ids(ids, module.config.vocab)
    check_ids(source, module.config.vocab)
    if isinstance(module, Encoder):
        raise UseError("score.encoder")
    if isinstance(module, EncoderDecoder):
        if not source:
            raise UseError("score.source")
        assert module.config.starts is not None
        ids = [module.config.starts, *ids]
        if len(ids) > window:
            raise UseError("score.long", tokens=len(ids), window=window)
    elif source:
        raise UseError("score.no_source")
    if len(ids) < 2:
        raise UseError("score.short", tokens=len(ids))
    out, start, done = list[Tensor](), 0, 1
    while done < len(ids):
        stop = min(start + window, len(ids))
        out.append(read(module, ids[start:stop], source, kv)[done - start - 1 :])
        start, done = stop - (window - stride), stop
    return torch.cat(out)


def bounds(module: Decoder | EncoderDecoder, window: int | None, stride: int | None) -> tuple[int, int]:
    """Return window and stride, with defaults for None. Raises UseError if they do not fit the model."""
    cfg = module.config
    most = cfg.positions or cfg.context or WINDOW
    window = min(most, WINDOW) if window is None else window
    if not 2 <= window <= (cfg.positions or window):
        raise UseError("score.window", found=window, most="∞" if cfg.positions is None else cfg.positions)
    stride = max(1, window // 2) if stride is None else stride
    if not 1 <= stride < window:
        raise UseError("score.stride", found=stride, most=window - 1)
    return window, stride


def read(module: Decoder | EncoderDecoder, ids: Sequence[int], source: Sequence[int], kv: str | None = None) -> Tensor:
    """Compute the log-probabilities of ids[1:], a few rows at a time over pages."""
    engine = Engine.of(module, len(ids), SchedulerLimits(ROWS), prefix_cache=False, kv=kv)
    engine.submit(Request(tuple(ids), 0, scored=True, source=tuple(source) or None))
    (output,) = engine.outputs()
    if output.error is not None:
        raise output.error
    return torch.tensor(output.scores, dtype=wide(next(module.parameters()).dtype))
