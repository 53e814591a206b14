"""`load` and the `Model` that it returns: a module with its tokenizer and files.

model = load("pellucid/capitals")
model.generate(model.tokenizer.encode("The capital of France is"))
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from pellucid.api.draft_model import draft_for
from pellucid.arguments import checked, one_prompt
from pellucid.batch.inference_mode import lasting
from pellucid.batch.mask import prefix as prefix_mask
from pellucid.batch.step import Step
from pellucid.checkpoint.default_dtype import DTYPES as DTYPES
from pellucid.checkpoint.default_dtype import Precision, named
from pellucid.checkpoint.fill import unfill
from pellucid.checkpoint.folder import SHARD_BYTES, save_folder
from pellucid.checkpoint.model_adapters import Adapting
from pellucid.checkpoint.opening import SPECIMENS as SPECIMENS
from pellucid.checkpoint.opening import open_module
from pellucid.checkpoint.opening import place as place
from pellucid.checkpoint.opening import specimens as specimens
from pellucid.checkpoint.placement import Placed, check_device
from pellucid.config import Config
from pellucid.counting.published import published
from pellucid.counting.sizes import judge_sizes
from pellucid.distributed import Ranks
from pellucid.engine.engine import Engine
from pellucid.engine.generation import generate
from pellucid.engine.requests import GREEDY, Output, Request, check_ids
from pellucid.errors import CheckpointError, UseError
from pellucid.families import family, understand
from pellucid.families.aliases import weight
from pellucid.families.family import Family
from pellucid.families.quantisation import FIELD as QUANTISED
from pellucid.families.quantisation import fields as in_folder
from pellucid.messages import say
from pellucid.nn.transformer import Decoder, Encoder, EncoderDecoder, build, cast
from pellucid.notebook import Shown
from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.stages import logprobs
from pellucid.sharding import Sharding, split
from pellucid.tokenizer.chat_template import templates
from pellucid.tokenizer.tokenizer import Tokenizer

OWN: Any = object()  # the model's own stop tokens
Prompts = TypeVar("Prompts", Tensor, list[list[int]], list[int], list[str], str)


class Model(Placed, Adapting, Shown):
    """A loaded model.

    module: the plain nn.Module.  config: what it is.  tokenizer: its text side, None if the folder has none.

    left: unused tensors of its folder, such as a multi-token prediction module, or masks and tables in old files.
    switches: the fields in which a variant's config differs, {} for a model as it was loaded.  own: the weights made for a variant.
    sharding: its weights over the ranks of `split`.
    """

    def __init__(
        self, name: str, module: Decoder | EncoderDecoder, family: Family, hf: Mapping[str, Any], tokenizer: Tokenizer | None
    ) -> None:
        super().__init__(module, family)
        self.name, self.hf, self._tokenizer = name, dict(hf), tokenizer
        self.files: dict[str, bytes] = {}  # the tokenizer's, by name, as they were read
        self.left: tuple[str, ...] = ()
        self.switches: dict[str, Any] = {}
        self.own: tuple[str, ...] = ()
        self.generation: dict[str, Any] = {}
        self.engines: list[Engine] = []  # idle ones
        self.precision = Precision(self.dtype, "given", self.dtype)
        self.sharding = Sharding()

    def __repr__(self) -> str:
        c = self.config
        layers = f"{len(c.encoder)} + {len(c.layers)}" if c.encoder else len(c.layers)
        sizes = say("model.sizes", layers=layers, width=c.width, heads=c.heads, vocab=f"{c.vocab:,}")
        facts = [self.family.name, sizes, say("explain.parameters", count=f"{self.num_parameters():,}")]
        facts += [say("model.own", count=len(self.own))] if self.own else []
        return f"Model({self.name!r}: {' · '.join([*facts, *([self.quant] if self.quant else []), self.precision_note, str(self.device)])})"

    @property
    def config(self) -> Config:
        return self.module.config

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. A CheckpointError if the folder has none."""
        if self._tokenizer is None:
            raise CheckpointError("model.tokenizer", model=self.name)
        return self._tokenizer

    def split(self, ranks: Ranks) -> None:
        """Keep this process's part of the weights. From then on all `ranks` of `pellucid.distributed.join` must make the same calls.

        A UseError for a model that cannot be split over them.
        """
        self.sharding = split(self.module, ranks)

    def num_parameters(self) -> int:
        """Return the number of unique parameters: a tied table counts once, buffers do not."""
        return sum(p.numel() for p in self.module.parameters())

    @checked
    def __call__(
        self,
        ids: Tensor,
        target_ids: Tensor | None = None,
        *,
        padding: Tensor | None = None,
        prefix: int | None = None,
        types: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rows: int | Sequence[int] | None = None,
    ) -> Tensor:
        """ids LongTensor [B T] -> logits [B T V]; of an encoder-decoder, source ids and target ids -> logits of the target.

        An encoder without a head gives its last rows [B T D].  padding: [B T], 0 where a row has no token, as
        transformers' attention_mask, which is another name for it.  types: token types [B T].
        prefix: the number of first tokens with bidirectional attention; None is all of them for a prefix model.
        rows: only these rows' logits [B N V], -1 for the last token's; None: all.
        """
        self.check(ids)
        padding = self.padding_of(ids, padding, attention_mask)
        self.check_types(types, ids)
        prefix = ids.shape[1] if prefix is None and self.config.prefix else prefix
        if prefix is not None and (type(prefix) is not int or prefix < 0):
            raise UseError("model.prefix", found=prefix)
        mask = None if prefix is None else prefix_mask(prefix)
        if isinstance(self.module, Decoder):
            if target_ids is not None:
                raise UseError("model.target", model=self.name)
            step = Step.plain(ids, padding, mask, types)
            step.wanted = self.rows_of(rows, ids)
            out: Tensor = self.module(ids, step)
            return out if self.config.head or step.wanted is None else out[:, step.wanted]
        if target_ids is None:
            raise UseError("model.source", model=self.name)
        self.check(target_ids)
        step = Step.plain(target_ids)
        step.wanted = self.rows_of(rows, target_ids)
        return self.module(ids, target_ids, step, Step.plain(ids, padding, mask))  # type: ignore[no-any-return]

    def rows_of(self, rows: int | Sequence[int] | None, ids: Tensor) -> Tensor | None:
        """Return the numbers of rows of ids [B T], counted from the first. A UseError for one that ids do not have."""
        if rows is None:
            return None
        wanted, most = [rows] if isinstance(rows, int) else list(rows), ids.shape[1]
        if not wanted or not all(type(r) is int and -most <= r < most for r in wanted):
            raise UseError("model.rows", found=rows, least=-most, most=most - 1)
        return torch.tensor([r % most for r in wanted], device=ids.device)

    def check(self, ids: Tensor) -> None:
        """Raise a UseError unless ids are a LongTensor [B T] within the vocabulary, no longer than learned positions."""
        if not isinstance(ids, Tensor) or ids.dtype != torch.long or ids.ndim != 2:
            raise UseError("model.ids", found=(tuple(ids.shape), ids.dtype) if isinstance(ids, Tensor) else type(ids).__name__)
        rows = self.config.positions
        if rows is not None and ids.shape[1] > rows:
            raise UseError("generate.context", tokens=ids.shape[1], new=0, rows=rows)
        if ids.numel() and ids.device.type != "meta":
            check_ids([int(ids.min()), int(ids.max())], self.config.vocab)

    def check_types(self, types: Tensor | None, ids: Tensor) -> None:
        """Raise a UseError unless token types have the ids' shape, and rows in the model's table."""
        rows = self.config.types or 0
        if types is not None and (types.shape != ids.shape or (types.numel() and not 0 <= int(types.min()) <= int(types.max()) < rows)):
            raise UseError("model.types", shape=tuple(ids.shape), rows=rows)

    @property
    def stops(self) -> tuple[int, ...]:
        """The ids that end a text: generation_config.json's, or else config.json's."""
        given = self.generation.get("eos_token_id")
        stops = (given,) if isinstance(given, int) else tuple(given or self.config.stops)
        return tuple(i for i in stops if 0 <= i < self.config.vocab)

    @checked
    def generate(
        self,
        ids: Prompts,
        max_new_tokens: int = 32,
        temperature: float = 0.0,
        eos: int | Iterable[int] | None = OWN,
        seed: int | None = None,
        deterministic: bool = False,
        speculate: bool = False,
        draft: "Model | None" = None,
        kv: str | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition: float = 1.0,
        presence: float = 0.0,
        frequency: float = 0.0,
        bias: Mapping[int, float] | None = None,
        padding: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Prompts:
        """Generate after each prompt, and return what is new in the kind that was given: a LongTensor [B new] for [B T], [new] for [T],
        lists for lists (of any lengths) or an array [B T], a list for one text's ids, a text for a text, texts for a list of them.

        temperature 0 takes the likeliest, else draws, by `seed` where given; top_k to bias: see ops.sampling.Sampling.
        eos: an id or ids that end a text; None lets none end it; by default the model's own. A stop is part of what is returned; a
        tensor's row that ended early is filled with its stop.  deterministic, kv: see Engine.of.  speculate: see engine.proposals, draft: a
        smaller model that proposes, see engine.draft; the text stays the same.  padding: as in a call of the model.
        """
        stops = self.stops if eos is OWN else () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
        how = Sampling(temperature, top_k, top_p, min_p, repetition, presence, frequency, bias or {}, seed)
        prompts = self.prompts(ids, padding, attention_mask)
        out: list[list[int]] = [[] for _ in prompts]
        modes: Any = {"deterministic": deterministic, "speculate": speculate, "draft": draft, "kv": kv, "streamed": False}
        for output in self.stream(prompts, max_new_tokens, how, stops, **modes):
            out[output.request] += [] if output.token is None else [output.token.id]
        if isinstance(ids, Tensor):
            longest = max(map(len, out), default=0)
            rows = [row + row[-1:] * (longest - len(row)) for row in out]
            filled = torch.tensor(rows, device=ids.device).long().view(len(out), longest)
            return filled if ids.ndim == 2 else filled[0]
        one = one_prompt(ids)
        context = [[] if self.config.encoder else prompt for prompt in prompts]
        texts = zip(out, context, [ids] if one else ids, strict=True)
        new: Any = [self.tokenizer.after(c, skip_special=True).over(o) if isinstance(given, str) else o for o, c, given in texts]
        return new[0] if one else new  # type: ignore[no-any-return]

    def prompts(self, given: object, padding: Tensor | None = None, attention_mask: Tensor | None = None) -> list[list[int]]:
        """Return the prompts of `generate` as lists of ids, without the padding of a batch."""
        if isinstance(given, str):
            return [self.ids(given)]
        if isinstance(given, Tensor) and given.ndim != 1:
            self.check(given)
            mask = self.padding_of(given, padding, attention_mask)
            return [row.tolist() if mask is None else row[mask[r].bool()].tolist() for r, row in enumerate(given)]
        if padding is not None or attention_mask is not None or not (isinstance(given, list | tuple) or hasattr(given, "tolist")):
            raise UseError("model.prompts", found=type(given).__name__)
        return [self.prompt_ids(prompt) for prompt in ([given] if one_prompt(given) else given)]  # type: ignore[attr-defined]

    def padding_of(self, ids: Tensor, padding: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
        """Return the padding of ids, given under either of its names."""
        if padding is not None and attention_mask is not None:
            raise UseError("model.mask")
        mask = attention_mask if padding is None else padding
        if mask is not None and mask.shape != ids.shape:
            raise UseError("model.padding", found=tuple(mask.shape), allowed=tuple(ids.shape))
        return mask

    @checked
    def stream(
        self,
        prompts: str | Tensor | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        max_new_tokens: int = 32,
        sampling: Sampling = GREEDY,
        stops: Iterable[int] = OWN,
        cached: bool = False,
        deterministic: bool = False,
        n: int = 1,
        logprobs: int | None = None,
        speculate: bool = False,
        draft: "Model | None" = None,
        kv: str | None = None,
        streamed: bool = True,
    ) -> Iterator[Output]:
        """Yield the outputs of `generate` token by token; `request` counts the prompts, of ids or texts.  stops: ids that end a text.

        cached: see engine.generation.generate.  deterministic, kv: see Engine.of.  n, logprobs, speculate, streamed: see Request.
        draft: see api.draft_model; with one, the text speculates. A UseError if it or this model cannot.
        """
        proposes = draft_for(self, draft) if speculate or draft is not None else None
        stops = self.stops if stops is OWN else stops
        how: Any = {"n": n, "logprobs": logprobs, "speculate": speculate or draft is not None, "streamed": streamed}
        requests = self.requests(self.prompts(prompts), max_new_tokens, sampling, stops, **how)
        return generate(self.module, requests, self.engines, cached, deterministic, proposes, kv)

    def requests(
        self, prompts: Sequence[Sequence[int]], new: int, sampling: Sampling = GREEDY, stops: Iterable[int] = (), **how: Any
    ) -> list[Request]:
        """Return the engine's requests for these prompts, sources of an encoder-decoder. Each samples by a seed of its own.

        how: more fields of Request.
        """
        requests = []
        for i, prompt in enumerate(prompts):
            own = sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + i)
            text, source = (tuple(prompt), None) if self.config.starts is None else ((self.config.starts,), tuple(prompt))
            requests.append(Request(text, new, own, frozenset(stops), source=source, **how))
        return requests

    def ids(self, text: str) -> list[int]:
        """Return the ids of a prompt with its special tokens; a masked language model takes "___" and the mask's name as masks."""
        if not isinstance(self.module, Encoder):
            return self.tokenizer.encode(text)
        mask = self.tokenizer.special.get("mask")
        written = None if mask is None else self.tokenizer.piece(mask)
        return self.tokenizer.encode(text if written is None else re.sub("_{3,}", written, text), parse=True)

    def prompt_ids(self, prompt: object) -> list[int]:
        """Return the ids of one prompt: of a text, or of ids in a list, an array, or a tensor [T] or [1 T]. A UseError for others."""
        if isinstance(prompt, str):
            return self.ids(prompt)
        given = prompt.tolist() if hasattr(prompt, "tolist") else prompt  # of a tensor or an array
        given = given[0] if isinstance(given, list) and len(given) == 1 and isinstance(given[0], list) else given
        if not isinstance(given, Sequence) or any(isinstance(i, list | tuple) for i in given):
            shape = f" {list(prompt.shape)}" if hasattr(prompt, "shape") else ""
            raise UseError("model.prompt", found=type(prompt).__name__ + shape)
        check_ids(given, self.config.vocab)
        return [int(i) for i in given]

    def blanks(self, ids: Sequence[int]) -> list[int]:
        """Return the rows of these ids that have the mask."""
        mask = None if self._tokenizer is None or not self.config.head else self._tokenizer.special.get("mask")
        return [row for row, i in enumerate(ids) if i == mask]

    def logprobs(self, ids: Tensor) -> Tensor:
        """Return the log-probability of each given token after the first, [B T-1], in float32 at least."""
        with torch.no_grad():
            return logprobs(self(ids, prefix=0 if self.config.prefix else None)[:, :-1]).gather(-1, ids[:, 1:, None])[..., 0]

    def check_finite(self) -> None:
        """Raise a CheckpointError that names the first weight with NaN or infinity, and the place."""
        for name, p in (*self.module.named_parameters(), *self.module.named_buffers()):
            if not bool(p.isfinite().all()):
                index = tuple(int(i) for i in (~p.isfinite()).nonzero()[0])
                raise CheckpointError("model.finite", model=self.name, tensor=name, index=list(index), found=float(p[index]))

    def weight(self, name: str) -> Tensor:
        """Return a weight by our path, its name in Hugging Face's files, or TransformerLens' ("blocks.3.attn.W_Q" is one matrix a head)."""
        return weight(self.module, self.family, name)

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights by their names in Hugging Face's files. A UseError if adapters are not merged, or for a variant."""
        if self.sharding.axes:
            raise UseError("ranks.option", name="save", started=self.sharding.ranks.count)
        if self.switches:
            raise UseError("variant.save", model=self.name)
        if self.adapters:
            raise UseError("adapter.on", model=self.name, names=", ".join(self.adapters))
        return dict(unfill(self.module, self.family.rules_for(self.config)))

    @checked
    def save(self, folder: str | Path, shard_bytes: int = SHARD_BYTES, overwrite: bool = False) -> None:
        """Write a Hugging Face folder: config.json, safetensors, and the tokenizer's files as they came.

        A model in int8 or int4 blocks is written as codes and scales, which only `load` reads back; any other as plain tensors in its
        dtype. A folder with weights is refused unless `overwrite`, and a variant, whose switches no config.json says.
        """
        own = self.family.saved_config(self.hf)
        hf = {k: v for k, v in own.items() if k not in ("torch_dtype", QUANTISED)} | {"dtype": str(self.dtype).removeprefix("torch.")}
        hf |= {} if self.quant is None else {QUANTISED: in_folder(self.quant)}
        save_folder(folder, hf, self.tensors(), self.generation or None, self.files, shard_bytes, overwrite)


@checked
@lasting
def load(
    name: str | Path,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    ignore_fields: Iterable[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
    adapter: str | Path | None = None,
    quant: str | None = None,
) -> Model:
    """Load a model by a specimen's name ("pellucid/capitals"), a folder, a GGUF file, or a hub id; on "meta" also by a catalogue's name.

    dtype: of the parameters; None is float32 on a CPU if that takes at most a quarter of the memory, else as stored
    (checkpoint/default_dtype.py).  device "meta": shapes alone.
    ignore_fields: unknown fields of config.json to ignore, recorded in the model's config.  adapter: see `Model.adapt`; a chat template
    in its folder is the model's.
    quant: "int8" or "int4" stores matrices in blocks of 32 with a scale each, quantised one by one as they are read; dtype is then what
    they compute in.
    """
    check_device(device)
    if (catalogued := published(name, named(dtype or "bfloat16"), str(device), ignore_fields)) is not None:
        return Model(str(name), *catalogued, None)
    opened = open_module(place(name, progress), judge_sizes, dtype, device, quant, ignore_fields, progress)
    with opened.folder.carried() as files:
        tokenizer = opened.folder.tokenizer(opened.module.config.vocab)
    model = Model(str(name), opened.module, opened.family, opened.hf, tokenizer)
    model.files, model.generation, model.left = files, opened.folder.generation_config, opened.left
    model.precision = opened.precision
    if adapter is not None:
        model.adapt(adapter)
        if tokenizer is not None and Path(adapter).is_dir():
            tokenizer.templates = templates(Path(adapter), {}, None) or tokenizer.templates
    return model


def make(hf: Mapping[str, Any], name: str = "new", device: str = "cpu", dtype: torch.dtype | None = None) -> Model:
    """Return a model from a config.json's fields, with weights not set yet."""
    kind, cfg = understand(hf)
    with torch.device(device):
        module = build(cfg)
    return Model(name, cast(module, dtype) if dtype else module, family(kind.name), hf, None)
