"""One family of checkpoints as data: the literal `FAMILY` that ends each families/<model_type>.py."""

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pellucid.config import Config
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

# how names begin where "model." is left out
HEADLESS = (
    "embed_tokens.",
    "embedding_norm.",
    "embeddings.",
    "layers.",
    "norm.",
    "final_layernorm.",
    "final_norm.",
    "norm_f.",
    "layer_norm.",
)


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a config.json of one `model_type` means, and what its checkpoints call each tensor.

    config(hf): the Config that a config.json describes.
    rules: the table of names on disk and ours (families/names.py), or rules(cfg) where the table depends on the Config.
    ignored: regular expressions of names on disk that carry nothing, or ignored(cfg, names on disk).
    copies: {name on disk: the name on disk whose tensor it repeats}.
    respell(name): a name on disk as `rules` spell it, where older files spell it otherwise.
    resolve(cfg, names on disk): the Config once the stored names are known, where config.json leaves something open.
    saved_config(hf): the config.json that `save` writes, where it is not the one that was read.
    text_model: the model_type of the text model, or text_model(cfg), where the checkpoint also has a vision part, which is not read.
    architecture: the class of the language model in transformers, written to config.json.
    does_more: parts whose module in transformers does more than ours, such as adding the residual, so that its output is not ours.
    name: the model_type; the registry sets it from the file's name.
    """

    config: Callable[[Fields], Config]
    rules: tuple[Rule, ...] | Callable[[Config], tuple[Rule, ...]]
    ignored: tuple[str, ...] | Callable[[Config, Container[str]], tuple[str, ...]] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    respell: Callable[[str], str] = str
    resolve: Callable[[Config, Container[str]], Config] = lambda cfg, names: cfg
    saved_config: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    text_model: str | Callable[[Config], str] | None = None
    architecture: str | None = None
    does_more: tuple[str, ...] = ()
    name: str = ""

    def __reduce__(self) -> tuple[Callable[[str], "Family"], tuple[str]]:
        """Pickle a family by its name, for its rules are functions."""
        from pellucid.families import family

        return family, (self.name,)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Family":
        return self  # it does not change

    def inner_type(self, cfg: Config) -> str | None:
        """Return the model_type of the text model inside, None for a model that is text alone."""
        return self.text_model(cfg) if callable(self.text_model) else self.text_model

    def rules_for(self, cfg: Config) -> tuple[Rule, ...]:
        """Return the table of names for a model of this Config."""
        return self.rules(cfg) if callable(self.rules) else self.rules

    def unused(self, cfg: Config, names: Iterable[str]) -> set[str]:
        """Return those of `names` on disk that carry nothing for this model."""
        on_disk = set(names)
        patterns = [re.compile(p) for p in (self.ignored(cfg, on_disk) if callable(self.ignored) else self.ignored)]
        return {n for n in on_disk if any(p.fullmatch(n) for p in patterns)}

    def canonical(self, name: str) -> str:
        """Return a name on disk as `rules` spell it: TensorFlow's gamma and beta as weight and bias, then `respell`.

        Files of a model without its head, such as Qwen3's embedders, leave "model." out.
        """
        spelled = self.respell(re.sub(r"\.(gamma|beta)$", lambda end: {"gamma": ".weight", "beta": ".bias"}[end[1]], name))
        return self.respell(f"model.{spelled}") if spelled.startswith(HEADLESS) else spelled  # BERT's own prefix comes first
