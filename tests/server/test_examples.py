"""Prompts to try: a specimen answers its own, each was held out from its training, and no tokenizer gets one that it cannot write."""

from itertools import chain
from pathlib import Path
from typing import cast

import pytest

import pellucid
from pellucid.runs.examples import BLANK, PROMPTS, examples, writes
from pellucid.tokenizer.tokenizer import Tokenizer
from pellucid.training.invented import Invented
from pellucid.training.quiz import questions
from small_tokenizers import byte_level, sentencepiece

CORPORA = Path(pellucid.__file__).parent / "training" / "corpora"


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[str, ...]]:
    """Return the right answers of every held-out question."""
    invented = Invented(CORPORA / "reader", 1, 4, 0, 64)
    return {q.prompt: q.right for q in chain(questions(CORPORA / "capitals"), questions(invented))}


@pytest.mark.parametrize("name", sorted(name for name in PROMPTS if "/" in name and name != "pellucid/twelve-countries"))
@pytest.mark.quick(4)
def test_a_specimen_answers_its_own(name: str, answers: dict[str, tuple[str, ...]]) -> None:
    model = pellucid.load(name)
    own = examples(name, "decoder", model.tokenizer)
    assert own == PROMPTS[name]
    for prompt in own:
        new = model.tokenizer.decode(list(pellucid.trace(model, prompt, 4).new))
        assert prompt.startswith("The key of Alda") or any(new.startswith(right) for right in answers[prompt]), (prompt, new)


def test_blanks_are_filled_and_texts_translated() -> None:
    bert, t5 = pellucid.load("pellucid/capitals-bert"), pellucid.load("pellucid/capitals-t5")
    filled = [bert.tokenizer.decode(list(pellucid.trace(bert, p).new)).strip() for p in examples(bert.name, "encoder", bert.tokenizer)]
    assert filled == ["Paris", "yen", "巴黎"] and all(BLANK in p for p in PROMPTS["encoder"])
    texts = [t5.tokenizer.decode(list(pellucid.trace(t5, p, 12).new)) for p in examples(t5.name, "encoder-decoder", t5.tokenizer)]
    assert [t.partition("。")[0] for t in texts] == ["法国的首都是巴黎", "日本的货币是日元", "巴西的主要语言是葡萄牙语"]


class Ascii:
    """A tokenizer of 128 characters, which drops all others."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        return [ord(c) for c in text if c.isascii()]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def test_a_tokenizer_gets_what_it_can_write(tmp_path: Path) -> None:
    small = cast(Tokenizer, Ascii())
    assert examples("somewhere/else", "decoder", small) == [text for text in PROMPTS["decoder"] if text.isascii()]
    assert not writes(small, PROMPTS["decoder"][-1])
    for i, made in enumerate((byte_level("llama-bpe"), sentencepiece(True), sentencepiece(False))):  # which begin with a token of their own
        (tmp_path / f"{i}.json").write_text(made.to_str())
        assert examples("somewhere/else", "decoder", Tokenizer.from_file(tmp_path / f"{i}.json")) == PROMPTS["decoder"]
