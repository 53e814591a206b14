"""The tokenizers of a page that runs its model, in node: ids, pieces and decoded texts are Python's, of each kind that folders have."""

import json
import os
import random
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from charsmaps import nmt_nfkc
from page_sources import script_of
from pellucid.checkpoint.gguf.pretokenizers import PRE
from pellucid.errors import TokenizerError, UseError
from pellucid.html.live_tokenizer import NESTED, carried
from pellucid.runs.answers import piece_of, visible
from pellucid.tokenizer.tokenizer import Tokenizer, load_tokenizer
from small_tokenizers import CORPUS, byte_level, sentencepiece, texts
from vocabularies import spec

FULL = os.environ.get("PELLUCID_FULL") == "1"
COUNT = 520 if FULL else 160  # texts
LISTS = 200  # of random ids, to be decoded
SHARED = Path(os.environ.get("PELLUCID_SHARED", Path(__file__).parents[3] / "shared")) / "gpt2-tokenizer"
BERT = [
    {},
    {"lowercase": False},
    {"lowercase": False, "strip_accents": True},
    {"strip_accents": False},
    {"handle_chinese_chars": False, "clean_text": False},
]


def wordpiece(**how: Any) -> Tokenizer:
    """Return a tokenizer as BERT's, trained on words as they are and in small letters."""
    made = Library(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(**how), pre_tokenizers.BertPreTokenizer()
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=500, special_tokens=marks, show_progress=False))
    return Tokenizer(json.loads(made.to_str()), "tokenizer.json")


def unigram(scheme: str, fallback: bool) -> Tokenizer:
    """Return a tokenizer of likeliest pieces, with pieces for bytes where `fallback`."""
    made = spec("unigram")
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}
    made["pre_tokenizer"] = (
        {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]} if scheme == "always" else metaspace
    )
    draw, text = random.Random(1), "▁".join(" ".join(CORPUS).split())
    known = {piece for piece, _ in made["model"]["vocab"]}
    some = sorted({text[i : i + draw.randint(2, 4)] for i in range(len(text))} - known)[::2]
    made["model"]["vocab"] += [[piece, -draw.uniform(2, 12)] for piece in some]  # that overlap, so that sums decide
    if scheme == "first":
        made["normalizer"] = {"type": "NFKC"}
    if fallback:
        made["model"]["byte_fallback"] = True
        made["model"]["vocab"] += [[f"<0x{b:02X}>", -30.0] for b in range(256)]
    return Tokenizer(made, "tokenizer.json")


def charsmapped(*behind: dict[str, Any]) -> Tokenizer:
    """Return a tokenizer of likeliest pieces behind a map of characters, as T5's; behind: what follows the map, as in XLM-R's."""
    parts = [{"type": "Precompiled", "precompiled_charsmap": nmt_nfkc()}, *behind]
    made = unigram("always", False).spec | {"normalizer": {"type": "Sequence", "normalizers": parts} if behind else parts[0]}
    return Tokenizer(made, "tokenizer.json")


def clip() -> Tokenizer:
    """Return a tokenizer as CLIP's: the last piece of a word says so, and a letter within one could be written otherwise."""
    made = Library(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>", continuing_subword_prefix="_"))
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    words = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(words), "removed", invert=True), pre_tokenizers.ByteLevel(False)]
    )
    how = {"end_of_word_suffix": "</w>", "continuing_subword_prefix": "_", "special_tokens": ["[UNK]"], "show_progress": False}
    made.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, **how))
    return Tokenizer(json.loads(made.to_str()), "tokenizer.json")


def word_level(part: dict[str, Any]) -> Tokenizer:
    """Return a vocabulary of whole words."""
    made = spec("wordlevel") | {"pre_tokenizer": part}
    made["model"]["vocab"] |= {word: 4 + i for i, word in enumerate(sorted({w for text in CORPUS for w in text.split()} - {"the"}))}
    return Tokenizer(made, "tokenizer.json")


