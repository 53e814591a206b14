"""What `load` returns: a module with its tokenizer and its files, and what one does with them.

model = load("pellucid/capitals")
model.generate(model.tokenizer.encode("The capital of France is"))
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from pellucid.checkpoint.fill import fill, unfill
from pellucid.checkpoint.folder import Folder, save_folder
from pellucid.checkpoint.hub import fetch, is_hub_id
from pellucid.checkpoint.tokenizer import Tokenizer, load_tokenizer
from pellucid.config import Config
from pellucid.engine.generate import check, check_ids, crowd, generate
from pellucid.errors import CheckpointError, UseError
from pellucid.families import Family, family, understand
from pellucid.models import Decoder, EncoderDecoder, build, cast
from pellucid.ops.sample import logprobs
from pellucid.sight import prefix as prefix_sight
from pellucid.step import Step
from pellucid.tracing import Trace, watch

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")}
SPECIMENS = Path(__file__).parent / "specimens"
OWN = object()  # the model's own stop tokens


class Model:
    """A model that runs: `module` is the plain nn.Module, `config` what it is, `tokenizer` its text (None where the folder has none)."""

    def __init__(
        self, name: str, module: Decoder | EncoderDecoder, family: Family, hf: Mapping[str, Any], tokenizer: Tokenizer | None
    ) -> None:
        self.name, self.module, self.family, self.hf, self._tokenizer = name, module, family, dict(hf), tokenizer
        self.files: list[Path] = []
        self.generation: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.family.name}, {self.num_parameters():,} parameters, {self.dtype}, {self.device})"

    @property
    def config(self) -> Config:
        return self.module.config

    @property
    def tokenizer(self) -> Tokenizer:
        """The text side; a folder without a tokenizer is an error here, not before."""
        if self._tokenizer is None:
            raise CheckpointError("model.tokenizer", model=self.name)
        return self._tokenizer

    @property
    def dtype(self) -> torch.dtype:
        return self.module.embed.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.module.embed.weight.device

    def num_parameters(self) -> int:
        """Unique parameters: a tied table counts once, buffers do not."""
        return sum(p.numel() for p in self.module.parameters())

    def __call__(
        self,
        ids: Tensor,
        target_ids: Tensor | None = None,
        *,
        padding: Tensor | None = None,
        prefix: int | None = None,
    ) -> Tensor:
        """ids LongTensor [B T] -> logits [B T V]; of an encoder-decoder, source ids and target ids -> logits of the target.

        padding: [B T], 0 where a row has no token.  prefix: this many first tokens see each other both ways.
        """
        self.check(ids)
        if padding is not None and padding.shape != ids.shape:
            raise UseError("model.padding", found=tuple(padding.shape), allowed=tuple(ids.shape))
        if prefix is not None and (type(prefix) is not int or prefix < 0):
            raise UseError("model.prefix", found=prefix)
        sight = None if prefix is None else prefix_sight(prefix)
        if isinstance(self.module, Decoder):
            if target_ids is not None:
                raise UseError("model.target", model=self.name)
            return self.module(ids, Step.plain(ids, padding, sight))  # type: ignore[no-any-return]
        if target_ids is None:
            raise UseError("model.source", model=self.name)
        self.check(target_ids)
        return self.module(ids, target_ids, None, Step.plain(ids, padding, sight))  # type: ignore[no-any-return]

    def check(self, ids: Tensor) -> None:
        """Ids are a LongTensor [B T] within the vocabulary, no longer than learned positions reach."""
        if not isinstance(ids, Tensor) or ids.dtype != torch.long or ids.ndim != 2:
            raise UseError("model.ids", found=(tuple(ids.shape), ids.dtype) if isinstance(ids, Tensor) else type(ids).__name__)
        rows = self.config.positions
        if rows is not None and ids.shape[1] > rows:
            raise UseError("generate.context", tokens=ids.shape[1], new=0, rows=rows)
        if ids.numel() and ids.device.type != "meta":
            check_ids([int(ids.min()), int(ids.max())], self.config.vocab)

    @property
    def stops(self) -> tuple[int, ...]:
        """The ids that end a text: generation_config.json's, or else config.json's."""
        told = self.generation.get("eos_token_id")
        found = (told,) if isinstance(told, int) else tuple(told or self.config.stops)
        return tuple(i for i in found if 0 <= i < self.config.vocab)

    @overload
    def generate(
        self, ids: Tensor, max_new_tokens: int = ..., temperature: float = ..., eos: Any = ..., seed: int | None = ...
    ) -> Tensor: ...
    @overload
    def generate(
        self, ids: list[list[int]], max_new_tokens: int = ..., temperature: float = ..., eos: Any = ..., seed: int | None = ...
    ) -> list[list[int]]: ...
    def generate(
        self,
        ids: Tensor | list[list[int]],
        max_new_tokens: int = 32,
        temperature: float = 0.0,
        eos: Any = OWN,
        seed: int | None = None,
    ) -> Tensor | list[list[int]]:
        """New tokens after each prompt: a LongTensor [B new] for a LongTensor [B T], lists for lists (of any lengths).

        temperature 0 takes the likeliest, else draws, by `seed` where given.  eos: an id or ids that end a text; None lets none end it;
        by default the model's own. A stop is part of what is returned; a tensor's row that ended early is filled with its stop.
        """
        if isinstance(ids, Tensor):
            self.check(ids)
        stops = self.stops if eos is OWN else () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
        out: list[list[int]] = [[] for _ in ids]
        for tokens in self.stream(ids.tolist() if isinstance(ids, Tensor) else ids, max_new_tokens, temperature, stops, seed):
            for row, token in zip(out, tokens, strict=True):
                row += [] if token is None else [token]
        if not isinstance(ids, Tensor):
            return out
        longest = max(map(len, out), default=0)
        return torch.tensor([row + row[-1:] * (longest - len(row)) for row in out], device=ids.device).long().view(len(out), longest)

    def stream(
        self, prompts: Sequence[Sequence[int]], new: int, temperature: float = 0.0, stops: Sequence[int] = (), seed: int | None = None
    ) -> Iterator[list[int | None]]:
        """The same step by step: the next token of each prompt, None where it has stopped."""
        if isinstance(self.module, EncoderDecoder):
            assert self.config.starts is not None
            return generate(self.module, [[self.config.starts]] * len(prompts), new, temperature, stops, seed, prompts)
        return generate(self.module, prompts, new, temperature, stops, seed)

    def logprobs(self, ids: Tensor) -> Tensor:
        """Log-probability of each given token after the first, [B T-1], in float32 at least."""
        with torch.no_grad():
            return logprobs(self(ids)[:, :-1]).gather(-1, ids[:, 1:, None])[..., 0]

    def tensors(self) -> dict[str, Tensor]:
        """The weights under the names that Hugging Face's files use."""
        return dict(unfill(self.module, self.family.rules(self.config)))

    def save(self, folder: str | Path, **how: Any) -> None:
        """Write a Hugging Face folder: config.json, safetensors, and the tokenizer's files as they came."""
        hf = {k: v for k, v in self.hf.items() if k != "torch_dtype"} | {"dtype": str(self.dtype).removeprefix("torch.")}
        save_folder(folder, hf, self.tensors(), self.generation or None, self.files, **how)


