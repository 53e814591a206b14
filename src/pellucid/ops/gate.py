"""The activation of a feed-forward part, alone or gating a second product."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.ops import gpu, native
from pellucid.ops.kinds import Label, Operands, OpKind, plain, unmasked
from pellucid.watching.tap import note
from pellucid.watching.terms import Index, Terms


def act_text(m: Operands) -> str:
    """Write the activation of the first operand."""
    return f"{m.setting('act', 'act')}({m.inputs[0]})"


def gate_text(m: Operands) -> str:
    """Write the activation of the first operand times the second one."""
    if m.setting("act") == "clamped":
        g, up = m.inputs
        return f"min({g}, 7) · sigmoid(1.702 · min({g}, 7)) · (clamp({up}, −7, 7) + 1)"
    return f"{act_text(m)} · {m.inputs[1]}"


def gate_numbers(m: Operands) -> str:
    """Write the template of a gate's numbers; "clamped" reads as its formula and needs none."""
    return "" if m.setting("act") == "clamped" else m.setting("act", "act") + "({x}) · {up} = {act} · {up}"


ACT = OpKind("act", act_text, labels={"act": act_text}, template=lambda m: m.setting("act", "act") + "({x})", result="activation")
GATE = OpKind(
    "gate",
    gate_text,
    labels={"act": lambda m: gate_text(m).rpartition(" · ")[0], "up": lambda m: gate_text(m).rpartition(" · ")[2]},
    template=gate_numbers,
    result="activation",
)
GATED = OpKind(
    "gated",
    lambda m: f"sigmoid({m.inputs[1]}) · {m.x}",
    labels={"share": lambda m: f"sigmoid({m.inputs[1]})"},
    template=lambda m: "sigmoid({gate}) · {x}",
)
CAP = OpKind(
    "cap",
    lambda m: f"{plain(m.setting('cap', 'cap'))} · tanh({m.x} / {plain(m.setting('cap', 'cap'))})",
    labels={"cap": lambda m: plain(m.setting("cap")), "tanh": lambda m: f"tanh({m.x} / {plain(m.setting('cap'))})"},
    template=lambda m: f"{plain(m.setting('cap', 'cap'))} · tanh({{x}} / {plain(m.setting('cap', 'cap'))})",
)
CLIP = OpKind(
    "clip",
    lambda m: f"clamp({m.x}, −{plain(m.setting('clip', 'c'))}, {plain(m.setting('clip', 'c'))})",
    labels={"clip": lambda m: f"clamp({m.x}, −{plain(m.setting('clip'))}, {plain(m.setting('clip'))})"},
    template=lambda m: "",
)
TANH = OpKind("tanh", lambda m: f"tanh({m.x})", labels={"tanh": lambda m: f"tanh({m.x})"}, template=lambda m: "tanh({x})")
SIGMOID = OpKind(
    "sigmoid",
    lambda m: f"sigmoid({m.x})",
    labels={"sigmoid": lambda m: f"sigmoid({m.x})"},
    template=lambda m: "sigmoid({x})",
    result="gates",
)
E_LABELS: dict[str, Label] = {"e": lambda m: f"e^({m.inputs[0]} − max)", "over": lambda m: "1/Σ e^…"}
E_NUMBERS = "e^({x} − {top}) / Σ e^… = {e} / {sum}"
SOFTMAX = OpKind(  # attention's pattern too: over the visible keys, and a sink
    "softmax",
    lambda m: f"softmax({unmasked(m)}{''.join(f', {w}' for w in m.weights)})",
    labels=E_LABELS,
    template=lambda m: E_NUMBERS,
    result="shares",
)


XIELU = OpKind(
    "xielu",
    lambda m: f"xielu({', '.join((*m.inputs, *m.weights))})",
    labels={"xielu": lambda m: f"xielu({m.x})"},
    template=lambda m: "",
)


def gelu_bloom(x: Tensor) -> Tensor:
    """Compute BLOOM's GELU by tanh, whose √(2/π) has eight digits: float64 shows the difference."""
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1.0 + 0.044715 * x * x)))


def relu2(x: Tensor) -> Tensor:
    """Compute the square of max(x, 0), arXiv 2109.08668."""
    return F.relu(x).square()


ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "relu2": relu2,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_bloom": gelu_bloom,
}


def clamped(g: Tensor) -> Tensor:
    """Compute gpt-oss's activation of a gate: x · sigmoid(1.702 x), x at most 7."""
    g = g.clamp(max=7.0)
    return g * torch.sigmoid(g * 1.702)


