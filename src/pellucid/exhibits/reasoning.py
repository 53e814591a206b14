"""Reasoning models: the parts of the models that they were trained from, other training, longer answers."""

from collections.abc import Iterator

from pellucid.analysis.reasoning_cost import CLOSED, PAIRS, THOUGHTS, caches, compared, statements
from pellucid.exhibits.exhibit import Claim, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, Panel, TablePanel
from pellucid.messages import say

OTHER = {"deepseek-r1": "deepseek-v2", "qwq-32b": "qwen2.5-14b"}  # models that they were not trained from
FACTS = (
    ("2024-09", "o1", "exhibit.reasoning.o1", "openai.com/index/learning-to-reason-with-llms"),
    ("2024-11", "QwQ-32B-Preview", "exhibit.reasoning.qwq", "qwenlm.github.io/blog/qwq-32b-preview"),
    ("2025-01", "Kimi k1.5", "exhibit.reasoning.kimi", "arXiv 2501.12599"),
    ("2025-01", "DeepSeek-R1", "exhibit.reasoning.r1", "arXiv 2501.12948"),
)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    columns = [
        say("exhibit.reasoning.date"),
        say("exhibit.reasoning.model"),
        say("exhibit.reasoning.fact"),
        say("exhibit.reasoning.source"),
    ]
    published = list(map(say, (key for _, _, key, _ in FACTS)))
    facts = [(date, name, text, source) for (date, name, _, source), text in zip(FACTS, published, strict=True)]
    yield TablePanel(say("exhibit.reasoning.facts"), columns, facts)
    pairs = list(compared(e.on(PAIRS, OTHER)))
    columns = [say("exhibit.reasoning.model"), say("exhibit.reasoning.start"), say("exhibit.reasoning.same")]
    sizes = [say("exhibit.reasoning.parameters"), say("exhibit.reasoning.before")]
    marks = {True: "=", False: "≠"}
    rows = [(f"{p.name} {p.released[0]}", f"{p.start} {p.released[1]}", marks[p.equal], *p.parameters) for p in pairs]
    yield TablePanel(say("exhibit.reasoning.pairs"), [*columns, *sizes], rows)
    models = caches(list(PAIRS))
    lines = {m.name: [m.cache(tokens) for tokens in THOUGHTS] for m in models}
    yield LinePanel(say("exhibit.reasoning.cache"), say("exhibit.reasoning.tokens"), THOUGHTS, lines)
    first, second = pairs
    same = all(p.equal and p.parameters[0] == p.parameters[1] for p in pairs)
    numbers = {"first": first.name, "one": f"{first.parameters[0]:,}", "second": second.name, "two": f"{second.parameters[0]:,}"}
    yield e.claim("same", same, **numbers, start=first.start, other=second.start)
    most, least = max(m.cache(THOUGHTS[-1]) for m in models), min(m.cache(THOUGHTS[-1]) for m in models)
    yield e.claim("cache", least < most, tokens=THOUGHTS[-1], most=f"{most:,}", least=f"{least:,}")
    name, own, known = statements(CLOSED)
    yield e.claim("closed", not known and len(own) > 0, model=name, statements=len(own))


EXHIBIT = Exhibit("reasoning", show, own=True)
