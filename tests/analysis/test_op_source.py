"""The source of the op behind a tensor: every record of every family has one, and it is what ran."""

from importlib import import_module
from pathlib import Path

import pytest

import pellucid
from pellucid.analysis import op_source as home
from pellucid.analysis.op_source import SourceCode, makers, op_source, part_source, rerun_gap
from pellucid.analysis.rerun import Rerun, cell_lines, rerun_cell
from pellucid.ops.kinds import KINDS as OPS
from programs import run_lines
from recorded_models import KINDS, ODD, lived
from tiny import swapped

ALL = KINDS | ODD
ROOT = Path(pellucid.__file__).parents[1]
PROMPT = "The capital of France is"


def stands(code: SourceCode) -> bool:
    """True if a file of the package has this text at these lines."""
    assert not Path(code.file).is_absolute() and ".." not in code.file
    lines = (ROOT / code.file).read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(lines[code.first - 1 : code.last]) == code.text


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.quick(7)
def test_every_record_has_the_source_of_its_op_and_part(kind: str) -> None:
    model, trace = lived(ALL[kind])
    known = {}
    for s in trace:
        if s.path.startswith("sample."):
            continue
        op, part = op_source(s, model), part_source(s, model)
        assert op is not None and stands(op) and op.file.startswith("pellucid/ops/"), s.path
        assert part is not None and stands(part) and part.name.endswith(".forward"), s.path
        known[s.path] = op.name
    assert {known[p] for p in known if p.endswith((".pattern", ".attn.scores"))} <= {"attend_reference"}
    assert {known[p] for p in known if p.endswith(".router")} <= {"linear_wide"}
    assert {known[p] for p in known if p.endswith(".affinity")} <= {"softmax", "sigmoid"}
    assert {known[p] for p in known if p.endswith((".attn.q", ".ffn.up")) and "experts" not in trace[p].op} <= {"linear", "grouped"}


def test_what_has_no_op_has_no_source() -> None:
    model, trace = lived(KINDS["llama"], edit={"layers.0.out": lambda x: x * 2})
    assert op_source(trace["layers.0.out"], model) is None
    trace["embed"].op = "../../etc/passwd"  # a name that no kind has, as a damaged file may have
    assert op_source(trace["embed"], model) is None
    assert all(makers(op) for op in ("linear", "add", "rms", "rotate", "attend", "gate", "experts", "combine"))
    assert "linear" in OPS


@pytest.mark.parametrize("path", ["layers.0.attn.q", "layers.0.attn", "layers.0.mid", "layers.0.ffn"])
def test_the_source_is_what_ran(path: str) -> None:
    model, trace = lived(KINDS["gpt2"])
    code = op_source(trace[path], model)
    assert code is not None and rerun_gap(model, trace, trace[path], code) < 1e-12
    own = import_module(code.file.removesuffix(".py").replace("/", "."))
    op = getattr(own, code.name)
    with swapped(own, code.name, lambda *operands: 1.5 * op(*operands)):
        assert rerun_gap(model, trace, trace[path], code) > 1e-3


def test_a_first_candidate_is_not_enough() -> None:
    """The mutant: without the model's own lines a router's product is taken for a plain one."""
    model, trace = lived(KINDS["deepseek_v3"])
    with swapped(home, "tapping", lambda texts, seen: []):
        code = op_source(trace["layers.1.ffn.router"], model)
    assert code is not None and code.name != "linear_wide"


@pytest.mark.parametrize("steps", [1, 2])
def test_lines_make_a_cell_again(steps: int) -> None:
    model = pellucid.load("pellucid/capitals", dtype="float32")
    trace, run = pellucid.trace(model, PROMPT, steps), Rerun("pellucid/capitals", PROMPT, (), (), steps, "float32")
    seen = trace.all("layers.1.attn.q")[-1]
    assert (
        run_lines(cell_lines(run, trace, seen, (0, 0, 1, 7))) == seen.value[0, 0, 1, 7].item() == rerun_cell(run, trace, seen, (0, 0, 1, 7))
    )
    assert run_lines(cell_lines(run, trace, seen, (0, 0, 1, 8))) != seen.value[0, 0, 1, 7].item()


def test_lines_name_switches_and_ids() -> None:
    model = pellucid.variant(pellucid.load("pellucid/capitals", dtype="float32"), {"norm": "none"})
    ids = tuple(model.tokenizer.encode(PROMPT))
    trace = pellucid.trace(model, ids)
    lines = cell_lines(Rerun("pellucid/capitals", ids, ("norm=none",), (), 1, "float32"), trace, trace["layers.0.mid"], (0, 2, 3))
    assert run_lines(lines) == trace["layers.0.mid"].value[0, 2, 3].item()
