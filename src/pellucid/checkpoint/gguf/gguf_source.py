"""What a GGUF file says of its architecture: keys, and the shapes and values of its tensors."""

from collections.abc import Callable, Mapping

from torch import Tensor

from pellucid.families.fields import Fields


class GgufSource:
    """What a GGUF file says of its architecture. keys: the fields after "llama.".  shapes: of tensors by name.  read(name): a tensor."""

    def __init__(self, keys: Fields, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], Tensor]) -> None:
        self.keys, self.shapes, self.read = keys, shapes, read

    def has(self, name: str) -> bool:
        """True if the file has this tensor."""
        return name in self.shapes

    def factors(self, name: str) -> list[float]:
        """Return a small tensor as decimal numbers."""
        values: list[float] = [float(str(x)) for x in self.read(name).flatten().float().numpy()]
        return values
