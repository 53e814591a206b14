"""Small tokenizers, one of each kind, trained or written here; tests read them as they are or with one field changed."""

import json
from functools import cache
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from pellucid.tokenizer.tokenizer import Tokenizer

CORPUS = ["The capital of France is Paris, isn't it?", "naïve café 日本語 🎉 don't stop!", "the then there their hug pug pun bun hugs"] * 5
TEXTS = [
    "Hello, world!",
    " The capital  of France\nis",
    "naïve café — 日本語のテキスト 🎉👩‍👩‍👧",
    "don't isn't 1234567",
    "",
    "\0\t\x7f \u202e\ufffd",
]
Spec = dict[str, Any]


@cache
def _byte_level() -> str:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=320, special_tokens=["<|endoftext|>", "<|im_end|>"], initial_alphabet=alphabet)
    )
    return made.to_str()


@cache
def _wordpiece() -> str:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.decoder = decoders.WordPiece()
    specials = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=specials))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return made.to_str()


@cache
def _unigram() -> str:
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.NFKC()])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=120, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>"))
    made.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    return made.to_str()


@cache
def _sentencepiece() -> str:
    """Write a tokenizer as Llama 2's: spaces become marks, unknown characters fall back to bytes."""
    vocab = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁THehlowrd,.", "he", "ll", "▁w", "or", "▁wor", "ld"]
    merges = [["h", "e"], ["l", "l"], ["▁", "w"], ["o", "r"], ["▁w", "or"], ["l", "d"]]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    parts = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    undone = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    body = {"Sequence": {"id": "A", "type_id": 0}}
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [{"id": id, "content": content, **flags} for id, content in enumerate(vocab[:3])],
            "normalizer": {"type": "Sequence", "normalizers": parts},
            "pre_tokenizer": None,
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [start, body],
                "pair": [start, body, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
            },
            "decoder": {"type": "Sequence", "decoders": [*undone, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {
                "type": "BPE",
                "unk_token": "<unk>",
                "fuse_unk": True,
                "byte_fallback": True,
                "vocab": {piece: id for id, piece in enumerate(vocab)},
                "merges": merges,
            },
        }
    )


@cache
def _wordlevel() -> str:
    made = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "<eos>": 1, "the": 2, "cat": 3}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<eos>"])
    return made.to_str()


KINDS = {"bytes": _byte_level, "wordpiece": _wordpiece, "unigram": _unigram, "sentencepiece": _sentencepiece, "wordlevel": _wordlevel}


def spec(kind: str) -> Spec:
    made: Spec = json.loads(KINDS[kind]())
    return made


@cache
def ours(kind: str) -> Tokenizer:
    return Tokenizer(spec(kind), f"{kind}.json")


def put(kind: str, path: str, value: Any) -> Spec:
    """Return a sound tokenizer with the field at `path` set to `value`; "-" deletes it."""
    changed = spec(kind)
    *way, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    node: Any = changed
    for step in way:
        node = node[step]
    if value == "-":
        del node[last]
    elif isinstance(node, list) and last == len(node):
        node.append(value)
    else:
        node[last] = value
    return changed


ADDED = {"id": 320, "content": "<new>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