def load(
    name: str | Path,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    ignore_fields: Iterable[str] = (),
    progress: Callable[[int, int], None] = lambda done, whole: None,
) -> Model:
    """A model by a specimen's name ("pellucid/capitals"), a folder, or a hub id.

    dtype: of the parameters, as stored where None (float16 becomes float32 on a CPU, which is slow at it).  device "meta": shapes alone.
    ignore_fields: unknown fields of config.json to leave aside, which the model's config then tells.
    """
    check_device(device)
    folder = Folder(place(name))
    kind, cfg = understand(folder.config, str(folder.path / "config.json"), ignore_fields)
    cfg = untied(kind, cfg, folder)
    with torch.device("meta"):
        module = build(cfg)
    wanted = choose_dtype(dtype, folder, str(device))
    if str(device) == "meta":
        cast(module, wanted)
    else:
        fill(module, kind, folder, str(folder.path), wanted, progress)
        module.to(device)
    model = Model(str(name), module.eval(), kind, folder.config, load_tokenizer(folder.path, cfg.vocab))
    model.files, model.generation = folder.tokenizer_files(), folder.generation_config
    return model


def check_device(device: str | torch.device) -> None:
    """A device that torch knows and this machine has."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as broken:
        raise UseError("model.device", found=device, reason=str(broken).split("\n")[0]) from None


def place(name: str | Path) -> Path:
    """The folder of a name."""
    text = str(name) or "''"
    if text.startswith("pellucid/"):
        specimen = SPECIMENS / text.removeprefix("pellucid/")
        if specimen.parent != SPECIMENS or not specimen.is_dir():
            raise UseError("model.specimen", name=text, known=", ".join(specimens()))
        return specimen
    if Path(text).is_dir():
        return Path(text)
    if is_hub_id(text):
        return fetch(text)
    raise UseError("model.unknown", name=text, known=", ".join(specimens()))


def specimens() -> list[str]:
    """The names of the models that ship with the package."""
    return sorted(f"pellucid/{p.name}" for p in SPECIMENS.iterdir() if (p / "config.json").is_file())


def untied(kind: Family, cfg: Config, folder: Folder) -> Config:
    """Where a family's files do not say whether the head is tied, it is not if they store one."""
    stored = any(n.startswith("lm_head.") for n in folder.names())
    return replace(cfg, tied=not stored) if kind.tied_by_presence else cfg


