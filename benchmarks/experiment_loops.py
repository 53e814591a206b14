"""Each contestant's loop for the rows of experiments.py: Pellucid, TransformerLens, nnsight, and transformers as ROME's script has it."""

import itertools
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

BATCH = 64
LENGTH, TEXTS = 20, 8  # of the induction scores
DRAWS, WINDOW = 10, 10  # of tracing: noises, and the blocks whose parts are put back together
KINDS = {"out": 1, "attn": WINDOW, "ffn": WINDOW}  # of tracing: what is put back, in how many blocks
Turn = Callable[[Tensor, Tensor], Tensor]  # clean and corrupted ids [1 T] -> the numbers of all trials


def metric(logits: Tensor) -> Tensor:
    """Return the difference of two logits of the last row of logits [n T V]: [n]."""
    return logits[:, -1, 7] - logits[:, -1, 11]


def noises(table: Tensor, tokens: int) -> tuple[slice, Tensor]:
    """Return the subject's positions, and the noise on their embeddings [DRAWS n D]: three deviations of the table's numbers."""
    at = slice(tokens // 3, tokens // 3 + 2)
    draw = torch.Generator().manual_seed(0)
    return at, 3 * float(table.float().std()) * torch.randn(DRAWS, 2, table.shape[1], generator=draw)


def window(layer: int, layers: int, size: int) -> range:
    """Return the blocks about a block whose parts are put back, as ROME's script chooses them."""
    return range(max(0, layer - size // 2), min(layers, layer - (-size // 2)))


def ours(folder: str) -> dict[str, Turn]:
    import pellucid

    model = pellucid.load(folder, dtype="float32")
    model.module.requires_grad_(False)

    def patched(over: str, by: str) -> Turn:
        def turn(clean: Tensor, corrupted: Tensor) -> Tensor:
            return pellucid.patch(model, clean[0].tolist(), corrupted[0].tolist(), over, by, lambda x: metric(x[:, None])).values

        return turn

    def attributed(clean: Tensor, corrupted: Tensor) -> Tensor:
        with torch.no_grad(), pellucid.watch(model, only="layers.*.attn.z") as right:
            model(clean, rows=-1)
        with pellucid.watch(model, only="layers.*.attn.z", grad=True) as seen:
            metric(model(corrupted, rows=-1)).sum().backward()
        pairs = zip(right, seen, strict=True)
        return torch.stack([((a.value - b.value.detach()) * b.grad).sum(-1)[0].T for a, b in pairs])

    def induction(clean: Tensor, corrupted: Tensor) -> Tensor:
        return pellucid.heads(model, LENGTH, TEXTS).values["induction"]

    def traced(clean: Tensor, corrupted: Tensor) -> Tensor:
        ids, layers = clean[0].tolist(), len(model.config.layers)
        source = pellucid.trace(model, ids)
        subject, drawn = noises(model.module.embed.weight, len(ids))
        corrupt = [pellucid.add("embed", one, T=subject) for one in drawn]

        def put(kind: str, layer: int, t: int) -> list[Any]:
            return [pellucid.take(f"layers.{n}.{kind}", source, T=t) for n in window(layer, layers, KINDS[kind])]

        cells = list(itertools.product(KINDS, range(layers), range(len(ids))))
        trials = {(cell, n): [noise, *put(*cell)] for cell in cells for n, noise in enumerate(corrupt)}
        values = pellucid.sweep(model, ids, trials, lambda x: metric(x[:, None])).values
        return torch.tensor([[values[cell, n] for n in range(DRAWS)] for cell in cells]).double().mean(1)

    turns = {"heads": patched("layers.*.attn.z", "H T"), "whole heads": patched("layers.*.attn.z", "H")}
    return turns | {"residual": patched("layers.*.out", "T"), "attribution": attributed, "induction": induction, "tracing": traced}


def network(folder: str) -> Any:
    """Return transformers' model of the folder, with the attention that lets heads be seen."""
    transformers = import_module("transformers")
    net = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return net.eval().requires_grad_(False)


def lens(folder: str) -> dict[str, Turn]:
    """TransformerLens: a hook a trial, as its patching module runs them."""
    net = network(folder)
    builder = import_module("transformer_lens.model_bridge.sources._bridge_builder")
    model = builder.build_bridge_from_module(net, architecture="GPT2LMHeadModel", hf_config=net.config, dtype=torch.float32)
    layers, heads, width = net.config.n_layer, net.config.n_head, net.config.n_embd // net.config.n_head
    names = dict.fromkeys(("heads", "whole heads"), "blocks.{}.attn.hook_z") | {"residual": "blocks.{}.hook_resid_post"}

    def by_head(x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], heads, width)

    def patched(task: str, together: int) -> Turn:
        def turn(clean: Tensor, corrupted: Tensor) -> Tensor:
            point = names[task]
            with torch.no_grad():
                _, kept = model.run_with_cache(clean, names_filter=[point.format(i) for i in range(layers)])
                out = []
                for layer in range(layers):
                    source = kept[point.format(layer)]
                    every = [slice(None)] if "whole" in task else range(clean.shape[1])
                    places = list(itertools.product(*([range(heads)] if task != "residual" else []), every))
                    for first in range(0, len(places), together):
                        group = places[first : first + together]

                        def put(x: Tensor, hook: Any, group: Any = group, source: Tensor = source) -> Tensor:
                            x = x.clone()
                            for row, at in enumerate(group):
                                if task != "residual":
                                    by_head(x)[row, at[1], at[0]] = by_head(source)[0, at[1], at[0]]
                                else:
                                    x[row, at[0]] = source[0, at[0]]
                            return x

                        tokens = corrupted.expand(len(group), -1)
                        out.append(metric(model.run_with_hooks(tokens, fwd_hooks=[(point.format(layer), put)])))
            return torch.cat(out)

        return turn

    def attributed(clean: Tensor, corrupted: Tensor) -> Tensor:
        points = [names["heads"].format(i) for i in range(layers)]
        with torch.no_grad():
            _, kept = model.run_with_cache(clean, names_filter=points)
        seen: dict[str, Tensor] = {}

        def see(point: str, x: Tensor, hook: Any) -> Tensor:
            seen[point] = x = x if x.requires_grad else x.detach().requires_grad_()
            x.retain_grad()
            return x

        metric(model.run_with_hooks(corrupted, fwd_hooks=[(point, partial(see, point)) for point in points])).sum().backward()
        gaps = [(kept[p] - seen[p].detach()) * seen[p].grad for p in points]
        return torch.stack([by_head(gap).sum(-1)[0].T for gap in gaps])

    def induction(clean: Tensor, corrupted: Tensor) -> Tensor:
        """Keep the mean of a diagonal of every pattern, as TransformerLens' demo does on tokens read twice."""
        once = torch.randint(net.config.vocab_size, (TEXTS, LENGTH), generator=torch.Generator().manual_seed(0))
        scores = torch.zeros(layers, heads)

        def keep(pattern: Tensor, hook: Any) -> None:
            scores[hook.layer()] = pattern.diagonal(1 - LENGTH, -2, -1)[..., 1:].mean((0, -1))

        with torch.no_grad():
            twice = torch.cat([once, once], 1)
            model.run_with_hooks(twice, return_type=None, fwd_hooks=[(lambda name: name.endswith("attn.hook_pattern"), keep)])
        return scores

    turns = {task: patched(task, 1) for task in names} | {f"{task}, {BATCH} together": patched(task, BATCH) for task in names}
    return turns | {"attribution": attributed, "induction": induction}


def nnsight(folder: str) -> dict[str, Turn]:
    """nnsight: an intervention a trial, around transformers' modules."""
    net = network(folder)
    model = import_module("nnsight").NNsight(net)
    layers, heads, width = net.config.n_layer, net.config.n_head, net.config.n_embd // net.config.n_head

    def sources(ids: Tensor, task: str) -> list[Tensor]:
        kept = []
        with torch.no_grad(), model.trace(ids, use_cache=False):
            saved = [].save()
            for block in model.transformer.h:
                saved.append(block.attn.c_proj.input if task != "residual" else output(block))
        kept += saved
        return kept

    def output(block: Any) -> Any:
        return block.output[0] if isinstance(block.output, tuple) else block.output

    def patched(task: str) -> Turn:
        def turn(clean: Tensor, corrupted: Tensor) -> Tensor:
            source, out = sources(clean, task), []
            for layer in range(layers):
                every = [slice(None)] if "whole" in task else range(clean.shape[1])
                for h, t in itertools.product(range(heads if task != "residual" else 1), every):
                    cut = slice(h * width, (h + 1) * width) if task != "residual" else slice(None)
                    with torch.no_grad(), model.trace(corrupted, use_cache=False):
                        block = model.transformer.h[layer]
                        x = block.attn.c_proj.input if task != "residual" else output(block)
                        x[0, t, cut] = source[layer][0, t, cut]
                        number = metric(model.lm_head.output).save()
                    out.append(number)
            return torch.cat(out)

        return turn

    def attributed(clean: Tensor, corrupted: Tensor) -> Tensor:
        source = sources(clean, "heads")
        with model.trace(corrupted, use_cache=False):
            seen, grads = [].save(), [].save()
            for block in model.transformer.h:
                x = block.attn.c_proj.input
                x.requires_grad_() if not x.requires_grad else None
                seen.append(x)
            with metric(model.lm_head.output).sum().backward():
                for x in seen[::-1]:
                    grads.append(x.grad)
        gaps = [(a - b.detach()) * g for a, b, g in zip(source, seen, grads[::-1], strict=True)]
        return torch.stack([gap.unflatten(-1, (heads, width)).sum(-1)[0].T for gap in gaps])

    return {task: patched(task) for task in ("heads", "whole heads", "residual")} | {"attribution": attributed}


def script(folder: str) -> dict[str, Turn]:
    """transformers with hooks, as ROME's script traces: a forward a cell, whose first row is clean and the rest noisy."""
    net = network(folder)
    blocks, table = net.transformer.h, net.transformer.wte
    parts: dict[str, Callable[[Any], Any]] = {"out": lambda b: b, "attn": lambda b: b.attn, "ffn": lambda b: b.mlp}

    def traced(clean: Tensor, corrupted: Tensor) -> Tensor:
        ids = clean.expand(1 + DRAWS, -1)
        subject, drawn = noises(table.weight, clean.shape[1])

        def cell(kind: str, layer: int, t: int) -> Tensor:
            def corrupt(module: Any, given: Any, made: Tensor) -> Tensor:
                made[1:, subject] += drawn
                return made

            def put(module: Any, given: Any, made: Any) -> Any:
                rows = made[0] if isinstance(made, tuple) else made
                rows[1:, t] = rows[0, t]
                return made

            put_back = [parts[kind](blocks[n]).register_forward_hook(put) for n in window(layer, len(blocks), KINDS[kind])]
            hooks = [table.register_forward_hook(corrupt), *put_back]
            with torch.no_grad():
                numbers = metric(net(ids, use_cache=False).logits)
            for hook in hooks:
                hook.remove()
            return numbers[1:].double().mean()

        return torch.stack([cell(*one) for one in itertools.product(KINDS, range(len(blocks)), range(clean.shape[1]))])

    return {"tracing": traced}


LOOPS: dict[str, Callable[[str], dict[str, Turn]]] = {
    "pellucid": ours,
    "transformer-lens": lens,
    "nnsight": nnsight,
    "transformers": script,
}
