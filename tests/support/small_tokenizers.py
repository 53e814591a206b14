"""Small tokenizers as folders of published models have them, by the words that they cut, and hundreds of texts."""

import json
import random
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from pellucid.checkpoint.gguf.pretokenizers import BEGUN, IGNORE_MERGES, NORMALIZED, PRE
from pellucid.checkpoint.gguf.tokenizer_keys import joined

TEXTS = [
    "The capital of France is Paris.", " two  spaces, it's 1234567 and 3.14!\n\n\tEnd ", "法国的首都是巴黎。你好，世界", "Страна и столица",
    "नमस्ते दुनिया", "مرحبا بالعالم", "e\u0301 é ﬁ Å", "🙂👩‍👩‍👧 <|im_start|> </s> <b>", "", "def f(x):\n    return x ** 2  # ok\r\n",
]  # fmt: skip
CORPUS = [*TEXTS * 3, "the cat sat on the mat and the hat " * 4, "巴黎 是 法国 的 首都 " * 3]


def byte_level(pre: str) -> tokenizers.Tokenizer:
    """Return a small tokenizer that cuts words as `pre` does, with tokens of a chat and one that is no control token."""
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=pre in IGNORE_MERGES))
    spec = json.loads(made.to_str())
    spec |= {"pre_tokenizer": PRE[pre], "normalizer": {"type": "NFC"} if pre in NORMALIZED else None}
    made = tokenizers.Tokenizer.from_str(json.dumps(spec))
    made.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=letters, show_progress=False))
    made.add_special_tokens(["<|begin|>", "<|im_start|>", "<|im_end|>"])
    made.add_tokens(["<think>"])
    if pre in BEGUN:
        made.post_processor = processors.TemplateProcessing("<|begin|> $A", None, [("<|begin|>", made.token_to_id("<|begin|>"))])
    return made


def sentencepiece(spaced: bool) -> tokenizers.Tokenizer:
    """Return a small tokenizer as transformers makes of a SentencePiece model: Llama's, or Gemma's, which puts no space before a text."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *"▁abcdefghijklmnopqrstuvwxyzTFP.,法国的"]
    words = ["th", "the", "▁th", "▁the", "▁t", "▁c", "ca", "cap", "▁cap", "▁o", "of", "▁of", "is", "▁is", "at", "▁at", "▁▁", "法国", "an"]
    vocab = {piece: i for i, piece in enumerate([*pieces, *words])}
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(vocab) - 259)]
    merges = joined(vocab, kinds, [0.0] * len(pieces) + [-float(i) for i in range(len(words))])
    made = tokenizers.Tokenizer(models.BPE(vocab, [tuple(m) for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    mark = normalizers.Replace(" ", "▁")
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), mark]) if spaced else mark
    undone: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*undone, *([decoders.Strip(" ", 1, 0)] if spaced else [])])
    made.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    made.add_special_tokens(["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    return made


def texts(count: int) -> list[str]:
    """Return texts of words of many scripts, odd white space, emoji, accents and names of control tokens, mixed."""
    draw = random.Random(7)
    words = [word for text in CORPUS for word in text.split(" ")] + [
        *("it's", "'S", "'LL", "'\u017f", "don't", "\u0130", "ΑΣ", "ß", "ﬁ", "½", "²", "Ⅷ", "१२३", "1234567", "e\u0301", "é", "\u00c5"),
        *(
            "한국어",
            "ｶﾀｶﾅ",
            "ไทย",
            "🙂",
            "👩‍👩‍👧",
            "🏳️‍🌈",
            "<0x41>",
            "##is",
            "▁",
            "Ġ",
            "[MASK]",
            "</s>",
            "<s>",
            "<think>",
            "``",
            "x_y",
            "a-b",
        ),
        *("3.14", "\u2581a", "$%^&*", "…", "“a”", "\ufffd", "\x00", "\x07"),
    ]
    between = [" ", " ", " ", "", "  ", "\n", "\r\n", "\t", "\n\n ", "   ", *"\u00a0\u3000\u0085\ufeff\u200b\u2028"]
    mixed = ["".join(draw.choice(words) + draw.choice(between) for _ in range(draw.randint(1, 9))) for _ in range(count)]
    return [*TEXTS, " \ufeff.b", "a \u0085\u0085 b", "we'\u017fx", *words, *between, "x" * 120, " " * 40, *mixed][:count]