def parted(*parts: dict[str, Any], **others: Any) -> Tokenizer:
    """Return byte-level pieces behind other parts."""
    made = json.loads(byte_level("gpt-2").to_str()) | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*parts]}} | others
    return Tokenizer(made, "tokenizer.json")


def marked(part: dict[str, Any] | None, normalizer: dict[str, Any] | None) -> Tokenizer:
    """Return Llama 2's pieces behind other parts: Gemma's, or those of newer files of Llama."""
    made = json.loads(sentencepiece(False).to_str()) | {"pre_tokenizer": part, "normalizer": normalizer}
    return Tokenizer(made, "tokenizer.json")


@cache
def kinds() -> dict[str, Tokenizer]:
    """Return a tokenizer of each kind by its name."""
    swap = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    spaces = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    first = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    digits = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, PRE["gpt-2"]]}
    all_of = {f"bytes {pre}": Tokenizer(json.loads(byte_level(pre).to_str()), "tokenizer.json") for pre in PRE}
    all_of |= {f"wordpiece {i}": wordpiece(**how) for i, how in enumerate(BERT)}
    all_of |= {f"unigram {scheme} {b}": unigram(scheme, b) for scheme in ("always", "first", "never") for b in (False, True)}
    all_of |= {kind: Tokenizer(spec(kind), "tokenizer.json") for kind in ("bytes", "wordpiece", "unigram", "sentencepiece")}
    all_of |= {f"llama {spaced}": Tokenizer(json.loads(sentencepiece(spaced).to_str()), "tokenizer.json") for spaced in (True, False)}
    all_of |= {"gemma": marked(spaces, swap), "gemma split": marked(spaces, None), "llama newer": marked(first, None)}
    all_of["digits"] = Tokenizer(json.loads(byte_level("gpt-2").to_str()) | {"pre_tokenizer": digits}, "tokenizer.json")
    runs, spaces_at_end = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}, {"type": "Strip", "strip_left": False}
    all_of |= {"t5": charsmapped(), "xlm-r": charsmapped(spaces_at_end | {"strip_right": True}, runs), "clip": clip()}
    all_of["accents"] = charsmapped({"type": "NFD"}, {"type": "StripAccents"})
    plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    falcon = [{"type": "Punctuation", "behavior": "Contiguous"}, plain, {"type": "Digits", "individual_digits": False}]
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    all_of["falcon"] = parted(*falcon, split | {"pattern": {"Regex": "[0-9][0-9][0-9]"}})
    all_of["bloom"] = parted(split | {"pattern": {"Regex": next(iter(NESTED))}}, plain)
    all_of["punctuation"] = parted({"type": "Punctuation", "behavior": "MergedWithPrevious"}, plain)
    all_of["fixed"] = parted({"type": "FixedLength", "length": 3}, plain, normalizer={"type": "Nmt"})
    all_of["delimited"] = parted({"type": "CharDelimiterSplit", "delimiter": "e"}, plain)
    all_of["bytes first"] = parted(normalizer={"type": "ByteLevel"})
    all_of["scripts"] = parted({"type": "UnicodeScripts"}, plain)
    all_of["words"] = word_level({"type": "Whitespace"})
    if FULL and SHARED.is_dir() and (gpt2 := load_tokenizer(SHARED)) is not None:
        all_of["gpt2 itself"] = gpt2
    return all_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Return a function that encodes and decodes in node."""
    folder = tmp_path_factory.mktemp("tokenizers")
    script, out = script_of("src/live/tokenizer_driver.ts", folder), folder / "out.json"

    def run(vocabularies: list[dict[str, Any]], lists: list[list[int]], given_texts: list[str] | None = None) -> Any:
        given = json.dumps({"vocabularies": vocabularies, "texts": given_texts or texts(COUNT), "lists": lists})
        subprocess.run(["node", str(script), str(out)], input=given, text=True, check=True)
        return json.loads(out.read_text())

    return run


def encoded(tokenizer: Tokenizer, text: str) -> list[int] | None:
    """Return a text's ids; None for one that Python refuses, since it holds the name of a control token that merges make."""
    try:
        return tokenizer.encode(text)
    except TokenizerError:
        return None


