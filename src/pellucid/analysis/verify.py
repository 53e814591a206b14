"""The comparison with transformers: both run the same folder, and every module's output is compared with its counterpart's.

transformers is the reference, and needed for nothing else; without it the command is a UseError. In float64 its islands of float32 are
promoted, so that only the mathematics is compared: errors are 1e-14 if both compute the same, and 1e-2 if they do not.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pellucid.analysis.equal_choices import EqualChoices, equal_choices
from pellucid.api.model import DTYPES, Model, load, place
from pellucid.checkpoint.folder import Folder
from pellucid.checkpoint.gguf.gguf_folder import gguf_of
from pellucid.checkpoint.quantised_tensor import Quantised
from pellucid.checkpoint.safetensors_file import read_tensor
from pellucid.config import Layer
from pellucid.errors import PellucidError, UseError
from pellucid.families.modules import ModuleDifference, first_difference, gap, pairs, recorded
from pellucid.families.quantisation import FIELD as QUANTISED
from pellucid.families.quantisation import Fp8
from pellucid.nn.transformer import Encoder, EncoderDecoder

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
ROWS, TOKENS = 2, 24  # of the random prompts, without a given one


@dataclass(frozen=True)
class Compared:
    """One of our modules and its counterpart. error: the largest difference of outputs over the largest value of theirs."""

    path: str
    theirs: str
    error: float


@dataclass
class Report:
    """The result of a comparison. logits: the largest difference over the largest logit.  first: the first tensor beyond tolerance.

    tied: a choice before it that differs among keys of equal scores alone.
    """

    model: str
    against: str
    dtype: torch.dtype
    tolerance: float
    logits: float
    first: ModuleDifference | None
    modules: list[Compared] = field(default_factory=list)
    tied: EqualChoices | None = None

    @property
    def agrees(self) -> bool:
        return self.first is None and self.logits <= self.tolerance


def verify(
    name: str | Path,
    against: str | Path | None = None,
    dtype: str = "float64",
    prompt: str | None = None,
    device: str | torch.device = "cpu",
) -> Report:
    """Compare our model of a folder with transformers' of the same, or of `against`, on a prompt or on seeded random ids."""
    if dtype not in DTYPES:
        raise UseError("model.dtype", found=dtype, allowed=", ".join(DTYPES))
    kind = DTYPES[dtype]
    folder = place(name if against is None else against)
    if gguf_of(folder) is not None:
        raise UseError("verify.gguf", name=folder)
    model = load(name, dtype=kind, device=device)
    with foreign("verify.theirs", folder):
        other = theirs(model, folder, kind).to(model.device).eval()
    ids = tuple(given.to(model.device) for given in inputs(model, prompt))
    table = pairs(model.family, model.module, other)
    with torch.no_grad():
        with foreign("verify.run", folder), promoted(kind), recorded(other, [p.theirs for p in table]) as right:
            truth = run(other, model, ids)
        with recorded(model.module, [p.ours for p in table]) as mine:
            logits = model(*ids)
    tolerance = TOLERANCE[kind]
    rows = []
    for p in table:
        for (_, y), (_, their_y) in zip(mine.get(p.ours, ()), right.get(p.theirs, ()), strict=False):
            rows.append(Compared(p.ours, p.theirs, gap(y, p.own(their_y))))
    first = first_difference(table, mine, right, tolerance)
    tied = None if first is None else equal_choices(model, ids, table, mine, right, first.path)
    return Report(str(name), str(name if against is None else against), kind, tolerance, gap(logits, truth), first, rows, tied)


def inputs(model: Model, prompt: str | None) -> tuple[Tensor, ...]:
    """Return token ids [B T], after a source's ids for an encoder-decoder."""
    rng = torch.Generator().manual_seed(0)
    vocab, offset = model.config.vocab, model.config.offset
    length = min(TOKENS, model.config.positions or TOKENS)
    ids = torch.randint(vocab, (ROWS, length), generator=rng)
    target = torch.randint(vocab, (ROWS, length - 1), generator=rng)
    for drawn in (ids, target) if offset else ():  # RoBERTa's and M2M-100's padding token, which transformers gives no position
        drawn[drawn == offset - 1] = offset % vocab
    if prompt is not None:
        ids = torch.tensor([model.tokenizer.encode(prompt, special=True)], dtype=torch.long)
        if not ids.numel():
            raise UseError("generate.empty", name="prompt")
    return (ids, target[: len(ids)]) if isinstance(model.module, EncoderDecoder) else (ids,)


@contextmanager
def foreign(sentence: str, folder: Path) -> Iterator[None]:
    """Turn another library's exception into a UseError with its message on one line."""
    try:
        yield
    except PellucidError:
        raise
    except Exception as broken:
        raise UseError(sentence, folder=folder, reason=str(broken).strip().split("\n")[0] or type(broken).__name__) from None


