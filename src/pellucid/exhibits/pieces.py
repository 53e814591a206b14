"""Text becomes ids: a vocabulary's merges join bytes to pieces, in the order of their ranks."""

from collections.abc import Iterator

from pellucid.analysis.byte_pairs import agreeing, letters, merge_steps, merges_of, vocabulary_parts
from pellucid.analysis.quality import subjects
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say

PROMPT, WORD, CHINESE = "The capital of France is", " France", "中华人民共和国"


def show(e: Experiment) -> Iterator[Panel | Claim]:
    tokenizer, ranked = e.model.tokenizer, e.on(True, False)
    parts = [p for text in (e.text("prompt"), CHINESE) for p in tokenizer.pieces(tokenizer.encode(text, special=False))]
    columns = [say("exhibit.pieces.piece"), say("exhibit.pieces.bytes"), say("exhibit.pieces.id")]
    yield TablePanel(say("exhibit.pieces.table"), columns, [(p.text, p.raw.hex(" "), p.id) for p in parts])
    steps = merge_steps(letters(tokenizer, e.text("word")), merges_of(tokenizer), ranked)
    columns = [say("exhibit.pieces.joined"), say("exhibit.pieces.rank"), say("exhibit.pieces.left")]
    rows = [("+".join(step.pair), step.rank, " ".join(step.pieces)) for step in steps]
    yield TablePanel(say("exhibit.pieces.steps", word=e.text("word")), columns, rows)
    names = [*subjects(language="en").values(), *subjects(language="zh").values()]
    right = agreeing(tokenizer, names, ranked)
    yield e.claim("ranks", right == len(names), right=right, of=len(names))
    ids, raw = tokenizer.encode(CHINESE, special=False), CHINESE.encode()
    own = tokenizer.decode(ids) == CHINESE
    yield e.claim("bytes", own, text=CHINESE, letters=len(CHINESE), bytes=len(raw), pieces=len(ids))
    sum_of = vocabulary_parts(tokenizer, e.model.config.vocab)
    fits = sum_of.total == tokenizer.size <= sum_of.rows
    yield e.claim("sum", fits, bytes=sum_of.bytes, merges=sum_of.merges, added=sum_of.added, total=sum_of.total, rows=sum_of.rows)


EXHIBIT = Exhibit("pieces", show, controls=(Control("prompt", PROMPT), Control("word", WORD)), fits=lambda cfg: True)
