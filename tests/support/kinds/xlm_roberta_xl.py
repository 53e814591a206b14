"""xlm-roberta-xl, tiny: as roberta's, in its own class."""

from dataclasses import replace

from kinds import roberta

KIND = replace(roberta.KIND, changes=(*roberta.KIND.changes[:2], ("plain", {"layer_norm_eps": 1.1e-05})))
