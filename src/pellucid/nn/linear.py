"""A matrix with its bias, and a table of rows: the two holders of nearly all parameters."""

from torch import Tensor, nn

from pellucid import ops


class Linear(nn.Linear):
    """x [... in] -> [... out]; weight [out, in], unset until a checkpoint or a trainer sets it."""

    def reset_parameters(self) -> None:
        """Do nothing: a first draw would be overwritten, and on meta it costs more than building the model."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)

    def dense_weight(self) -> Tensor:
        """Return the weight as one matrix, for a part that reads it without calling it."""
        return ops.dense_weight(self.weight)


class WideLinear(Linear):
    """A Linear in float32 at least, for a product whose rounding would change a choice."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear_wide(x, self.weight, self.bias)


class Embedding(nn.Embedding):
    """ids [...] -> rows [... width]; unset as a Linear is. skip: rows of the table before that of id 0."""

    def reset_parameters(self) -> None:
        """Do nothing, as above."""

    def forward(self, ids: Tensor, skip: int = 0) -> Tensor:
        return ops.embedding(ids, self.weight, skip)
