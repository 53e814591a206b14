"""Every op of a record has one OpKind, defined beside it: its formula, its labels, and whether it is a product."""

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import pellucid
from pellucid import ops
from pellucid.ops import kinds
from pellucid.ops.kinds import KINDS, OpKind, is_product
from pellucid.ops.sampling import stages

for module in pkgutil.walk_packages(ops.__path__, "pellucid.ops."):
    stem = module.name.split(".")[-1]
    if stem.startswith("kernels_"):  # a library of native kernels is no module
        continue
    if stem.endswith("kernels") and ".gpu." in module.name and find_spec("triton") is None:  # these alone need Triton
        continue
    importlib.import_module(module.name)  # a kind exists once its module is imported

PACKAGE = Path(pellucid.__file__).parent
PRODUCTS = {
    "linear",
    "experts",
    "attend",
    "attend latent",
    "scores",
    "look",
    "pick",
    "merged",
    "identity",
    "mixture",
    "shifted",
    "convolve",
    "delta rule",
    "state",
    "ssd",
    "ssd state",
    "selective scan",
    "selective state",
}


def noted(source: str) -> Iterator[str]:
    """Yield the second argument of every call of note, which names the op."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "note":
            yield ast.unparse(node.args[1])


def strays() -> list[str]:
    """Return notes whose op is a string instead of a kind's name; stages of sampling have their setting's name."""
    names = {path.name: list(noted(path.read_text(encoding="utf-8"))) for path in sorted((PACKAGE / "ops").rglob("*.py"))}
    assert sum(map(len, names.values())) > 30
    return [f"{file}: {name}" for file, noted_names in names.items() for name in noted_names if not name.endswith(".name")]


def test_an_op_is_noted_by_its_kind() -> None:
    assert strays() == []
    assert {"top_k", "top_p", "min_p", "probabilities"} <= KINDS.keys() and set(stages.CHANGES) | set(stages.CUTS) <= KINDS.keys()


def test_a_note_by_a_string_is_seen() -> None:
    assert list(noted('note(y, "linear", (x,), ())')) == ["'linear'"] and not "'linear'".endswith(".name")
    assert list(noted("note(y, LINEAR.name, (x,), ())")) == ["LINEAR.name"]


def test_two_ops_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "KINDS", dict(KINDS))
    with pytest.raises(ValueError, match="second: linear"):
        OpKind("linear")
    assert OpKind("linear of another name").formula is None


def test_products_are_what_costs_by_its_own_flops() -> None:
    """Everything else is counted as elementwise work, and a view as none."""
    assert {op for op in KINDS if is_product(op)} == PRODUCTS and is_product(None) and not is_product("an op of a later version")
