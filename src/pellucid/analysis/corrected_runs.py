"""Numbers of corrections that a run of the given model decides, or the step of a small one."""

import torch

from pellucid.analysis.deep_or_wide import RATE, config_of, parameters
from pellucid.analysis.needs import UNPLACED, unmet
from pellucid.analysis.rows import largest_gap
from pellucid.analysis.shuffle import shuffled, without_positions
from pellucid.analysis.small_training import corpus, train, untrained
from pellucid.analysis.word_vectors import nearest_rows, rows
from pellucid.api.model import Model
from pellucid.api.variant import variant
from pellucid.tracing import Trace

BLOCKS, WIDTH, NEURONS, STEPS = 1, 16, 32, 2  # of a model whose numbers are counted before and after training


def model_of(run: Trace) -> Model:
    """Return the model of a run."""
    model: Model = run.runner
    return model


def with_space(run: Trace) -> str:
    """Write how many of a prompt's pieces begin with a space, of how many."""
    pieces = [model_of(run).tokenizer.decode([i]) for i in run.ids]
    return f"{sum(piece.startswith(' ') for piece in pieces)} / {len(pieces)}"


def computed_rows(run: Trace) -> str:
    """Write how many rows a run computed, beside the tokens that its prompt has."""
    return f"{run['embed'].shape[1]} / {len(run.ids)}"


def first_product(run: Trace, part: str) -> str:
    """Write the shape of a matrix of the first attention that has it."""
    paths = [path for path, p in model_of(run).module.named_parameters() if path.endswith(f".{part}.weight") and p.ndim == 2]
    return " × ".join(map(str, model_of(run).module.get_parameter(paths[0]).shape)) if paths else "-"


def slices(run: Trace) -> str:
    """Write a head's own slice of the queries' matrix, and the number of heads."""
    attn = model_of(run).config.layers[0].attn
    return f"{attn.heads} · ({sum(attn.uncompressed[:2]) if attn.uncompressed else attn.head_width} × {model_of(run).config.width})"


def without_norms(run: Trace) -> str:
    """Write by how much a logit of the last row moves if the norms are taken out."""
    bare = variant(model_of(run), {"norm": "none"})
    ids = torch.tensor([list(run.ids)], device=bare.device)
    with torch.no_grad():
        return f"{largest_gap(model_of(run)(ids, rows=-1), bare(ids, rows=-1)):.4g}"


def when_shuffled(run: Trace) -> str:
    """Write by how much a logit of the same word moves under a causal mask if the words are shuffled, positions off where they can be."""
    model = model_of(run)
    bare = variant(model, without_positions(model.config)) if unmet(UNPLACED, model.config) is None else model
    return f"{shuffled(bare, model.tokenizer.decode(list(run.ids)), causal=True).gap:.4g}"


def nearest_to_sum(run: Trace) -> str:
    """Write the cosine of the row nearest to one word less another plus a third, all of the prompt, and the word."""
    a, b, c = (run.ids[i % len(run.ids)] for i in (0, 1, 2))
    table = rows(model_of(run))
    first = nearest_rows(model_of(run), table[a] - table[b] + table[c])[0]
    return f"{first.piece} {first.cosine:.3f}"


def trained_count() -> str:
    """Write the parameters of a small model before training and after."""
    model = untrained(config_of(corpus()[0].tokenizer.get_vocab_size(), BLOCKS, WIDTH, NEURONS))
    before = parameters(model.config)
    train(model, STEPS, RATE)
    return f"{before:,}, {sum(p.numel() for p in model.parameters()):,}"
