"""MHA, GQA, MQA, MLA: keys and values shared by more and more heads, and what is saved and lost by it."""

from collections.abc import Iterator

from pellucid.analysis.cache_cost import cache_cost, groupings, shared_by_all
from pellucid.analysis.needs import SHARED
from pellucid.analysis.small_training import trained_on
from pellucid.analysis.step_reading import CONTEXT, HEADS, LATENT, WIDTH, readings
from pellucid.analysis.turns_timed import in_turn
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"
LARGE, STEPS = "gpt3-175b", (20, 40, 80)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    groups = groupings(e.model.config)
    models = {n: e.variant({"layers.*.attn.kv_heads": n}) for n in groups}
    runs = {say("exhibit.kinds.heads", count=n): e.trace(e.text("prompt"), model) for n, model in models.items()}
    yield e.answers(say("exhibit.kinds.answers"), runs)
    costs = {n: cache_cost(model.config, model.family.name, model.name) for n, model in models.items()}
    right = {n: e.quality(model) for n, model in models.items()}
    heads = (
        "exhibit.kinds.kind",
        "exhibit.kinds.groups",
        "exhibit.kinds.token",
        "exhibit.kinds.read",
        "exhibit.kinds.flops",
        "exhibit.kinds.right",
    )
    steps = int(e.number("steps"))
    later = {n: e.quality(trained_on(model, steps)) for n, model in models.items() if n != groups[0]}
    trained = {n: later[n].right if n in later else None for n in groups}
    rows = [(c.kind, n, c.token, c.read, c.flops, right[n].right, trained[n]) for n, c in costs.items()]
    yield TablePanel(say("exhibit.kinds.table"), [*map(say, heads), say("exhibit.kinds.later", steps=steps)], rows)
    most, least = costs[groups[0]], costs[groups[-1]]
    numbers = {"most": most.token, "least": least.token, "read": most.read, "reads": least.read, "context": most.context}
    smaller = least.token < most.token and least.read < most.read
    yield e.claim("bytes", smaller, groups=groups[0], **numbers)
    plain, one = right[groups[0]], right[groups[-1]]
    after = later[groups[-1]]
    if plain.right:
        yield e.claim("pooled", one.right < plain.right, right=one.right, plain=plain.right, of=plain.of)
        yield e.claim("trained", after.right > one.right, right=after.right, pooled=one.right, of=after.of, steps=steps)
    else:
        numbers = {"right": plain.right, "of": plain.of, "after": after.right}
        yield e.claim("unable", one.right <= plain.right, model=e.model.name, steps=steps, **numbers)
    read = {one.kind: one for one in readings()}
    times = in_turn({kind: one.step for kind, one in read.items()})
    speeds = [(kind, one.kv_heads, one.read, one.flops, times[kind].fastest, times[kind].median) for kind, one in read.items()]
    names = ("exhibit.kinds.kind", "exhibit.kinds.groups", "exhibit.kinds.read", "exhibit.kinds.flops", "exhibit.fastest", "exhibit.median")
    yield TablePanel(say("exhibit.kinds.speed", heads=HEADS, width=WIDTH, context=CONTEXT), list(map(say, names)), speeds)
    less = read["MHA"].read > read["GQA"].read > read["MQA"].read and read["MHA"].flops == read["MQA"].flops
    yield e.claim("reads", less, most=read["MHA"].read, least=read["MQA"].read, flops=read["MQA"].flops, latent=read[LATENT].flops)
    own, shared, ratio = shared_by_all(LARGE)
    yield e.claim("large", shared.token < own.token, model=LARGE, own=own.token, shared=shared.token, ratio=ratio)


EXHIBIT = Exhibit("kinds", show, controls=(Control("prompt", PROMPT), Control("steps", 40, STEPS)), needs=SHARED)
