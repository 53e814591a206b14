"""A random model whose tokenizer begins a prompt with a token, and writes a space before it, as Llama's first ones."""

from pathlib import Path

import torch

from pellucid.api.model import make
from small_tokenizers import sentencepiece


def spaced_folder(folder: Path) -> Path:
    """Write the model to a folder."""
    made = sentencepiece(True)
    hf = {
        "model_type": "llama", "vocab_size": made.get_vocab_size(), "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    }  # fmt: skip
    tiny, draw = make(hf, dtype=torch.float32), torch.Generator().manual_seed(0)
    for p in tiny.module.parameters():
        p.data = torch.randn(p.shape, generator=draw)
    tiny.save(folder)
    made.save(str(folder / "tokenizer.json"))
    return folder