def theirs(model: Model, folder: Path, dtype: torch.dtype) -> Any:
    """Return transformers' model of a folder, by its Auto class, or by the family's class if model_type is unknown to it."""
    try:
        library: Any = importlib.import_module("transformers")
    except ImportError:
        raise UseError("verify.missing") from None
    stored = Folder(folder)
    task = "ForSeq2SeqLM" if isinstance(model.module, EncoderDecoder) else "ForCausalLM"
    if isinstance(model.module, Encoder):
        task = "ForMaskedLM" if model.config.head else ""
    library.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    if stored.config.get("model_type") in library.models.auto.configuration_auto.CONFIG_MAPPING or model.family.architecture is None:
        kind = getattr(library, f"AutoModel{task}")
        config = library.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if type(config) not in kind._model_mapping:  # a model that sees, or the text model of one (Mistral 4)
            kind = library.AutoModelForImageTextToText
    else:
        kind = getattr(library, model.family.architecture)
        config = kind.config_class.from_pretrained(folder, local_files_only=True)
        config.model_type = kind.config_class.model_type  # it selects the conversion of names on disk
    how: dict[str, Any] = {"config": config, "dtype": dtype, "local_files_only": True, "trust_remote_code": False}
    # Falcon's plain attention adds the bias by distance twice; its default adds it once
    how |= {} if any(rounded(layer) for layer in model.config.layers) else {"attn_implementation": "eager"}
    how |= {"experts_implementation": "eager"} if any(n.endswith("ffn.router") for n, _ in model.module.named_modules()) else {}
    source: Path | None = folder
    quantisation = stored.config.get(QUANTISED)
    if isinstance(quantisation, dict) and quantisation.get("quant_method") == "fp8" and isinstance(stored.method, Fp8):
        # its own reading takes the blocks' size from their number, wrongly where the last one is ragged
        del config.quantization_config
        kind = kind if hasattr(kind, "config_class") else kind._model_mapping[type(config)]
        source, how["state_dict"] = None, dequantised(stored, stored.method, dtype)
    with promoted(dtype):
        other = kind.from_pretrained(source, **how)
    for p in other.parameters() if dtype is torch.float64 else ():
        p.data = p.data.to(dtype)
    return other


def rounded(layer: Layer) -> bool:
    """True if a layer's scores have Falcon's ALiBi."""
    return layer.attn.alibi is not None and layer.attn.alibi.rounded


def dequantised(folder: Folder, method: Fp8, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return a float8 folder's tensors as plain ones, by transformers' own function for training over such weights."""
    multiply = importlib.import_module("transformers.integrations.finegrained_fp8")._dequantize_fp8_weight
    tensors: dict[str, Tensor] = {}
    for name, entry in folder.entries.items():
        if isinstance(entry, Quantised):
            tensors[name] = multiply(*map(read_tensor, entry.parts), list(method.block), dtype)
        else:
            tensors[name] = folder.read(name)
    return tensors


def run(other: Any, model: Model, ids: tuple[Tensor, ...]) -> Tensor:
    """Return transformers' logits, or its last rows for a model without a head."""
    named: dict[str, Any] = dict(zip(("input_ids", "decoder_input_ids"), ids, strict=False))
    if model.config.prefix:  # it has no prefix mask: pass one in which every prompt token sees every other
        named["attention_mask"] = torch.zeros(len(ids[0]), 1, ids[0].shape[1], ids[0].shape[1], dtype=model.dtype)
    out = other(**named, **({} if isinstance(model.module, Encoder) else {"use_cache": False}))
    return out.logits if model.config.head else out.last_hidden_state  # type: ignore[no-any-return]


class Promote(TorchFunctionMode):
    """A mode that replaces float32 by float64 in every call, and in calls without a dtype."""

    def __enter__(self) -> "Promote":
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        torch.set_default_dtype(self.before)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wider(a: Any) -> Any:
            return torch.float64 if a is torch.float32 else a

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(wider, args), **{k: wider(v) for k, v in (kwargs or {}).items()})


@contextmanager
def promoted(dtype: torch.dtype = torch.float64) -> Iterator[None]:
    """Run transformers in float64 without its float32 islands, except T5's buckets, which were trained with float32 logarithms."""
    if dtype is not torch.float64:
        yield
        return
    module = sys.modules.get("transformers.models.t5.modeling_t5")
    holder = getattr(module, "T5Attention", None)
    bucket: Any = getattr(holder, "_relative_position_bucket", None)

    def in_float32(*args: Any, **kwargs: Any) -> Tensor:
        with torch._C.DisableTorchFunction():
            return bucket(*args, **kwargs)  # type: ignore[no-any-return]

    try:
        if holder is not None:
            setattr(holder, "_relative_position_bucket", staticmethod(in_float32))  # noqa: B010
        with Promote():
            yield
    finally:
        if holder is not None:
            setattr(holder, "_relative_position_bucket", staticmethod(bucket))  # noqa: B010
