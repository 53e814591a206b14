"""BERT's WordPiece from vocab.txt, one piece a line, as the equivalent tokenizer.json."""

from pathlib import Path
from typing import Any

from pellucid.checkpoint.disk import read_text
from pellucid.checkpoint.json_file import TABLE_BYTES, name_of
from pellucid.errors import TokenizerError

# Classes whose text side is BERT's; others (Japanese BERT, MPNet, ESM ...) cut or frame a text in their own way.
CLASSES = ("Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "SqueezeBert", "LayoutLM", "Lxmert", "Retribert", "Dpr", "Realm")
SPECIAL = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
LONGEST_WORD = 100  # characters; a longer word is unknown


def wordpiece(vocab: Path, settings: dict[str, Any], named: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the spec and the content of each special token, from a vocab.txt and the settings of tokenizer_config.json."""
    kind = settings.get("tokenizer_class", "BertTokenizer")
    if not isinstance(kind, str) or kind.removesuffix("Fast").removesuffix("Tokenizer") not in CLASSES:
        raise TokenizerError("wordpiece.class", file=vocab, found=kind, allowed=", ".join(CLASSES))
    lines = read_text(vocab, TABLE_BYTES, TokenizerError).split("\n")
    # a line that stands twice has its last number, as in transformers
    pieces = {line: id for id, line in enumerate(lines[:-1] if lines[-1] == "" else lines)}
    special = SPECIAL | named
    for name in ("unk", "sep", "cls"):
        if special[name] not in pieces:
            raise TokenizerError("wordpiece.special", file=vocab, name=f"{name}_token", token=special[name])
    special = {name: token for name, token in special.items() if token in pieces or name in named}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = sorted({token: pieces[token] for token in special.values() if token in pieces}.items(), key=lambda pair: pair[1])
    lower = _flag(settings, "do_lower_case", True, vocab)
    if not _flag(settings, "do_basic_tokenize", True, vocab):
        raise TokenizerError("tokenizer.value", file=vocab, field="do_basic_tokenize", found=False)
    spec = {
        "version": "1.0",
        "added_tokens": [{"id": id, "content": token, **flags} for token, id in added],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": _flag(settings, "tokenize_chinese_chars", True, vocab),
            "strip_accents": _flag(settings, "strip_accents", None, vocab),
            "lowercase": lower,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _frame((special["cls"], pieces[special["cls"]]), (special["sep"], pieces[special["sep"]])),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": special["unk"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": LONGEST_WORD,
            "vocab": pieces,
        },
    }
    return spec, special


def _frame(cls: tuple[str, int], sep: tuple[str, int]) -> dict[str, Any]:
    """Return the post-processor: [CLS] text [SEP], and [CLS] text [SEP] pair [SEP] with token type 1 from the pair on."""

    def token(name: str, type: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": type}}

    first, second = ({"Sequence": {"id": name, "type_id": type}} for type, name in enumerate("AB"))
    single = [token(cls[0], 0), first, token(sep[0], 0)]
    known = {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in (cls, sep)}
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, second, token(sep[0], 1)], "special_tokens": known}


def _flag(settings: dict[str, Any], name: str, default: bool | None, vocab: Path) -> bool | None:
    value = settings.get(name)
    if value is not None and type(value) is not bool:
        raise TokenizerError(
            "tokenizer.kind", file=vocab.with_name("tokenizer_config.json"), field=name, found=name_of(value), expected="boolean"
        )
    return default if value is None else value
