"""Mutants of a tokenizer's files: tokenizer.json of each kind, vocab.json and merges.txt, vocab.txt, and the settings beside them."""

import json
import random
import shutil
import warnings
from pathlib import Path

from campaigns import Attempt, named
from campaigns.mutate import EVIL, bent, mangled, text, walk
from chats import TEMPLATES, chat_spec
from pellucid.tokenizer import limited_process
from pellucid.tokenizer.tokenizer import load_tokenizer
from test_wordpiece import vocabulary
from vocabularies import KINDS, spec

# Parts that a file may hold and these do not: components whose settings the library takes on trust.
PARTS = [
    *(
        {"type": "Split", "pattern": {"Regex": r}, "behavior": "Isolated", "invert": False}
        for r in ("(a+)+$", "(", r"\p{L}+", "", "(?:a|aa)+b")
    ),
    *({"type": "Replace", "pattern": {p: c}, "content": "aa"} for p in ("String", "Regex") for c in ("a", "", "a*")),
    {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////94AA=="},
    {"type": "Prepend", "prepend": "▁" * 50},
    {"type": "FixedLength", "length": 3},
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    {"type": "Sequence", "normalizers": [{"type": "NFKD"}] * 5, "pretokenizers": [{"type": "Digits", "individual_digits": True}] * 5},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Strip", "content": " ", "start": 2, "stop": 0},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "CTC", "pad_token": "x", "word_delimiter_token": "|", "cleanup": True},
    {"type": "RobertaProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": True},
]
PROMPTS = ("Hello  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", "日本 </s> <|im_end|>\U0010fffe e\u0301ﷺ", "[MASK]ed\t\x00" + " " * 300)


def prepare(folder: Path) -> Attempt:
    limited_process.SECONDS, limited_process.PATIENCE = 0.5, 5.0
    specs = [*map(spec, KINDS), chat_spec()]
    small = spec("bytes")["model"]
    settings = {
        "bos_token": "<s>",
        "eos_token": {"content": "<|im_end|>"},
        "tokenizer_class": "BertTokenizer",
        "chat_template": TEMPLATES["phi"],
    }
    merges = "#version: 0.2\n" + "\n".join(map(" ".join, small["merges"]))
    place = folder / "m"

    def files(draw: random.Random) -> dict[str, bytes]:
        made = {"tokenizer_config.json": text(settings), "special_tokens_map.json": text({"eos_token": "</s>"})}
        match draw.randrange(8):
            case 0:
                return made | {"vocab.json": text(small["vocab"]), "merges.txt": merges.encode(), "tokenizer_config.json": b"{}"}
            case 1:
                return made | {"vocab.txt": vocabulary().encode()}
            case _:
                tree = json.loads(json.dumps(draw.choice(specs)))
                if draw.random() < 0.3:
                    field = draw.choice(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
                    holder, key = draw.choice([(tree, field), *((h, k) for h, k in walk(tree[field]) if isinstance(h[k], dict))])
                    holder[key] = draw.choice(PARTS)
                return made | {"tokenizer.json": text(tree)}

    def attempt(draw: random.Random) -> str:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        made = files(draw)
        name = draw.choice(sorted(made) + [n for n in made if n not in ("tokenizer_config.json", "special_tokens_map.json")] * 6)
        blind = not name.endswith(".json") or draw.random() < 0.2
        changed = mangled(made[name], draw) if blind else text(bent(json.loads(made[name]), draw))
        for file, raw in (made | {name: changed}).items():
            (place / file).write_bytes(raw)

        def use() -> None:
            tokenizer = load_tokenizer(place, draw.choice((None, 10**7)))
            for prompt in PROMPTS if tokenizer else ():
                assert tokenizer
                ids = tokenizer.encode(prompt)
                tokenizer.decode(ids + tokenizer.encode(prompt, parse=True), draw.random() < 0.5)
                tokenizer.pieces(ids)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return named(use, place.name)

    assert EVIL
    return attempt
