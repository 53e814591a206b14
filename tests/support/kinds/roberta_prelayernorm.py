"""roberta-prelayernorm, tiny: as roberta's, in its own class."""

from kinds import roberta

KIND = roberta.KIND
