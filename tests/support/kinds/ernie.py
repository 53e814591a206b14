"""ernie, tiny: as bert's, with task types."""

from dataclasses import replace

from kinds import bert

KIND = replace(
    bert.KIND,
    tiny=bert.KIND.tiny | {"use_task_id": True},
    quirks=bert.KIND.quirks
    | {
        "no tasks": {"use_task_id": False},
        "five tasks": {"task_type_vocab_size": 5, "layer_norm_eps": 0.02},
    },
    refused=(*bert.KIND.refused, ("plain", {"task_type_vocab_size": 0}, "task_type_vocab_size")),
)
