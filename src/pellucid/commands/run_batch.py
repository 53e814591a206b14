"""Several prompts of `pellucid run`: one batch of the engine, each with an answer of its own."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pellucid.commands import options
from pellucid.commands.screen import Screen
from pellucid.errors import UseError

if TYPE_CHECKING:
    from pellucid.api.model import Model
    from pellucid.engine.text import Text
    from pellucid.ops.sampling.settings import Sampling

SCHEMA = 1


def answers(
    screen: Screen,
    model: "Model",
    prompts: Sequence[str | list[int]],
    new: int,
    sampling: "Sampling",
    texts: "Sequence[Text]",
    stops: tuple[int, ...],
    how: dict[str, Any],
) -> list[dict[str, Any]]:
    """Generate after several prompts at once; return what was generated after each, partly after Ctrl-C.

    new: the most tokens of each.  texts: streams of their texts.  stops: ids that end a text.  how: more settings of `Model.stream`.
    """
    ids = [model.prompt_ids(prompt) for prompt in prompts]
    if not all(ids):
        raise UseError("generate.empty", name="prompt")
    got, interrupted = [list[int]() for _ in ids], False
    ended: set[int] = set()
    try:
        for output in model.stream(ids, new, sampling, stops, True, **how):
            n = output.request
            if output.token is not None and n not in ended:
                got[n].append(output.token.id)
                texts[n].feed(got[n][-1])
            ended |= {n} if texts[n].stop is not None else set()
            if len(ended) == len(ids):
                break
    except KeyboardInterrupt:
        interrupted = True
    options.tell_held(screen, model)
    settings = {name: value for name, value in asdict(sampling).items() if name != "bias"}
    out = []
    for prompt, own, tokens, text in zip(prompts, ids, got, texts, strict=True):
        text.end()
        out.append({
            "schema": SCHEMA, "model": model.name, "prompt": prompt if isinstance(prompt, str) else None, "ids": own, "new": tokens,
            "text": text.shown, "stopped": text.stop is not None or (bool(tokens) and tokens[-1] in stops), "stop": text.stop,
            "interrupted": interrupted, "sampling": settings, "date": None, "template_seed": None,
        })  # fmt: skip
    return out


def written(screen: Screen, documents: Sequence[dict[str, Any]]) -> None:
    """Write what was generated after each prompt: a document a line with --json, else each prompt and its text."""
    for n, one in enumerate(documents, 1):
        if screen.json:
            screen.document(one)
            continue
        prompt = one["prompt"] if one["prompt"] is not None else " ".join(map(str, one["ids"]))
        screen.text(f"{n}  {prompt}\n   {one['text']}\n")
