"""What a neuron does for the next token: what flows into it, and what it adds to several words at once."""

from collections.abc import Iterator

from pellucid.analysis.needs import DENSE, GENERATOR
from pellucid.analysis.neurons import logit_moves, network, neurons_for, of_one_row
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import BarPanel, NetworkNode, NetworkPanel, Panel
from pellucid.messages import say
from pellucid.runs.answers import best_candidates

PROMPT = "The capital of France is"
MOST = 5  # neurons whose effects are listed
INPUTS, DRAWN, WORDS = 5, 5, 3  # of the network


def show(e: Experiment) -> Iterator[Panel | Claim]:
    prompt = e.text("prompt")
    plain = e.trace(prompt)
    words = best_candidates(e.model.tokenizer, plain.last_logits(0), WORDS)
    first, tokens = words[0].piece.text, [w.id for w in words]
    own = neurons_for(e.model, plain.ids, tokens[0], 64)
    few = of_one_row(own, DRAWN)
    links = network(plain, few, tokens, INPUTS)
    inputs = [NetworkNode(say("exhibit.neurons.channel", number=d), x) for d, x in links.inputs.items()]
    names = [f"F={n.number}" for n in few]
    nodes = {
        say("exhibit.neurons.inputs", path=few[0].path, row=few[0].row): [*inputs, NetworkNode(say("exhibit.neurons.rest"))],
        say("exhibit.neurons.drawn"): [NetworkNode(name, v) for name, v in zip(names, links.values, strict=True)],
        say("exhibit.neurons.words"): [NetworkNode(w.piece.text) for w in words],
    }
    yield NetworkPanel(say("exhibit.neurons.network", word=first), nodes, [links.weights, links.effects])
    effects = {f"{n.path} T={n.row} F={n.number}": n.effect for n in own[:MOST]}
    yield BarPanel(say("exhibit.neurons.effects", word=first), effects)
    yield e.claim("sums", e.same(links.gap), count=len(few), gap=links.gap)
    moves = logit_moves(plain, e.trace(prompt, changes=[few[0].off]), tokens)
    texts = {"neuron": names[0], "word": first, "second": words[1].piece.text}
    yield e.claim("several", all(e.differ(abs(move)) for move in moves[:2]), **texts, own=moves[0], other=moves[1])


EXHIBIT = Exhibit("neurons", show, controls=(Control("prompt", PROMPT),), needs=(*GENERATOR, DENSE))