def gate(g: Tensor, up: Tensor | None, act: str) -> Tensor:
    """Compute act(g) · up, or act(g) if `up` is None. Under "clamped", gpt-oss's pair, up is clamped to -7 ... 7 and gains 1."""
    if act == "clamped":
        assert up is not None
        y = native.gate(g, up, act) if native.fits_gate(g, up, act) else clamped(g) * (up.clamp(-7.0, 7.0) + 1)
    else:
        f = ACTS[act]
        if native.fits_gate(g, up, act):
            y = native.gate(g, up, act)
        elif gpu.fits_gate(g, up, act):
            y = gpu.gate(g, up, act)
        else:
            y = f(g) if up is None else f(g) * up

    def terms(i: Index) -> Terms:
        x, times = g[i].double(), {} if up is None else {"up": up[i].double()}
        if act == "clamped":
            return Terms(act=clamped(x), up=times["up"].clamp(-7.0, 7.0) + 1).of(x=x, y=times["up"])
        return Terms(act=ACTS[act](x), **times).of(x=x)

    return note(y, (ACT if up is None else GATE).name, (g,) if up is None else (g, up), (), terms, settings=lambda: {"act": act})


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """Multiply each row of x [... D] by the sigmoid of its number, of gate [... 1]."""
    y = native.gated(x, gate) if native.fits_gated(x, gate) else x * torch.sigmoid(gate)

    def terms(i: Index) -> Terms:
        g = gate[(*i[:-1], 0)].double()
        return Terms(share=torch.sigmoid(g), x=x[i]).of(gate=g)

    return note(y, GATED.name, (x, gate), (), terms)


def capped(x: Tensor, cap: float) -> Tensor:
    """Compute cap · tanh(x / cap): near x for a small x, never beyond `cap` (Gemma 2, arXiv 2408.00118)."""
    y = native.capped(x, cap) if native.fits_each(x) else cap * torch.tanh(x / cap)
    return note(y, CAP.name, (x,), (), lambda i: bounded(x[i], cap), settings=lambda: {"cap": cap})


def clipped(x: Tensor, clip: float) -> Tensor:
    """Compute x, but no less than −clip and no more than clip."""
    most = min(clip, torch.finfo(x.dtype).max)
    terms = lambda i: Terms(clip=x[i].clamp(-most, most)).of(x=x[i])  # noqa: E731
    y = native.clipped(x, most) if native.fits_each(x) else x.clamp(-most, most)
    return note(y, CLIP.name, (x,), (), terms, settings=lambda: {"clip": clip})


def bounded(x: Tensor, cap: float) -> Terms:
    """Return the terms of a cell of `capped`."""
    return Terms(cap=cap, tanh=torch.tanh(x.double() / cap)).of(x=x)


def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    """Compute p·x² + β·x above 0, and n·(e^min(x, ε) − 1 − x) + β·x below (arXiv 2411.13010).

    p is softplus(alpha_p), and n is β + softplus(alpha_n).
    """

    def of(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
        p, n = F.softplus(alpha_p), beta + F.softplus(alpha_n)
        return torch.where(x > 0, p * x * x + beta * x, (torch.expm1(torch.minimum(x, eps)) - x) * n + beta * x)

    def terms(i: Index) -> Terms:
        return Terms(xielu=of(x[i].double(), alpha_p.double(), alpha_n.double())[0]).of(x=x[i])

    weights = (alpha_p, alpha_n, beta, eps)
    y = native.xielu(x, *weights) if native.fits_xielu(x, *weights) else of(x, alpha_p, alpha_n).to(x.dtype)
    return note(y, XIELU.name, (x,), weights, terms, again=lambda p, n, *_: of(x, p, n).to(x.dtype))


def tanh(x: Tensor) -> Tensor:
    """Compute the hyperbolic tangent of each number."""
    return note(x.tanh(), TANH.name, (x,), (), lambda i: Terms(tanh=x[i].double().tanh()).of(x=x[i]))


def sigmoid(x: Tensor) -> Tensor:
    """Compute 1 / (1 + e^-x) of each number."""
    y = native.sigmoid(x) if native.fits_each(x) else x.sigmoid()
    return note(y, SIGMOID.name, (x,), (), lambda i: Terms(sigmoid=x[i].double().sigmoid()).of(x=x[i]))


def softmax(x: Tensor) -> Tensor:
    """Compute e^x over the sum of its row's e^x."""
    y = native.softmax(x) if native.fits_scores(x) else x.softmax(-1)
    return note(y, SOFTMAX.name, (x,), (), lambda i: part_of_row(x[i[:-1]].double(), i[-1]))


def part_of_row(row: Tensor, at: int) -> Terms:
    """Return the terms of cell `at` of a softmax: e^(x - the row's largest) over their sum. A masked cell is -inf, its part 0."""
    top = row.max().clamp(min=torch.finfo(row.dtype).min)
    e = (row - top).exp()
    total = e.sum().clamp(min=torch.finfo(e.dtype).tiny)
    return Terms(e=e[at], over=1.0 / total).of(x=row[at], top=top, sum=total)
