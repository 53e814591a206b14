"""Nested watches each record what the forward continued with, whichever watch edited it and whichever began first."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid.watching import tap
from pellucid.watching.tap import here
from pellucid.watching.watch import Watch, watch
from tiny import ids, swapped, tiny

PATH = "layers.0.attn.q"
Edit = Callable[[Tensor], Tensor | None]


def seen_by_both(edit_first: bool, change: Edit = lambda x: x * 2, path: str = PATH, **how: Any) -> tuple[Watch, Watch]:
    """Return the editing and the reading watch of one forward; edit_first makes the editing watch the outer one."""
    model = tiny("gpt2")
    with torch.no_grad(), ExitStack() as both:
        watches = [both.enter_context(watch(model, **given)) for given in ({"edit": {path: change}}, how)[:: 1 if edit_first else -1]]
        model(ids(2, 5))
    return (watches[0], watches[1]) if edit_first else (watches[1], watches[0])


@pytest.mark.parametrize("path", [PATH, "layers.0.attn.pattern"])
@pytest.mark.parametrize("edit_first", [True, False])
def test_both_record_what_ran(edit_first: bool, path: str) -> None:
    """The recorded tensor is the one that the op read, and the record says that it was edited."""
    editor, reader = seen_by_both(edit_first, path=path)
    for w in (editor, reader):
        assert (w[path].source, w[path].op, w[path].inputs) == ("edited", "edit", ())
        assert torch.equal(w[path].value, editor[path].value)
    assert reader.paths() == editor.paths()


@pytest.mark.parametrize("edit_first", [True, False])
def test_what_follows_names_the_edited_tensor(edit_first: bool) -> None:
    _, reader = seen_by_both(edit_first)
    assert PATH in reader["layers.0.attn.scores"].inputs


@pytest.mark.parametrize("edit_first", [True, False])
def test_two_edits_of_one_tensor_both_hold(edit_first: bool) -> None:
    """The outer watch's function comes first; each of the two records the result."""
    editor, other = seen_by_both(edit_first, lambda x: x * 2, edit={PATH: lambda x: x + 1})
    plain = tiny("gpt2")
    with torch.no_grad(), watch(plain) as seen:
        plain(ids(2, 5))
    x = seen[PATH].value
    expected = x * 2 + 1 if edit_first else (x + 1) * 2
    assert torch.equal(editor[PATH].value, expected) and torch.equal(other[PATH].value, expected)


@pytest.mark.parametrize("edit_first", [True, False])
def test_rows_of_another_request_are_not_called_edited(edit_first: bool) -> None:
    """An edit of one text of a batch leaves the other text's record unmarked."""
    model = tiny("gpt2")
    with torch.no_grad(), ExitStack() as all_of:
        given = [{"edit": {PATH: lambda x: x * 2}, "request": 1}, {"request": 0}, {}]
        entered = [(i, all_of.enter_context(watch(model, **given[i]))) for i in ((0, 1, 2) if edit_first else (2, 1, 0))]  # type: ignore[arg-type]
        model(ids(2, 5))
    editor, other, both = (w for _, w in sorted(entered, key=lambda e: e[0]))
    assert [(w[PATH].source, w[PATH].op) for w in (editor, other, both)] == [
        ("edited", "edit"),
        ("executed", "linear"),
        ("edited", "edit"),
    ]
    assert torch.equal(both[PATH].value, torch.cat([other[PATH].value, editor[PATH].value]))


def test_an_edit_that_leaves_a_tensor_is_none() -> None:
    """A function that returns None edits nothing."""
    editor, reader = seen_by_both(False, lambda x: None)
    assert editor[PATH].source == reader[PATH].source == "executed" and editor[PATH].op == "linear"


def test_one_pass_mutant() -> None:
    """The mutant lets each watch edit and record in turn, so that the outer one records a tensor that was not used."""

    def one_pass(x: Tensor, label: str, rows: Tensor | None = None) -> Tensor:
        for w in here.watches:
            before = x
            x = w.alter(x, label, rows)
            x = w.see(x, label, rows, x is not before)
        return x

    from pellucid.nn import attention

    with swapped(attention, "tap", one_pass):
        editor, reader = seen_by_both(False)
    assert attention.tap is tap.tap and not torch.equal(editor[PATH].value, reader[PATH].value)
