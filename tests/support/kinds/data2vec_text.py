"""data2vec-text, tiny: roberta by another name, as xlm-roberta."""

from kinds import xlm_roberta

KIND = xlm_roberta.KIND
