"""Where Paris is kept: one block's feed-forward part, a few of its heads, and no single neuron."""

from collections.abc import Iterator

from pellucid.analysis.needs import DENSE, GENERATOR
from pellucid.analysis.neurons import neurons_for, of_one_row, probability
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import BarPanel, LinePanel, Panel, TablePanel
from pellucid.messages import say
from pellucid.runs.answers import best_candidates

PROMPT = "The capital of France is"
OFF = (0, 1, 4, 16, 64)  # neurons
DRAWN = 5  # neurons that are turned off one by one


def show(e: Experiment) -> Iterator[Panel | Claim]:
    cfg, prompt = e.model.config, e.text("prompt")
    right = {f"layers.{i}.ffn": e.quality(changes=[f"layers.{i}.ffn = 0"]) for i in range(len(cfg.layers))}
    worst = min(right, key=lambda path: right[path].right)
    attn = worst.replace("ffn", "attn.z")
    heads = [e.quality(changes=[f"{attn}[H={h}] = 0"]) for h in range(cfg.layers[0].attn.heads)]
    columns = [say("exhibit.facts.off"), say("exhibit.facts.right")]
    rows = [*((path, q.right) for path, q in right.items()), *((f"{attn} H={h}", q.right) for h, q in enumerate(heads))]
    yield TablePanel(say("exhibit.facts.table"), columns, rows, list(right).index(worst))
    others = [q.right for path, q in right.items() if path != worst] or [0]
    yield e.claim("block", right[worst].right < min(others), path=worst, right=right[worst].right, others=min(others), of=right[worst].of)
    counts = [q.right for q in heads]
    yield e.claim("heads", min(counts) < max(counts), path=attn, least=min(counts), most=max(counts), of=right[worst].of)

    plain = e.trace(prompt)
    first, second = best_candidates(e.model.tokenizer, plain.last_logits(0), 2)
    own, other = (neurons_for(e.model, plain.ids, one.id, OFF[-1]) for one in (first, second))
    few = of_one_row(own, DRAWN)
    names = [f"F={n.number}" for n in few]
    alone = {name: probability(e.trace(prompt, changes=[n.off]), first.id) for name, n in zip(names, few, strict=True)}
    yield BarPanel(
        say("exhibit.facts.alone", word=first.piece.text), {say("exhibit.facts.none"): probability(plain, first.id), **alone}, most=1.0
    )
    chances = {
        say("exhibit.facts.of", word=word.piece.text): [
            probability(e.trace(prompt, changes=[n.off for n in neurons[:count]]), first.id) for count in OFF
        ]
        for word, neurons in ((first, own), (second, other))
    }
    yield LinePanel(say("exhibit.facts.chance", word=first.piece.text), say("exhibit.facts.count"), OFF, chances)
    mine, theirs = chances.values()
    numbers = {"first": mine[1], "plain": mine[0], "all": mine[-1], "other": theirs[-1], "count": OFF[-1]}
    spread = mine[-1] < mine[1] and mine[-1] < theirs[-1]
    yield e.claim("neurons", spread, word=first.piece.text, second=second.piece.text, **numbers)


EXHIBIT = Exhibit("facts", show, controls=(Control("prompt", PROMPT),), needs=(*GENERATOR, DENSE))