def test_every_kind_is_pythons(run: Callable[..., Any]) -> None:
    known = {name: (tokenizer, carried(tokenizer, name, tokenizer.size + 3)) for name, tokenizer in kinds().items()}
    draw = random.Random(3)
    lists = [[draw.randrange(1 << 20) for _ in range(draw.randint(1, 8))] for _ in range(LISTS)]
    compared = 0
    for (name, (tokenizer, parts)), answer in zip(known.items(), run([parts for _, parts in known.values()], lists), strict=True):
        theirs, rows = [encoded(tokenizer, text) for text in texts(COUNT)], len(parts["pieces"])
        wrong = [(t, a, b) for t, a, b in zip(texts(COUNT), answer["ids"], theirs, strict=True) if b is not None and a != b]
        assert wrong == [], (name, len(wrong), wrong[:3])
        assert answer["words"] == words(tokenizer), name
        compared += sum(ids is not None for ids in theirs)
        tokenizer.fit(rows)
        shown = [visible(piece_of(tokenizer, i)) if piece is not None else "" for i, piece in enumerate(parts["pieces"])]
        assert answer["shown"] == shown, name
        assert answer["decoded"] == [tokenizer.decode([i % rows for i in ids]) for ids in lists], name
    assert compared > 0.95 * COUNT * len(known)


SCRIPTS = [  # of characters
    *((0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x5D0, 0x700), (0x900, 0xA00), (0xE00, 0xF00), (0x1100, 0x1200)),
    *((0x1E00, 0x2070), (0x2080, 0x2200), (0x2460, 0x2500), (0x3040, 0x3400), (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0xF900, 0xFA00)),
    *((0xFB00, 0xFB50), (0xFE00, 0xFFFE), (0x1D400, 0x1D500), (0x1F100, 0x1F200), (0x1F1E6, 0x1F200), (0x1F3F0, 0x1F650)),
]


ASSIGNED = [p for p in range(0x110000) if category(chr(p)) != "Cs" and (p < 0x323B0 or 0xE0000 <= p < 0xE0200)]


def drawn(count: int) -> list[str]:
    """Return random texts of several scripts, with combining marks, control characters and joiners among them."""
    draw = random.Random(11)
    odd = [*"\t\n\r\u200b\u200d\u0301\u0308\u093c\u094d\u3099\ufe0f\ufeff\u00ad", "\r\n", "e\u0301", "①\u0301", "か\u3099", "👩\u200d👧"]

    def letters() -> str:
        first, last = draw.choice(SCRIPTS)
        return "".join(draw.choice(odd) if draw.random() < 0.2 else chr(draw.randrange(first, last)) for _ in range(draw.randint(1, 8)))

    return ["".join(letters() + draw.choice(["", " "]) for _ in range(draw.randint(1, 4))) for _ in range(count)]


def test_a_map_of_characters_is_pythons(run: Callable[..., Any]) -> None:
    """On random texts of many scripts; and the comparison can fail."""
    some = drawn(4000 if FULL else 1000)
    known = [kinds()["t5"], kinds()["xlm-r"]]
    parts = [carried(tokenizer, "odd", tokenizer.size) for tokenizer in known]
    theirs = [[tokenizer.words(text) for text in some] for tokenizer in known]
    answers = run([*parts, parts[0] | {"text": parts[0]["text"] | {"normalizer": [{"type": "NFKC"}]}}], [], some)
    for answer, tokenizer, own in zip(answers, known, theirs, strict=False):
        wrong = [(text, a, b) for text, a, b in zip(some, answer["words"], own, strict=True) if a != [word for word in b if word]]
        assert wrong == [], (len(wrong), wrong[:2])
        assert answer["ids"] == [tokenizer.encode(text) for text in some]
    assert sum(a != b for a, b in zip(answers[2]["words"], answers[0]["words"], strict=True)) > 100


