"""A cell's terms as people read them: factors and what is added by the names of their operands, and its numbers put into the formula.

scores     q · k · scale         (0.310·-1.200 + 0.500·0.200 + … ) / √32
pattern    e^(3.139 − 3.139) / Σ e^… = 1.000 / 1.101
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress

from pellucid.documents.formula import BROKEN, Made, act, by_distance, formula, gain, growth, plain, products, scaling
from pellucid.documents.number import number
from pellucid.messages import say
from pellucid.watching.terms import Terms
from pellucid.watching.watch import Seen

Label = Callable[[Made], str]


def of_weight(m: Made) -> str:
    return m.weights[0]


def scaled(m: Made) -> str:
    """A scale as the formula writes it: 1/√32, √32, or by its name."""
    text = scaling(m.setting("scale"))
    return f"1/{text.removeprefix(' / ')}" if text.startswith(" / ") else text.removeprefix(" · ")


# What an op calls its factors, and what is added to them, as the record's operands; x and the weight of all ops alike.
PLAIN: dict[str, Label] = {
    "x": lambda m: m.x,
    "y": lambda m: m.inputs[1],
    "weight": of_weight,
    "bias": lambda m: m.biases[0] if m.biases else "bias",
    "scale": scaled,
}
LABELS: dict[str, dict[str, Label]] = {
    "look": {"weight": lambda m: formula(m.seen, {})},
    "layer norm": {"centred": lambda m: f"{m.x} − μ", "over": lambda m: "1/σ"},
    "rms": {"over": lambda m: f"1/rms({m.x})", "gain": lambda m: gain(m)},
    "linear": {"weight": lambda m: m.matrix},
    "rotate": {"turn": lambda m: "cos | sin"},
    "scores": {
        "q": lambda m: " | ".join(m.inputs[: len(m.inputs) // 2]),
        "k": lambda m: " | ".join(m.inputs[len(m.inputs) // 2 :]),
        "cap": lambda m: plain(m.setting("cap")),
        "tanh": lambda m: f"tanh({products(m)}{scaling(m.setting('scale'))} / {plain(m.setting('cap'))})",
        "distance": lambda m: by_distance(m).removeprefix(" + ").removeprefix(" "),
    },
    "softmax": {"e": lambda m: f"e^({m.inputs[0]} − max)", "over": lambda m: "1/Σ e^…"},
    "probabilities": {"e": lambda m: f"e^({m.inputs[0]} − max)", "over": lambda m: "1/Σ e^…"},
    "act": {"act": act},
    "gate": {
        "act": lambda m: formula(m.seen, {}).rpartition(" · ")[0],
        "up": lambda m: formula(m.seen, {}).rpartition(" · ")[2],
    },
    "gated": {"share": lambda m: f"sigmoid({m.inputs[1]})"},
    "sigmoid": {"sigmoid": lambda m: f"sigmoid({m.x})"},
    "tanh": {"tanh": lambda m: f"tanh({m.x})"},
    "cap": {"cap": lambda m: plain(m.setting("cap")), "tanh": lambda m: f"tanh({m.x} / {plain(m.setting('cap'))})"},
    "share": {"x": lambda m: f"{m.x}[{m.inputs[1]}]", "over": lambda m: "1/Σ_A", "scale": lambda m: plain(m.setting("scale"))},
    "top": {"expert": lambda m: formula(m.seen, {}), "chosen": lambda m: formula(m.seen, {})},
    "experts": {"weight": lambda m: f"{m.weights[0]}[eₙ]", "bias": lambda m: f"{m.weights[-1]}[eₙ]"},
    "weighted": {"share": lambda m: m.inputs[1]},
    "combine": {"share": lambda m: m.inputs[1]},
    "index": {"weights": lambda m: m.inputs[1], "match": lambda m: f"max({m.inputs[0]}·{m.inputs[2]}ᵀ, 0)", "scale": lambda m: "1/√(H·K)"},
    "tempered": {"growth": growth},
    "sinusoid": {"wave": lambda m: formula(m.seen, {})},
    "presence": {"presence": lambda m: f"−{plain(m.setting('presence'))} · written"},
    "frequency": {"frequency": lambda m: f"−{plain(m.setting('frequency'))} · count"},
    "repetition": {"penalty": lambda m: f"repetition {plain(m.setting('repetition'))}"},
    "temperature": {"gap": lambda m: f"{m.x} − max", "over": lambda m: f"1/{plain(m.setting('temperature'))}"},
}
ADAPTED = re.compile(r"addition (\d+)")

# The numbers put in, where the products alone do not read as the formula; a name in braces is a number that the terms tell. Of a
# template that is a word's key, the word is the sentence.
SOFTMAX, EXPERT, HIDDEN = "e^({x} − {top}) / Σ e^… = {e} / {sum}", "formula.expert", "formula.hidden"
TEMPLATES: dict[str, Label] = {
    "softmax": lambda m: SOFTMAX,
    "probabilities": lambda m: SOFTMAX,
    "layer norm": lambda m: "({x} − {mean}) / {deviation} · {weight}" + " + {bias}" * len(m.biases),
    "rms": lambda m: "{x} / {rms}" + (" · {gain}" if m.setting("offset") else " · {weight}" * bool(m.weights)),
    "act": lambda m: m.setting("act", "act") + "({x})",
    "gate": lambda m: "" if m.setting("act") == "clamped" else m.setting("act", "act") + "({x}) · {up} = {act} · {up}",
    "gated": lambda m: "sigmoid({gate}) · {x}",
    "sigmoid": lambda m: "sigmoid({x})",
    "tanh": lambda m: "tanh({x})",
    "cap": lambda m: f"{plain(m.setting('cap', 'cap'))} · tanh({{x}} / {plain(m.setting('cap', 'cap'))})",
    "share": lambda m: "{x}" + " / {sum}" * bool(m.setting("normalised")) + " · {scale}" * (m.setting("scale", 1) != 1),
    "temperature": lambda m: f"({{x}} − {{top}}) / {plain(m.setting('temperature', 1))}",
    "top": lambda m: EXPERT if m.seen.dims.endswith(" A") else "",
}


def labels(seen: Seen, dims: Mapping[str, str]) -> Callable[[str], str]:
    """How people read the name that an op gave a factor or a summand: "weight" of a product is W_q."""
    made = Made(seen, dims)

    def label(name: str) -> str:
        if (found := ADAPTED.fullmatch(name)) is not None:
            return made.additions[int(found[1])]
        write = LABELS.get(seen.op or "", {}).get(name) or PLAIN.get(name)
        with suppress(*BROKEN):
            return name if write is None else write(made)
        return name

    return label


def template(seen: Seen) -> str:
    """What a cell's numbers are put into; empty where its products say it all."""
    with suppress(*BROKEN):
        return TEMPLATES[seen.op or ""](Made(seen, {}))
    return ""


def needed(text: str) -> list[str]:
    """The numbers that a template is filled with."""
    return ["expert", "score"] if text == EXPERT else re.findall(r"\{(\w+)\}", text)


def values(terms: Terms) -> dict[str, float]:
    """The numbers of a cell by the names of its op: factors of one row, what is added, and what they are of."""
    return {name: float(f[0]) for name, f in terms.factors.items() if len(f) == 1} | terms.added | terms.about


def put(text: str, numbers: Mapping[str, float]) -> str:
    """A template with its numbers, as people read them."""
    told = {name: number(x) for name, x in numbers.items()}
    if text == SOFTMAX and numbers.get("x") == float("-inf"):
        return say("formula.hidden")
    if text == EXPERT:
        return say("formula.expert", expert=plain(numbers["expert"]), score=told["score"])
    written = re.sub(r"\{(\w+)\}", lambda found: told.get(found[1], "…"), text)
    return written.replace("+ -", "− ").replace("− -", "+ ")
