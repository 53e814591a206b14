"""Path patching (arXiv 2304.05969): what a part says to another part directly, and to no part between them.

    s = path_patch(model, clean, corrupted, "layers.*.attn.z", "H", {"layers.3.attn.q": {"H": 2}}, metric=(" Paris", " Tokyo"))

Two runs of the corrupted prompt for each sender: in the first the sender has the clean prompt's cells, and every other part adds to the
stream what it had added, so that a receiver reads the sender's difference alone; in the second the receivers have what they read there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pellucid.analysis.walk_back import PARTS
from pellucid.api.metrics import Metric, measured, pieces
from pellucid.api.model import Model
from pellucid.api.sweep import Sweep, Trial, again, fork, ids_of, letters, numbers, sizes, swept, trials_of
from pellucid.api.trace import trace
from pellucid.arguments import checked
from pellucid.errors import UseError
from pellucid.tracing import Trace
from pellucid.watching.cells import Index
from pellucid.watching.change import Change, take

Receivers = str | Mapping[str, Mapping[str, Index]]


@checked
def path_patch(
    model: Model,
    clean: str | Sequence[int],
    corrupted: str | Sequence[int],
    over: str,
    by: str,
    receivers: Receivers,
    metric: Metric,
) -> Sweep:
    """Put cells of the run of `clean` into what the receivers read of them directly, one trial for each index along `by`.

    over, by: the senders, as in `patch`.  receivers: a path, with `*`, such as "logits" or "layers.3.attn.q", or {path: cells by axis
    letters}.  metric: as in `sweep`.  A UseError if the prompts have not as many tokens.
    """
    source, other = trace(model, clean, only=over), ids_of(model, corrupted)
    if len(source.ids) != len(other):
        raise UseError("sweep.lengths", clean="|".join(pieces(model, source.ids)), corrupted="|".join(pieces(model, other)))
    reading = {receivers: {}} if isinstance(receivers, str) else dict(receivers)
    base = trace(model, other)
    records, parts = swept(source, by), [s.path for s in base if s.path.rpartition(".")[2] in PARTS and s.call == 0]
    trials, read = trials_of(records, by), dict[Trial, list[Change]]()

    def direct(trial: Trial) -> Trace:
        """Return the receivers' values when the sender has the clean prompt's cells, and all other parts what they had."""
        at: dict[str, Any] = dict(zip(letters(by), trial.at, strict=True))
        fixed = [take(part, base) for part in parts if not f"{trial.path}.".startswith(f"{part}.")]
        return trace(model, other, only=[*reading], edit=[take(trial.path, source, **at), *fixed])

    def changes(trial: Trial) -> list[Change]:
        if trial not in read:
            run = direct(trial)
            read[trial] = [take(path, run, None, **at) for path, at in reading.items()]
        return read[trial]

    measure = measured(model, metric, other)
    forks = fork(model, other, measure)
    unchanged = fork(model, source.ids, measured(model, metric, source.ids)).logits
    with torch.no_grad():
        table = numbers(model, forks, [changes(trial) for trial in trials], measure)
    start, clean_number = (float(measure.number(logits[None], forks.logits)) for logits in (forks.logits, unchanged))
    table = table.reshape(len(records), *sizes(records[0], by))
    shown = pieces(model, other)
    return Sweep(table, [s.path for s in records], letters(by), start, clean_number, measure.name, shown, changes, again(model, other))
