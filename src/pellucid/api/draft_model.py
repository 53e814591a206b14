"""A model as another's draft: whether both write in the same tokens."""

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pellucid.engine.draft import require_draft, require_proposals
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder
from pellucid.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pellucid.api.model import Model

# By tokenizer and by a draft's, how many first ids are the same tokens in both: comparing 152,000 takes 0.05 s, which no call pays twice.
ALIKE: WeakKeyDictionary[Tokenizer, WeakKeyDictionary[Tokenizer, int]] = WeakKeyDictionary()


def draft_for(model: "Model", draft: "Model | None") -> Decoder | None:
    """Return the module of a draft. A UseError if it cannot propose tokens to the model, or the model takes none.

    A draft may have more rows for ids than the model, or fewer, as models of one family do: the ids that both have must be the same tokens.
    """
    require_proposals(model.module, model.name)
    if draft is None:
        return None
    require_draft(draft.module, draft.name)
    ours, theirs = model._tokenizer, draft._tokenizer
    if ours is None or theirs is None:
        if model.config.vocab != draft.config.vocab:
            raise UseError("speculate.sizes", draft=draft.name, model=model.name, found=draft.config.vocab, expected=model.config.vocab)
    else:
        known = ALIKE.setdefault(ours, WeakKeyDictionary())
        both = min(model.config.vocab, draft.config.vocab)
        for id in range(known.get(theirs, 0), both):
            if (theirs_is := theirs.spelled(id)) != (ours_is := ours.spelled(id)):
                raise UseError("speculate.vocabulary", draft=draft.name, model=model.name, id=id, found=theirs_is, expected=ours_is)
        known[theirs] = max(both, known.get(theirs, 0))
    assert isinstance(draft.module, Decoder)
    return draft.module
