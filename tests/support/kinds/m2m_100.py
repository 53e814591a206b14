"""m2m_100, tiny: as marian's, in its own class. Its padding token is one that no prompt has: transformers numbers positions by it."""

from dataclasses import replace

from kinds import blenderbot

KIND = replace(
    blenderbot.KIND,
    tiny=blenderbot.KIND.tiny | {"vocab_size": 99, "pad_token_id": 97, "max_position_embeddings": 160},
    changes=(("plain", {"scale_embedding": False}), ("plain", {"activation_function": "gelu"}), ("plain", {"pad_token_id": 96})),
    reads=("pad_token_id",),
    first_row=98,
)
