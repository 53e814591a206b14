"""Configs written as data: every model that only a paper discloses, every kind of part, and errors by entry and field."""

import copy
import re
from dataclasses import asdict
from typing import Any

import pytest

import tiny
from pellucid import catalog
from pellucid import config as c
from pellucid.api.count import count
from pellucid.catalog.literal import literal
from pellucid.errors import ConfigError

LITERAL = {i: e for i, e in catalog.models().items() if "literal" in e}
UNITS = {"M": 1e6, "B": 1e9}
PALM = LITERAL["palm-8b"]["literal"]


@pytest.mark.parametrize("name", LITERAL)
@pytest.mark.quick(4)
def test_the_published_total_is_near(name: str) -> None:
    """The total is within a thirtieth of the rounded figure; GPT-3 XL is misprinted, so its table's total is that of the intended model."""
    as_data = re.match(r"([\d.]+)([MB])", LITERAL[name]["published"]["total"])
    assert as_data is not None
    published, total = float(as_data[1]) * UNITS[as_data[2]], int(count(name)["parameters.total"])
    assert (abs(total / published - 1) < 1 / 30) is (name != "gpt3-xl")


def as_data(cfg: c.Config) -> dict[str, Any]:
    """Return a Config as data."""

    def plain(x: Any) -> Any:
        return {k: plain(v) for k, v in x.items()} if isinstance(x, dict) else [plain(v) for v in x] if isinstance(x, tuple) else x

    return plain(asdict(cfg))  # type: ignore[no-any-return]


def test_every_config_can_be_written() -> None:
    """Every tiny config, and one of every kind of rope, is itself after writing and reading."""
    ropes = (c.LinearScaling(2), c.Llama3(8.0, 1.0, 4.0, 64), c.Yarn(4.0, 32), c.Dynamic(3.0, 32), c.LongRope((1.0, 2.0), (3.0, 4.0), 32))
    turning = [c.Config(9, 8, (c.Layer(c.Attention(1, 1, 4, c.Rope(4, scaling=r)), c.Mlp(4)),)) for r in ropes]
    for cfg in (*tiny.FAMILIES.values(), *turning):
        assert literal(as_data(cfg), "there") == cfg


def changed(path: str, value: Any) -> dict[str, Any]:
    raw: Any = copy.deepcopy(PALM)
    at, words = raw, [int(w) if w.isdigit() else w for w in path.split("/")]
    for w in words[:-1]:
        at = at[w]
    if value is ...:
        del at[words[-1]]
    else:
        at[words[-1]] = value
    return raw  # type: ignore[no-any-return]


FAULTS = [
    ("vocab", "many", "literal.vocab is 'many'; allowed: int"),
    ("vocab", True, "literal.vocab is True"),
    ("vocab", ..., "literal.vocab is missing"),
    ("width", 4096.0, "literal.width is 4096.0"),
    ("width", 0, "literal.width is 0; allowed: 1 ... 2147483647"),
    ("width", 2**40, "literal.width"),
    ("eps", -1e-5, "literal.eps is -1e-05"),
    ("eps", float("nan"), "literal.eps is nan"),
    ("tied", 1, "literal.tied is 1; allowed: bool"),
    ("heads", 3, "literal.heads is 3; allowed: vocab, width"),
    ("layers", [], "literal.layers is []"),
    ("layers", {}, "literal.layers is {}"),
    ("layers/0", 3, "literal.layers[0] is 3"),
    ("layers/0/times", 0, "literal.layers[0].times is 0; allowed: 1 ... 100000"),
    ("layers/0/times", 10**9, "literal.layers[0].times"),
    ("layers/0/attn", None, "literal.layers[0].attn is None"),
    ("layers/0/attn/headz", 3, "literal.layers[0].attn.headz is 3; allowed: heads, kv_heads"),
    ("layers/0/attn/heads", "16", "literal.layers[0].attn.heads is '16'"),
    ("layers/0/attn/heads", ..., "literal.layers[0].attn.heads is missing"),
    ("layers/0/attn/rope/theta", "1e4", "literal.layers[0].attn.rope.theta is '1e4'; allowed: float"),
    ("layers/0/attn/rope/scaling", {"factor": 2.0, "offset": 1}, "literal.layers[0].attn.rope.scaling.offset is 1"),
    ("layers/0/ffn", {"experts": 8, "chosen": 2}, "literal.layers[0].ffn.width is missing"),
]


@pytest.mark.parametrize(("path", "value", "words"), FAULTS, ids=lambda x: x if isinstance(x, str) else None)
def test_faults_name_the_entry_and_the_field(path: str, value: Any, words: str) -> None:
    assert literal(PALM, "catalogue: palm-8b").layers[0].order == "parallel"
    with pytest.raises(ConfigError) as refused:
        literal(changed(path, value), "catalogue: palm-8b")
    assert words in str(refused.value) and str(refused.value).startswith("catalogue: palm-8b: ") and "\n" not in str(refused.value)


def test_a_field_may_be_put_in_place() -> None:
    """A field may be replaced, as for a config.json."""
    assert int(count("palm-8b")["parameters.total"]) - int(count("palm-8b", fields={"vocab": 255_999})["parameters.total"]) == 4096
    with pytest.raises(ConfigError, match=r"catalogue: palm-8b: literal\.vocabulary is 3"):
        count("palm-8b", fields={"vocabulary": 3})
