"""megatron-bert, tiny: as bert's, in its own class."""

from kinds import bert

KIND = bert.KIND