def test_scripts_are_the_librarys(run: Callable[..., Any]) -> None:
    """On random texts of many scripts, among them what no script has; and a table that ends early cuts some elsewhere."""
    draw, tokenizer = random.Random(5), kinds()["scripts"]
    some = drawn(1000) + ["".join(chr(draw.choice(ASSIGNED)) for _ in range(8)) for _ in range(1000)]
    parts = carried(tokenizer, "odd", tokenizer.size)
    other = json.loads(json.dumps(parts))
    del other["text"]["words"][0]["scripts"][40:]
    ours, mutant = run([parts, other], [], some)
    theirs = [[word for word in tokenizer.words(text) if word] for text in some]
    wrong = [(text, a, b) for text, a, b in zip(some, ours["words"], theirs, strict=True) if a != b]
    assert wrong == [], (len(wrong), wrong[:2])
    assert ours["ids"] == [encoded(tokenizer, text) for text in some] and mutant["words"] != ours["words"]


def words(tokenizer: Tokenizer) -> list[list[str]]:
    return [[word for word in tokenizer.words(text) if word] for text in texts(COUNT)]


def test_another_rule_gives_other_ids(run: Callable[..., Any]) -> None:
    """The comparison can fail: white space as JavaScript has it, a long s that is no s, accents that stay, scores in another order."""
    changes = {
        "bytes gpt-2": lambda parts: parts["text"]["words"][0].update(type="WhitespaceSplit"),
        "bytes llama-bpe": lambda parts: swapped(parts, r"\p{White_Space}", r"\s"),
        "bytes qwen2": lambda parts: swapped(parts, r"\u017f", ""),
        "wordpiece 0": lambda parts: parts["text"]["normalizer"][0].update(strip_accents=False),
        "accents": lambda parts: parts["text"]["normalizer"][2].update(type="BertNormalizer", lowercase=False, strip_accents=True),
        "clip": lambda parts: parts["text"]["model"].update(suffix=""),
        "falcon": lambda parts: parts["text"]["words"][0].update(behavior="Isolated"),
        "llama True": lambda parts: parts["text"]["model"].update(fuse_unk=False, byte_fallback=False),
        "unigram always False": lambda parts: parts["text"]["model"]["scores"].reverse(),
    }
    for name, change in changes.items():
        tokenizer = kinds()[name]
        parts = carried(tokenizer, name, tokenizer.size)
        change(parts)
        answer = run([parts], [])[0]
        assert answer["ids"] != [encoded(tokenizer, text) for text in texts(COUNT)] or answer["words"] != words(tokenizer), name


def swapped(parts: dict[str, Any], old: str, new: str) -> None:
    for part in parts["text"]["words"]:
        if part["type"] == "Split":
            part["pattern"]["Regex"] = part["pattern"]["Regex"].replace(old, new)


FIRST = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}
SPLIT = {"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated", "invert": False}
OTHERS = [
    ({"normalizer": {"type": "Lowercase"}, "pre_tokenizer": FIRST}, "Lowercase · Metaspace"),
    ({"pre_tokenizer": SPLIT | {"pattern": {"Regex": "a+"}}}, "Regex a+"),
    ({"pre_tokenizer": SPLIT | {"pattern": {"Regex": "^▁+$"}}}, "Regex ^▁+$"),
]


@pytest.mark.parametrize(("change", "named"), OTHERS, ids=range(len(OTHERS)))
def test_other_parts_are_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UseError) as refused:
        carried(Tokenizer(spec("bytes") | change, "tokenizer.json"), "odd", 320)
    assert f"odd has a tokenizer that does not run in a page yet: {named}" in str(refused.value)
