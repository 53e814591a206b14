"""Changes from their texts: files are read, and the runs that they take values from are run."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from pellucid.api.model import Model
from pellucid.api.trace import trace
from pellucid.checkpoint.safetensors_file import read_header, read_tensor
from pellucid.errors import UseError
from pellucid.tracing import Trace
from pellucid.watching import change
from pellucid.watching.change import Change
from pellucid.watching.change_text import ChangeText, parse_change

SIGNS: dict[str, Callable[..., Change]] = {"=": change.put, "*=": change.times, "+=": change.add}
Run = Callable[[str], Trace]  # of another prompt


def changes(model: Model, texts: Iterable[str], steps: int = 1) -> list[Change]:
    """Return the changes that `texts` describe. A value `from "prompt"` is of a run of the model over that prompt, of `steps` tokens."""
    parsed = [parse_change(text) for text in texts]
    return [change_of(c, lambda prompt, path=c.path: trace(model, prompt, steps, only=path)) for c in parsed]  # type: ignore[misc]


def change_of(c: ChangeText, run: Run) -> Change:
    """Return one parsed change. run: returns the trace of another prompt, with the change's tensors."""
    if c.number is not None:
        made = SIGNS[c.sign](c.path, c.number)
    elif c.reads is not None:
        made = SIGNS[c.sign](c.path, c.reads)
    elif c.prompt is not None:
        made = change.take(c.path, run(c.prompt), c.source)
    else:
        value = read_value(str(c.file), c.text)
        made = change.without(c.path, value) if c.sign == "without" else SIGNS[c.sign](c.path, value)
    return replace(made, at=c.at, text=c.text)


def read_value(file: str, text: str) -> Tensor:
    """Return the only tensor of a safetensors file, or of "file.safetensors:name" that one. A UseError if there are several, or none."""
    path, _, name = file.partition(".safetensors:")
    path = f"{path}.safetensors" if name else file
    if not Path(path).is_file():
        raise UseError("change.file", change=text, file=path)
    tensors = read_header(Path(path))
    if (name and name not in tensors) or (not name and len(tensors) != 1):
        raise UseError("change.tensor", change=text, file=path, names=", ".join(sorted(tensors)[:8]) or "-")
    return read_tensor(tensors[name or next(iter(tensors))])
