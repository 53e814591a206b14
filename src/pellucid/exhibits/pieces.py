"""Text becomes ids: a vocabulary's merges join bytes to pieces, in the order of their ranks; another vocabulary gives other ids."""

from collections.abc import Iterator

from pellucid.analysis.byte_pairs import agreeing, comma_separated, grains, letters, merge_steps, merges_of, read_ids, vocabulary_parts
from pellucid.analysis.quality import subjects
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say
from pellucid.runs.answers import visible

PROMPT, WORD, OTHER = "The capital of France is", " France", "pellucid/reader"
CHINESE = ("我可以拥有一杯咖啡吗？", "中华人民共和国", "小沈阳")


def show(e: Experiment) -> Iterator[Panel | Claim]:
    tokenizer, other, ranked = e.model.tokenizer, e.open_model(OTHER).tokenizer, e.on(True, False)
    prompt = e.text("prompt")
    ids, foreign = tokenizer.encode(prompt, special=False), other.encode(prompt, special=False)
    columns = [say("exhibit.pieces.piece"), say("exhibit.pieces.bytes"), say("exhibit.pieces.id")]
    rows = [(visible(p), p.raw.hex(" "), str(p.id)) for p in tokenizer.pieces(ids)]
    yield TablePanel(say("exhibit.pieces.table", prompt=prompt), columns, rows)
    typed = read_ids(e.text("ids"), tokenizer) if e.text("ids") else foreign
    spelled, back = tokenizer.decode(typed), tokenizer.decode(ids)
    rows = [(visible(p), p.raw.hex(" "), str(p.id)) for p in tokenizer.pieces(typed)]
    yield TablePanel(say("exhibit.pieces.typed", ids=comma_separated(typed), text=spelled), columns, rows)
    steps = merge_steps(letters(tokenizer, e.text("word")), merges_of(tokenizer), ranked)
    columns = [say("exhibit.pieces.joined"), say("exhibit.pieces.rank"), say("exhibit.pieces.left")]
    merged = [("+".join(step.pair), step.rank, " ".join(step.pieces)) for step in steps]
    yield TablePanel(say("exhibit.pieces.steps", word=e.text("word")), columns, merged)
    columns = [say("exhibit.pieces.text"), say("exhibit.pieces.letters"), say("exhibit.pieces.bytes"), e.model.name, OTHER]
    coarse = grains(CHINESE, (tokenizer, other))
    yield TablePanel(say("exhibit.pieces.grains"), columns, coarse)
    yield e.claim("ids", back == prompt, prompt=prompt, ids=comma_separated(ids), typed=comma_separated(typed), spelled=spelled)
    names = [*subjects(language="en").values(), *subjects(language="zh").values()]
    right = agreeing(tokenizer, names, ranked)
    yield e.claim("ranks", right == len(names), right=right, of=len(names))
    text, characters, raw, *pieces = coarse[1]
    most = max(pieces)
    yield e.claim("bytes", most <= raw, text=text, letters=characters, bytes=raw, own=pieces[0], other=pieces[1])
    sum_of = vocabulary_parts(tokenizer, tokenizer.rows)
    fits = sum_of.total == tokenizer.size <= sum_of.rows
    yield e.claim("sum", fits, bytes=sum_of.bytes, merges=sum_of.merges, added=sum_of.added, total=sum_of.total)


EXHIBIT = Exhibit("pieces", show, controls=(Control("prompt", PROMPT), Control("ids", ""), Control("word", WORD)), needs=())
