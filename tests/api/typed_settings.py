"""What a type checker sees of the public API. `mypy` reads it, and nothing runs it.

Each setting that is misspelt must be refused: where mypy takes one, it complains about a comment that ignores nothing.
"""

import torch

import pellucid

model = pellucid.load("pellucid/capitals", dtype="float32")
ids: torch.Tensor = model.generate(torch.tensor([[1]]), max_new_tokens=2)
rows: list[list[int]] = model.generate([[1]], top_k=3)
row: list[int] = model.generate([1])
text: str = model.generate("x")
with pellucid.watch(model, only="*.out", inside="listed", grad=True) as seen:
    value: torch.Tensor = seen["layers.0.out"].value
trace: pellucid.Trace = pellucid.trace(model, "x", steps=2, terms=True)
top: torch.Tensor = pellucid.lens(model, trace)[0][1].argmax()

pellucid.load("x", dtyp="float32")  # type: ignore[call-arg]
model.generate("x", max_new_token=2)  # type: ignore[call-arg]
pellucid.watch(model, onyl="*")  # type: ignore[call-arg]
pellucid.watch(model, inside="besides")  # type: ignore[arg-type]
pellucid.trace(model, "x", term=True)  # type: ignore[call-arg]
pellucid.count("x", contxt=3)  # type: ignore[call-arg]
model.save("x", overwite=True)  # type: ignore[call-arg]
pellucid.lense  # type: ignore[attr-defined]  # noqa: B018
