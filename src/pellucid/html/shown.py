"""The subject of a page: a trace, a watch's records, one tensor, or a model; each as a run, as the server has it.

A trace that ran in this process has its model, and so pieces, parameters and likeliest tokens; one from a folder has only its name.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from pellucid.api.model import Model
from pellucid.counting.meta_run import meta_model
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.runs.answers import tokenizer_of
from pellucid.runs.examples import example
from pellucid.runs.execute import recorded, shapes
from pellucid.runs.kept_run import Run
from pellucid.runs.limits import LIMITS
from pellucid.runs.model_registry import LoadedModel
from pellucid.runs.request import RunRequest
from pellucid.runs.worker import Stop
from pellucid.tracing import Trace
from pellucid.watching.records import Records, Seen
from pellucid.watching.watch import Watch

Subject = Records | Seen | Model
Place = Mapping[str, str]
ROWS = (0,) * 5  # the ids of a model without a tokenizer; for shapes any will do
DTYPES = ("float32", "bfloat16", "float16", "int8", "int4")  # that the page can count with


def subject(thing: Subject) -> tuple[Run, Place]:
    """Return the run of `thing`, and the view that the page opens with: of a tensor its tile, of a model its budget."""
    if isinstance(thing, Model):
        dtype = counted_dtype(thing)
        return of_model(thing), {"view": "budget"} | ({} if dtype == "bfloat16" else {"budget": f"dtype:{dtype}"})
    if isinstance(thing, Seen):
        return Run(None, Trace(seen=[tensor_only(replace(thing, step=0, call=0, request=None))])), {"tensor": thing.path}
    traced = thing if isinstance(thing, Trace) else Trace(type(thing.model).__name__ if isinstance(thing, Watch) else "", seen=thing.seen)
    traced = replace(traced, seen=[tensor_only(s) for s in traced])
    loaded = loaded_from(traced.runner if isinstance(thing, Trace) else getattr(thing, "model", None), traced.model)
    return recorded(loaded, traced, LIMITS), {}


def title(thing: Subject) -> str:
    """Describe `thing` in one line."""
    if isinstance(thing, Trace | Model):
        return repr(thing)
    return f"{type(thing).__name__}({thing.path!r})" if isinstance(thing, Seen) else f"{type(thing).__name__}({len(thing)})"


def loaded_from(runner: object, name: str) -> LoadedModel | None:
    """Return the model or module that ran, as a LoadedModel; None for anything else."""
    if isinstance(runner, Model):
        return LoadedModel.of(runner)
    return LoadedModel(name, "", runner, None) if isinstance(runner, Decoder | EncoderDecoder) else None


def of_model(model: Model) -> Run:
    """Return a run with a model's shapes, by one forward on meta of its kind's example."""
    loaded = LoadedModel(model.name, model.family.name, meta_model(model.config, model.dtype), model)
    text = example(model.name, loaded.kind) if tokenizer_of(model) is not None else None
    rows = ROWS[: model.config.positions or len(ROWS)]
    return shapes(loaded, RunRequest(model.name, text, None if text is not None else rows), Stop(), LIMITS)


def counted_dtype(model: Model) -> str:
    """Return the format that a model's weights are counted in."""
    name = model.quant or str(model.dtype).removeprefix("torch.")
    return name if name in DTYPES else "bfloat16"


def tensor_only(seen: Seen) -> Seen:
    """Return the record, without its value if a watch's `keep` stored something other than the tensor."""
    x = seen.value
    same = isinstance(x, Tensor) and tuple(x.shape) == tuple(seen.shape) and x.dtype == seen.dtype
    return seen if same else replace(seen, value=None, terms=None)
