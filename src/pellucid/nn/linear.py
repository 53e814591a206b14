"""A matrix with its bias, and a table of rows: the two holders of nearly all parameters; and each of them split over ranks."""

from torch import Tensor, nn

from pellucid import ops
from pellucid.distributed import ALONE
from pellucid.ops.linear import product, times
from pellucid.watching.tap import marked


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


class SummedLinear(Linear):
    """A Linear whose inputs are split over ranks: their products are summed, and then the bias is added once."""

    ranks = ALONE

    def forward(self, x: Tensor) -> Tensor:
        y = self.ranks.summed(times(x, self.weight, None))
        if self.bias is not None:
            y = y + self.bias
        return product(y, x, self.weight, self.bias, times)


class VocabularyEmbedding(Embedding):
    """An Embedding whose rows are split over ranks: an id's row is 0 on all ranks but its own. rows: of all ranks."""

    ranks, rows = ALONE, 0

    def forward(self, ids: Tensor, skip: int = 0) -> Tensor:
        begin, end = self.ranks.bounds(self.rows)
        own = (ids >= begin) & (ids < end)
        rows = ops.embedding((ids - begin).clamp(0, end - begin - 1), self.weight, skip)
        return marked(self.ranks.summed(rows * own[..., None]), rows)


class VocabularyLinear(Linear):
    """A Linear whose outputs are split over ranks and then gathered. rows: of all ranks."""

    ranks, rows = ALONE, 0

    def forward(self, x: Tensor) -> Tensor:
        part = super().forward(self.ranks.shared(x))
        return marked(self.ranks.gathered(part, -1, self.rows), part)
