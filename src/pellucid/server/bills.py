"""Bills for the page: a counted model, the reasons of one number, its weights one by one, and its numbers along one setting."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from pellucid import catalog
from pellucid.api.count import count
from pellucid.counting import Bill
from pellucid.counting.ranks import Split, split_of
from pellucid.documents import count as bill_json
from pellucid.documents.count_formulas import count_document
from pellucid.documents.count_series import point, values, weights_to_json
from pellucid.errors import RequestError
from pellucid.messages import language
from pellucid.runs.limits import Limits
from pellucid.runs.model_registry import ModelRegistry

SCHEMA = 1
DRAFTED = ("context", "batch", "dtype", "cache", "device")  # settings of a draft too
ALONG = ("context", "batch", "dtype", "device")
How = dict[str, Any]


class Bills:
    """A cache of bills. registry: the models that were opened; others are the catalogue's."""

    def __init__(self, registry: ModelRegistry, limits: Limits) -> None:
        self.registry, self.limits, self.lock = registry, limits, threading.Lock()
        self.answers: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()

    def document(self, name: str, how: How, viewed: How) -> dict[str, Any]:
        """Return the bill as `pellucid count --json` prints it, with the formulas of its numbers."""

        def made() -> dict[str, Any]:
            draft = self.bill(viewed["draft"], {k: how[k] for k in DRAFTED if k in how}) if "draft" in viewed else None
            scenario = bill_json.scenario(how.get("device"), **viewed | {"draft": draft})
            return count_document(self.bill(name, how), scenario)

        return self.kept(("document", name, *sorted(how.items()), *sorted(viewed.items())), made)

    def why(self, name: str, how: How, path: str) -> dict[str, Any]:
        """Return the number at `path` with its formula, and the numbers that it uses, as `--why` prints them."""

        def made() -> dict[str, Any]:
            bill = self.bill(name, how)
            return {"schema": SCHEMA, "model": name, "path": path, "why": bill_json.reasons(bill, path)}

        return self.kept(("why", name, path, *sorted(how.items())), made)

    def weights(self, name: str, how: How) -> dict[str, Any]:
        """Return every weight, those of equal layers once. layers: the numbers of these layers, null for a weight outside of layers."""

        def made() -> dict[str, Any]:
            bill = self.bill(name, how)
            return {"schema": SCHEMA, "model": name, "weights": list(weights_to_json(bill))}

        return self.kept(("weights", name, *sorted(how.items())), made)

    def along(self, name: str, how: How, what: str, split: str | None = None) -> dict[str, Any]:
        """Return cache, products and best seconds for every value of the setting `what`; the others stay."""
        if what not in ALONG:
            raise RequestError("server.field", 400, "along", name="along", found=what, allowed=" | ".join(ALONG))
        over = Split() if split is None else split_of(split)

        def made() -> dict[str, Any]:
            bills = ((value, self.bill(name, how | {what: value})) for value in values(self.bill(name, how), what))
            return {"schema": SCHEMA, "model": name, "along": what, "points": [point(value, bill, over) for value, bill in bills]}

        return self.kept(("along", name, what, split, *sorted(how.items())), made)

    def bill(self, name: str, how: How) -> Bill:
        """Count a model that was opened, or one of the catalogue by its id, name or alias. A RequestError for another name."""
        if (own := self.registry.loaded.get(name)) is not None:
            return count(name, known=(own.family, own.config), **how)
        known = self.registry.names
        if name in known:
            return count(name, **how)
        if (entry := catalog.find(catalog.models(), name)) is None:
            near = catalog.nearest((*known, *catalog.models()), name)
            raise RequestError("server.counted", 404, "model", found=name, near=", ".join(near) or "-", known=", ".join(known))
        return count(entry["id"], **how)

    def kept(self, key: tuple[Any, ...], made: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the answer kept under `key`, or make and keep it; the least recently used is dropped."""
        key = (language(), *key)
        with self.lock:
            if key in self.answers:
                self.answers.move_to_end(key)
                return self.answers[key]
        out = made()
        with self.lock:
            self.answers[key] = out
            while len(self.answers) > self.limits.bills:
                self.answers.popitem(last=False)
        return out
