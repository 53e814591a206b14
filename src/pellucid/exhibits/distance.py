"""How far back a model looks: a fact of the text is seen as well eight sentences back as one."""

from collections.abc import Iterator

from pellucid.analysis.needs import READER
from pellucid.analysis.reading import question_texts, word_place
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel, TensorPlace
from pellucid.messages import say


def show(e: Experiment) -> Iterator[Panel | Claim]:
    texts = question_texts(int(e.number("facts")), e.on(True, False), e.text("language"))
    runs = [e.trace(text.prompt) for text in texts]
    yield e.answers(say("exhibit.distance.answers"), {say("exhibit.distance.near"): runs[0], say("exhibit.distance.far"): runs[-1]})
    words = [word_place(run, text.word) for run, text in zip(runs, texts, strict=True)]
    columns = [say("exhibit.distance.between"), say("exhibit.distance.back"), say("exhibit.distance.weight")]
    answers = [say("exhibit.distance.head"), say("exhibit.distance.answer"), say("exhibit.distance.expected")]
    places = {(n, 2): TensorPlace(w.path, w.cell, n) for n, w in enumerate(words)}
    rows = [(t.between, w.back, w.weight, f"{w.path} H={w.head}", w.answered, t.word) for t, w in zip(texts, words, strict=True)]
    yield TablePanel(say("exhibit.distance.table"), [*columns, *answers], rows, tinted=(2,), places=places)
    right = len([w for w, t in zip(words, texts, strict=True) if w.answered == t.word])
    yield e.claim("right", right == len(texts), right=right, of=len(texts), most=max(w.back for w in words))
    least = min(w.weight for w in words)
    yield e.claim("weight", least > 0.5, least=least)


EXHIBIT = Exhibit("distance", show, "pellucid/reader", (Control("facts", 8, (2, 4, 8)), Control("language", "en", ("en", "zh"))), READER)
