"""Regular expressions of published tokenizers that take linear time, so that they may run in this process.

Others are not wrong: they run in a worker with a time limit. ` +▁` (XLNet's kin) is not here: on n spaces it takes n² steps.
"""

SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _cl100k(digits: str, letters: str = r"\p{L}", others: str = r"\p{L}") -> str:
    return rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?[^\s{others}\p{{N}}]+[\r\n]*|{_SPACE}"


def _o200k(digits: str, short: str) -> str:
    word = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}"
    return rf"{word}*{_LOWER}+{short}|{word}+{_LOWER}*{short}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4 = _cl100k(r"\p{N}{1,3}")  # Llama 3, GLM-4
QWEN2 = _cl100k(r"\p{N}")  # Qwen3 too
GPT4O = _o200k(r"\p{N}{1,3}", f"{SHORT}?")  # gpt-oss, Llama 4
TEKKEN = _o200k(r"\p{N}", "")  # Mistral's
DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|""" + _SPACE
)  # V3
CJK = f"[{chr(0x4E00)}-{chr(0x9FA5)}{chr(0x3040)}-{chr(0x309F)}{chr(0x30A0)}-{chr(0x30FF)}]+"  # DeepSeek-V3

PUBLISHED = frozenset(
    {
        *(GPT2, GPT4, QWEN2, GPT4O, TEKKEN, DEEPSEEK, CJK),
        _cl100k(r"\p{N}", r"[\p{L}\p{M}]", r"\p{L}\p{M}"),  # Qwen3.5
        r"\p{N}{1,3}",  # DeepSeek-V3
        r"\p{N}",
        r"\p{N}+",
        r"[0-9][0-9][0-9]",  # Falcon
        r"[\r\n]",
        r" ?[^(\s|[.,!?…。，、।۔،])]+",  # BLOOM
        r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",  # CLIP
        r" {2,}",  # T5, ALBERT and other SentencePiece models
        r"\s+",
        r"\n",
        r"[\n\r\t]",
        r"^▁+$",
    }
)