def choose_dtype(asked: str | torch.dtype | None, folder: Folder, device: str) -> torch.dtype:
    """The dtype to hold parameters in."""
    if asked is not None:
        name = str(asked).removeprefix("torch.") if isinstance(asked, torch.dtype) else asked
        if name not in DTYPES:
            raise UseError("model.dtype", found=name, allowed=", ".join(DTYPES))
        return DTYPES[name]
    stored = {e.dtype for e in folder.entries.values()}
    common = next((d for d in (torch.bfloat16, torch.float16, torch.float32, torch.float64) if d in stored), torch.float32)
    return torch.float32 if common == torch.float16 and device == "cpu" else common


def make(hf: Mapping[str, Any], name: str = "new", device: str = "cpu", dtype: torch.dtype | None = None) -> Model:
    """A model from a config.json's fields, with weights that are not set yet."""
    kind, cfg = understand(hf)
    with torch.device(device):
        module = build(cfg)
    return Model(name, cast(module, dtype) if dtype else module, family(kind.name), hf, None)


def trace(model: Model, prompt: str | Sequence[int], steps: int = 1, **how: Any) -> Trace:
    """The life of a prompt: every tensor from its ids to the next token, and so on for `steps` tokens, each the likeliest.

    prompt: a text, or ids; an encoder-decoder's source.  how: `watch`'s settings (only, edit, inside, terms ...). The first step computes
    the logits of every row; later steps run over the cache.
    """
    ids = model.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
    starts = model.config.starts
    own, sources = ([ids], None) if starts is None else ([[starts]], [ids])
    check(model.module, own, steps, 0.0, sources)
    life = Trace(model.name, prompt if isinstance(prompt, str) else None, ids)
    with watch(model, **how) as records:
        run = crowd(model.module, own, steps, sources, every=True)
        logits = next(run)
        while True:
            life.new.append(int(logits[0].argmax()))
            if len(life.new) >= steps or life.new[-1] in model.stops:
                break
            logits = run.send({0: life.new[-1]})
    life.seen = records.seen
    return life
