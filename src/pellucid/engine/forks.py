"""Forks: runs of one prompt under many changes, each from where it first differs from the run without them.

             block 0      block 1      block 2        a change in block 1 at position 3
    row 0    . . . . .    . . . . .    . . . . .      enters at block 1 with the rows that entered it without the change,
    row 2    . . . . .    . . . . .    . . . . .      reads the keys and values of rows 0 to 2 in the pages of that run,
    row 3    . . . . .    x x x x x    x x x x x      and computes the rows marked x
    row 4    . . . . .    x x x x x    x x x x x

Where a row depends on later ones (an encoder, a prefix, a mask that hides nothing) forks share blocks and compute all rows.
A change that takes from another run what this run has too, as before the first token that differs, changes nothing.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby

import torch
from torch import Tensor

from pellucid.batch.kv_cache import KVCache, PagedCache, PagedRows
from pellucid.batch.mask import prefix
from pellucid.batch.page_allocator import PageAllocator
from pellucid.batch.page_growth import grow
from pellucid.batch.plain_rows import Stored
from pellucid.batch.step import Step
from pellucid.engine.determinism import require
from pellucid.families.aliases import entrance, stacks
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.ops import native
from pellucid.watching.cells import chosen_rows
from pellucid.watching.change import Change, FunctionChange
from pellucid.watching.records import Seen
from pellucid.watching.taken_cells import EqualRows, taken_together
from pellucid.watching.watch import Watch, opened, watch

ROWS = 2048  # of one batch
JOINED = 256  # rows of a batch whose forks enter different blocks: fewer passes over the weights, for a few rows computed twice
FORKS = 256  # of one batch, which bounds its logits
START = -1  # the number of the block before the first: the embedding
WILD = frozenset("*?[")  # of paths that name several tensors
Entry = tuple[int, int]  # the number of a stack, an encoder's before its decoder's, and of a block in it
ORIGIN = -1  # the number of the run without changes, among the trials'


@dataclass(frozen=True)
class ForkedText:
    """The ids that a model reads. tokens: of the stack that answers; the first `prompt` of them are the prompt, from whose end a
    change counts.  source: of an encoder beside it.  wanted: the rows of tokens whose logits are asked, in order.
    scored: a prefix model reads the tokens one after the other, without a prefix.
    """

    tokens: tuple[int, ...]
    prompt: int
    wanted: tuple[int, ...]
    source: tuple[int, ...] | None = None
    scored: bool = False


@dataclass(frozen=True)
class Fork:
    """One trial: its number, which names its rows, its own changes, the block that it may enter, and its first row there.

    inside: the paths inside fused ops that it changes, for which their references run.
    """

    request: int
    changes: Sequence[Change]
    entry: Entry
    first: int
    inside: tuple[str, ...] = ()


@dataclass
class ForkStep(Step):
    """The step of many forks, whose rows attend in one native call where the kernel takes the mask."""

    def _append(self, allocator: PageAllocator, pools: Stored, new: Stored) -> KVCache:
        kv_cache = super()._append(allocator, pools, new)
        kv_cache.batched = PagedRows(pools, self.shared((allocator, "tables"), lambda: self.tables(allocator)), 1, self.positions)
        return kv_cache

    def tables(self, allocator: PageAllocator) -> Tensor:
        """Return the table of pages of each row."""
        sizes = torch.tensor([s.stop - s.start for s in self.spans])
        return torch.stack([allocator.tables[s.request] for s in self.spans]).repeat_interleave(sizes, 0).to(self.positions.device)


class Forks:
    """One text's run without changes, and forks of it. logits [wanted V]: of that run.

    edit: changes of that run and of every fork, before the fork's own.  deterministic: a fork has the bits of a lone run.
    compared: paths of tensors of that run, which are compared with what trials take from other runs.
    """

    def __init__(
        self,
        module: Decoder | EncoderDecoder,
        text: ForkedText,
        edit: Sequence[Change] = (),
        deterministic: bool = False,
        compared: Collection[str] = (),
    ) -> None:
        if deterministic:
            require(module)
        self.module, self.text, self.edit = module, text, list(edit)
        self.kernels = native.any_rows if deterministic else nullcontext
        cfg = module.config
        self.prefix = cfg.prefix and not text.scored
        later = any(layer.attn.fill is not None or not layer.attn.causal for layer in cfg.layers)
        self.share_rows = not (self.prefix or later)  # a row depends on earlier ones alone
        self.last = len(stacks(module)) - 1  # the number of the stack that answers
        most = len(text.tokens)
        self.own = most + len(text.source or ())  # pages of the run without changes
        device = next(module.parameters()).device
        self.pages = PagedCache(self.own, 1, longest=most, device=device)  # pages of one row: none is shared in part, so none is copied
        entering = [[entrance(s, p), *(f"{p}layers.{i}.{b.leaves}" for i, b in enumerate(s.layers))] for p, s in stacks(module)]
        self.streams: list[list[Tensor]] = []
        own = Watch(module, compared)  # a path that the model lacks is told by the trial that names it
        only = [path for paths in entering for path in paths]
        with torch.no_grad(), self.kernels(), watch(module, only, edit=self.edit) as seen, opened(own):
            self.logits = self.forward([Fork(ORIGIN, (), (0, START), 0)])[0]
        self.streams = [[seen[path].value for path in paths] for paths in entering]
        self.counts = [len(paths) - 1 for paths in entering]
        self.blocks, self.inner = blocks(seen, self.last, self.counts), {*seen.inner}
        kept = (i for i, layer in enumerate(cfg.layers) if layer.attn.keys == "kept")
        self.latest = (self.last, next(kept, self.counts[self.last]))  # a block behind it may read keys and values that it keeps
        self.letters = {s.path: s.letters for s in seen.spots.values()}
        self.equal = EqualRows(self.letters, {s.path: s.value for s in own if self.has_all_rows(s)}).taken

    def run(self, trials: Sequence[Sequence[Change]]) -> Iterator[tuple[list[int], Tensor]]:
        """Yield the numbers of trials that ran together, and their logits [trials wanted V], until all have run.

        Those that change nothing have the logits of the run without changes.
        """
        same = {i for i, changes in enumerate(trials) if all(map(self.equal, changes))}
        if same:
            yield sorted(same), self.logits.expand(len(same), *self.logits.shape)
        others = (self.fork(i, changes) for i, changes in enumerate(trials) if i not in same)
        forks = sorted(others, key=lambda f: (f.inside, f.entry, f.first))
        batches = [batch for group in self.groups(forks) for batch in self.cut(group)]
        grow(self.pages, self.own + max((sum(map(self.rows, batch)) for batch in batches), default=0))
        for batch in batches:
            changes = self.changes_of(batch)
            try:
                with torch.no_grad(), self.kernels(), watch(self.module, (), edit=changes):
                    logits = self.forward(batch)
            finally:
                for f in batch:
                    self.pages.release(f.request)
            yield [f.request for f in batch], logits

    def groups(self, forks: Sequence[Fork]) -> list[list[Fork]]:
        """Return forks that run the same ops and enter one block, or where they are few, one block after another of one stack."""
        out = list[list[Fork]]()
        for _, same in groupby(forks, key=lambda f: (f.inside, f.entry)):
            group = list(same)
            joined = [*out[-1], *group] if out and (out[-1][0].entry[0], out[-1][0].inside) == (group[0].entry[0], group[0].inside) else []
            if joined and len(joined) <= FORKS and sum(map(self.rows, joined)) <= JOINED:
                out[-1] = joined
            else:
                out.append(group)
        return out

    def cut(self, group: list[Fork]) -> Iterator[list[Fork]]:
        """Yield the batches of a group, of as many forks as fit."""
        batch, rows = list[Fork](), 0
        for f in group:
            if batch and (len(batch) == FORKS or rows + self.rows(f) > ROWS):
                yield batch
                batch, rows = [], 0
            batch.append(f)
            rows += self.rows(f)
        if batch:
            yield batch

    def changes_of(self, batch: Sequence[Fork]) -> list[Change]:
        """Return the changes of a batch: in their order where two of a fork may act on one tensor, else as few as can be."""
        entry = min(f.entry for f in batch)
        again = [replace(c, required=False) for c in self.edit if any(self.repeated(p, entry) for p in self.matched(c))]
        changes = [replace(c, request=f.request) for f in batch for c in (*again, *f.changes)]
        apart = not again and all(len(f.changes) == 1 or apart_from_another(f.changes) for f in batch)
        return taken_together(changes, self.letters, self.length) if apart else changes

    def repeated(self, path: str, entry: Entry) -> bool:
        """True if forks that enter a block make the tensor at `path` again: behind it, or where each block reads the tokens once more."""
        start = self.blocks[path] == (0, START) and any(layer.input is not None for layer in self.module.config.layers)
        return start or self.blocks[path] >= entry

    def length(self, path: str) -> int:
        """Return the rows that a tensor has of each fork's text."""
        text = self.text
        return len(text.source) if text.source is not None and self.blocks[path][0] < self.last else len(text.tokens)

    def has_all_rows(self, s: Seen) -> bool:
        """True if a record has a row of every token: the last norm and the logits may be of the wanted ones."""
        dims = s.dims.split()
        return "T" in dims and s.shape[dims.index("T")] == self.length(s.path)

    def rows(self, fork: Fork) -> int:
        """Return the rows that a fork computes, or that it stores of a source, whichever are more."""
        return max(len(self.text.source or ()) if fork.entry[0] < self.last else 0, len(self.text.tokens) - fork.first)

    def fork(self, number: int, changes: Sequence[Change]) -> Fork:
        """Return the fork of a trial: it enters the first block that a change acts in, at the first row that one changes."""
        paths = {c: self.matched(c) for c in changes if not self.equal(c)}
        entry = min((self.blocks[p] for own in paths.values() for p in own), default=(0, START))
        entry = min(entry, self.latest)
        if not self.share_rows and self.last:
            entry = min(entry, (0, self.counts[0]))  # without pages, nothing keeps what cross attention reads
        first = 0
        if self.share_rows and entry[0] == self.last and not any(isinstance(c, FunctionChange) for c in self.edit):
            first = min([self.text.wanted[0], *(self.first_row(c, own) for c, own in paths.items())])
        inside = sorted(self.inner.intersection(p for own in paths.values() for p in own))
        return Fork(number, [c if c in paths else replace(c, required=False) for c in changes], entry, first, tuple(inside))

    def matched(self, c: Change) -> list[str]:
        """Return the paths of the tensors that a change names."""
        return [p for p in self.blocks if fnmatchcase(p, c.path)] if set(c.path) & WILD else [c.path] * (c.path in self.blocks)

    def first_row(self, c: Change, paths: Sequence[str]) -> int:
        """Return the first row that a change may act on. Tables of scores are addressed by their rows, so all of them are made."""
        if isinstance(c, FunctionChange) or not isinstance(c.at, Mapping) or "T" not in c.at or not self.inner.isdisjoint(paths):
            return 0
        if type(row := c.at["T"]) is int and row >= 0:
            return min(row, len(self.text.tokens) - 1)
        at = torch.arange(len(self.text.tokens))
        rows = chosen_rows(c.at["T"], at, self.text.tokens[: self.text.prompt], c.find, c.text)
        return int(rows.min()) if len(rows) else len(at) - 1

    def forward(self, forks: Sequence[Fork]) -> Tensor:
        """Run forks through the model, from the first one's entry on. Returns logits [forks wanted V]."""
        stack, text, device = forks[0].entry[0], self.text, next(self.module.parameters()).device
        step = self.step_of(forks)
        step.positions = step.positions.to(device)
        starts = [s.start - f.first for s, f in zip(step.spans, forks, strict=True)]
        step.wanted = torch.tensor([start + row for start in starts for row in text.wanted], device=device)
        tokens = torch.tensor([[t for f in forks for t in text.tokens[f.first :]]], device=device)
        if isinstance(self.module, Decoder):
            step.entry = self.enter(forks, 0)
            out = self.module(tokens, step)[0]
            out = out if self.module.head is not None else out[step.wanted]
        elif stack == self.last:
            step.entry = self.enter(forks, 1)
            out = self.module(None, tokens, step)[0]
        else:
            assert text.source is not None
            source = Step.packed([len(text.source)] * len(forks), device, {f.request: text.source for f in forks})
            source.entry = self.enter(forks, 0)
            out = self.module(torch.tensor([text.source * len(forks)], device=device), tokens, step, source)[0]
        if forks[0].request == ORIGIN and step.pages is not None:
            step.advance()
        return out.view(len(forks), len(text.wanted), -1)  # type: ignore[no-any-return]

    def step_of(self, forks: Sequence[Fork]) -> Step:
        """Return the step of the stack that answers: over the origin's pages, or if rows depend on later ones over their own alone."""
        text = self.text
        lengths = {f.request: len(text.tokens) - f.first for f in forks}
        if not self.share_rows:
            step = Step.packed(list(lengths.values()), prompts=dict.fromkeys(lengths, text.tokens[: text.prompt]))
            step.mask = prefix(text.prompt) if self.prefix else None
            return step
        for f in forks:
            if f.request != ORIGIN and f.entry[0] == self.last:
                self.pages.fork(ORIGIN, f.request, f.first)
            else:  # what it reads of a source is its own
                self.pages.prompts[f.request] = text.tokens[: text.prompt], text.source
        return ForkStep.paged(self.pages, lengths)

    def enter(self, forks: Sequence[Fork], stack: int) -> tuple[int, Tensor] | None:
        """Return the entry of a step: the block, and the rows of each fork that enter it. None: the embedding's rows enter the first."""
        at, block = forks[0].entry
        if at != stack or block == START:
            return None
        rows = self.streams[stack][block]
        return block, torch.cat([rows[:, f.first :] for f in forks], 1)


def apart_from_another(changes: Sequence[Change]) -> bool:
    """True if no two changes act on one tensor."""
    paths = {c.path for c in changes}
    return len(paths) == len(changes) and not any(set(path) & WILD for path in paths)


def blocks(seen: Watch, last: int, counts: Sequence[int]) -> dict[str, Entry]:
    """Return the block that makes each tensor of a run, counts[stack] for one after the last. counts: the blocks of each stack.

    Keys and values that cross attention makes of an encoder's rows come after the encoder's last block.
    """
    out: dict[str, Entry] = {}
    ended = [False] * len(counts)
    spots = {s.path: s.letters for s in seen.spots.values()}
    for path in [*spots, *(p for p in seen.inner if p not in spots)]:
        stack = 0 if last == 0 or path == "source" or path.startswith("encoder.") else 1
        hit = re.match(r"(?:encoder\.|decoder\.)?layers\.(\d+)\.", path)
        ended[stack] |= hit is not None
        number = int(hit[1]) if hit else counts[stack] if ended[stack] else START
        letters = spots.get(path, [])
        out[path] = (0, counts[0]) if stack == 1 and "S" in letters and "T" not in letters else (stack, number)
    return out
