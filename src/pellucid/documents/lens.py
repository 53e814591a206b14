"""What a run's residual stream says of the next token: after each block by the logit lens, and head by head by direct attribution."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from pellucid.analysis.attribution import Attribution, Share, attribution
from pellucid.analysis.lens import lens
from pellucid.api.model import Model
from pellucid.documents.number import finite
from pellucid.documents.run import candidate
from pellucid.errors import RequestError
from pellucid.runs.answers import candidates, tokenizer_of
from pellucid.runs.execute import whole
from pellucid.runs.kept_run import Run
from pellucid.runs.worker import Stop
from pellucid.watching.watch import Seen

SCHEMA = 1


def model_of(run: Run) -> Model:
    """The model that the run came from."""
    if run.model is None:
        raise RequestError("server.alone", 400, "run", model=run.trace.model)
    return run.model


def reader(run: Run, stop: Stop) -> Callable[[Seen], Tensor]:
    """Finds the value of a record, computed again where it is not kept."""
    numbers = {id(s): n for n, s in enumerate(run.trace.seen)}
    return lambda s: whole(run, numbers[id(s)], stop).value


def followed(run: Run, k: int, row: int, id: int | None) -> int:
    """The token that is asked about: the one that was picked in this place, where none is named."""
    vocab = model_of(run).config.vocab
    if id is not None:
        if id >= vocab:
            raise RequestError("server.field", 400, "id", name="id", found=id, allowed=f"0..{vocab - 1}")
        return id
    picked = [a.pick.id for a in (run.answers[k] if k < len(run.answers) else []) if a.row == row]
    if not picked:
        raise RequestError("server.field", 400, "id", name="id", found="-", allowed=f"0..{vocab - 1}")
    return picked[0]


def rows(run: Run, k: int, row: int) -> None:
    """Refuse a row that the step does not have."""
    found = next((s.shape[1] for s in run.trace if s.step == k and s.path == "logits"), None)
    if found is None:
        raise RequestError("server.logits", 400, "step", step=k)
    if not -1 <= row < found:
        raise RequestError("server.field", 400, "row", name="row", found=row, allowed=f"0..{found - 1}")


def lens_document(run: Run, k: int, row: int, id: int | None, top: int, stop: Stop) -> dict[str, Any]:
    """The best candidates after each block, and where the followed token stands among all."""
    model = model_of(run)
    rows(run, k, row)
    one, tokenizer = followed(run, k, row, id), tokenizer_of(model)
    layers = []
    for path, logits in lens(model, run.trace, k, row, reader(run, stop)):
        best = logits.argsort(descending=True, stable=True)
        told = candidates(tokenizer, logits, [one, *best[:top].tolist()])
        place = int((best == one).nonzero()[0, 0]) + 1
        layers.append(
            {"path": path, "rank": place, "followed": candidate(run, told[0]), "candidates": [candidate(run, c) for c in told[1:]]}
        )
    return {"schema": SCHEMA, "run": run.id, "step": k, "row": row, "id": one, "layers": layers}


def attribution_document(run: Run, k: int, row: int, id: int | None, stop: Stop) -> dict[str, Any]:
    """What each head and each feed-forward part added to the followed token's logit, and what else did."""
    model = model_of(run)
    rows(run, k, row)
    one = followed(run, k, row, id)
    found: Attribution = attribution(model, run.trace, one, k, row, reader(run, stop))
    told = {"schema": SCHEMA, "run": run.id, "step": k, "row": row, "id": one, "path": found.path, "value": finite(found.value)}
    return told | {"total": finite(found.total), "parts": list(map(written, found.parts)), "rest": list(map(written, found.rest))}


def written(s: Share) -> dict[str, Any]:
    return {"path": s.path, "head": s.head, "value": finite(s.value)}
