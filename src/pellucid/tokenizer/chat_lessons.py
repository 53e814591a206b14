"""Which tokens of a chat a model learns: what an assistant gave, up to the stop that ends its turn.

    <|user|>Capital of France?<|end|><|assistant|>Paris.<|end|>
    0                                             1     1

A template that marks answers by `{% generation %}` is taken at its word. Any other is asked: what stands before an answer is the prompt
that it makes of the messages before, and the answer is what the rendering with the message adds. A template may write an answer otherwise
once more follows, as those that drop old reasoning do; then each answer is a chat of its own, which ends with it.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pellucid.errors import TokenizerError
from pellucid.tokenizer.chat_template import Rendered, choose
from pellucid.tokenizer.tokenizer import Tokenizer

WHEN = datetime(2024, 7, 26)  # what a template is told that asks for the date, so that equal chats have equal tokens
Span = tuple[int, int]


class Lesson(NamedTuple):
    """A chat's ids, and for each True if it is learnt."""

    ids: list[int]
    learnt: list[bool]


def lessons(
    tokenizer: Tokenizer,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    template: str | None = None,
    first: int = 0,
) -> list[Lesson]:
    """Return a chat with its learnt tokens, more than one if each answer is a chat of its own. first: the first message that is learnt.

    A TokenizerError if the template leaves nothing of an answer, or its prompt is not how the answer's chat begins.
    """
    if not isinstance(messages, list):  # render says what it is in place of them
        tokenizer.render(messages, tools, template=template)
    taken = choose(tokenizer.templates, tokenizer.file, template, bool(tools))
    given = (messages, tools)

    def rendered(count: int, prompt: bool) -> Rendered:
        return tokenizer.render(messages[:count], tools, template=taken, add_generation_prompt=prompt, now=WHEN, seed=0)

    def lesson(text: Rendered, spans: Sequence[Span]) -> Lesson:
        ids, places = tokenizer.chat_encoder(taken).located(text, given)
        return Lesson(ids, overlapping(places, spans))

    answers = [i for i, m in enumerate(messages) if i >= first and isinstance(m, dict) and m.get("role") == "assistant"]
    full = rendered(len(messages), False)
    if taken.marks:
        if answers and not full.answers:
            raise TokenizerError("answers.nothing", number=answers[0])
        start = 0
        if first and answers:
            before = rendered(first, False).text
            if not full.text.startswith(before):
                raise TokenizerError("answers.prompt", number=first)
            start = len(before)
        return [lesson(full, [(max(start, a), z) for a, z in full.answers if z > start])] if answers else []
    turns = list[tuple[Rendered, Span]]()
    for i in answers:
        if i == 0:
            continue  # nothing asks for it, so it is read and not learnt
        before, after = rendered(i, True).text, full if i + 1 == len(messages) else rendered(i + 1, False)
        if not after.text.startswith(before):
            raise TokenizerError("answers.prompt", number=i)
        if not after.text[len(before) :].strip():
            raise TokenizerError("answers.nothing", number=i)
        turns.append((after, (len(before), len(after.text))))
    if all(full.text.startswith(after.text) for after, _ in turns):
        return [lesson(full, [span for _, span in turns])] if turns else []
    return [lesson(after, [span]) for after, span in turns]


def overlapping(places: Sequence[Span], spans: Sequence[Span]) -> list[bool]:
    """Return for each token, by the characters that it stands for, whether one of them lies in a span. Both are in order."""
    out, at = list[bool](), 0
    for start, stop in places:
        while at < len(spans) and spans[at][1] <= start:
            at += 1
        out.append(at < len(spans) and stop > spans[at][0])
    return out
