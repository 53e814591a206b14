"""`trace`: every tensor from a prompt's ids to the next token, recorded while the engine generates."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pellucid.api.model import Model
from pellucid.arguments import checked
from pellucid.engine.engine import Engine
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import UseError
from pellucid.nn.transformer import Encoder, EncoderDecoder
from pellucid.sharding import gathered_records
from pellucid.tracing import Trace, module_of, watch
from pellucid.watching.meta import META, need_numbers
from pellucid.watching.records import has_nan
from pellucid.watching.watch import Edit, Inside


@checked
def trace(
    model: Model,
    prompt: str | Sequence[int] | Tensor,
    steps: int = 1,
    choose: Callable[[Tensor], int] | None = None,
    only: str | Iterable[str] = "*",
    keep: Callable[[Tensor], Any] | None = None,
    edit: Edit | None = None,
    inside: Inside = "beside",
    terms: bool = False,
) -> Trace:
    """Record every tensor from a prompt's ids to the next token, and so on for `steps` tokens.

    prompt: a text, or ids; an encoder-decoder's source.  choose: the next token by its logits [V], the likeliest where None.
    only, keep, edit, inside, terms: see `watch`. A UseError for an edit that leaves the answer no number.
    Of a model split over ranks every rank gets the complete tensors.
    The first step computes the logits of every row; later ones run over the cache.
    """
    need_numbers(module_of(model))
    if model.sharding.axes and (given := [name for name, x in {"keep": keep, "edit": edit, "terms": terms}.items() if x]):
        raise UseError("ranks.option", name=given[0], started=model.sharding.ranks.count)
    how: dict[str, Any] = {"only": only, "keep": keep, "edit": edit, "inside": inside, "terms": terms}
    ids = model.prompt_ids(prompt)
    recorded = Trace(model.name, prompt if isinstance(prompt, str) else None, ids, starts=model.config.starts, runner=model)
    if isinstance(model.module, Encoder):
        return trace_encoder(model, recorded, steps, how)
    (request,) = model.requests([ids], steps, stops=model.stops)
    engine = Engine.of(model.module, request.budget, SchedulerLimits(request.budget), prefix_cache=False, keep_all=True)
    engine.diagnose = lambda sequence: "-"  # to find out is a forward of its own, which would be recorded too
    if choose is not None:
        engine.choose = lambda logits, *rest: choose(logits)
    engine.submit(request)
    with watch(model, **how) as records:
        outputs = list(engine.outputs())
    recorded.new = [output.token.id for output in outputs if output.token is not None]
    if records.changes and any(output.error is not None for output in outputs):
        require_numbers(model, recorded, edit)
    recorded.seen, recorded.aliases = gathered_records(records.seen, model.sharding), records.aliases
    return recorded


def traced(model: Model, run: Trace | str | Sequence[int] | Tensor) -> Trace:
    """Return `run`, or where it is a text or ids, the trace of one step of it."""
    return run if isinstance(run, Trace) else trace(model, run)


def outlined(model: Model, prompt: str | Sequence[int] | Tensor, steps: int = 1) -> Trace:
    """Return the trace of a prompt in a model on meta: one forward, whose tensors have shapes and no numbers."""
    if steps != 1:
        raise UseError("explain.outline", found=steps)
    ids = model.prompt_ids(prompt)
    tokens = torch.tensor([ids], device=META)
    model.check(tokens)
    with torch.no_grad(), watch(model) as records:
        model(tokens, tokens[:, :1]) if isinstance(model.module, EncoderDecoder) else model(tokens)
    recorded = Trace(
        model.name, prompt if isinstance(prompt, str) else None, ids, [], records.seen, starts=model.config.starts, runner=model
    )
    recorded.aliases = records.aliases
    return recorded


def trace_encoder(model: Model, recorded: Trace, steps: int, how: Mapping[str, Any]) -> Trace:
    """Record the one forward of an encoder; `new` are the likeliest tokens of its masks."""
    if steps != 1:
        raise UseError("generate.encoder")
    with watch(model, **how) as records, torch.no_grad():
        out = model(torch.tensor([recorded.ids], device=model.device))
    recorded.blanks = model.blanks(recorded.ids)
    if records.changes and not bool(out[0, recorded.blanks or [-1]].isfinite().all()):
        require_numbers(model, recorded, how["edit"])
    recorded.new, recorded.seen = [int(out[0, row].argmax()) for row in recorded.blanks], gathered_records(records.seen, model.sharding)
    recorded.aliases = records.aliases
    return recorded


def require_numbers(model: Model, recorded: Trace, edit: Edit | None) -> None:
    """Raise a UseError that names the first tensor with a NaN, for an edit that made the last answer no number. Runs the text once more.

    Does nothing if the answer is no number without the edit, or is one with it: then the run ended for another reason.
    """
    rows = recorded.blanks or [-1]
    written = recorded.new[:-1]  # the last is of the broken answer
    if isinstance(model.module, EncoderDecoder):
        given = [torch.tensor([t], device=model.device) for t in (recorded.ids, [recorded.starts, *written])]
    else:
        given = [torch.tensor([[*recorded.ids, *(() if recorded.blanks else written)]], device=model.device)]
    with torch.no_grad():
        plain = model.module(*given)
        with watch(model, keep=nan_index, edit=edit) as records:
            out = model.module(*given)
    if not bool(plain[0, rows].isfinite().all()) or bool(out[0, rows].isfinite().all()):
        return
    first = next((s for s in records if s.value is not None), None)
    changes = "; ".join(dict.fromkeys(c.text for c in records.changes if c in records.acted))
    if first is None:
        raise UseError("page.change.infinite", changes=changes, step=len(written))
    raise UseError("page.change.nan", changes=changes, step=len(written), path=first.path, at=[*first.value])


def nan_index(x: Tensor) -> tuple[int, ...] | None:
    """Return the index of the first NaN of a tensor, None if it has none."""
    return tuple(map(int, x.isnan().nonzero()[0])) if has_nan(x) else None
