"""Bills for the page: a model counted, the reasons of one of its numbers, its tensors one by one, and its numbers along one setting."""

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
ALONG = ("context", "batch", "dtype", "device")
How = dict[str, Any]


class Bills:
    """registry: the models that were opened; others are the catalogue's. The latest answers are kept."""

    def __init__(self, registry: ModelRegistry, limits: Limits) -> None:
        self.registry, self.limits, self.lock = registry, limits, threading.Lock()
        self.found: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()

    def document(self, name: str, how: How, viewed: How) -> dict[str, Any]:
        """The bill as `pellucid count --json` prints it, with its numbers' formulas."""
        scenario = bill_json.scenario(how.get("device"), **viewed)

        def made() -> dict[str, Any]:
            return count_document(self.bill(name, how), scenario)

        return self.kept(("document", name, *sorted(how.items()), *sorted(viewed.items())), made)

    def why(self, name: str, how: How, path: str) -> dict[str, Any]:
        """A number with its formula, and those that it is made of, down to single tensors; as `--why` prints them."""

        def made() -> dict[str, Any]:
            bill = self.bill(name, how)
            return {"schema": SCHEMA, "model": name, "path": path, "why": bill_json.reasons(bill, path)}

        return self.kept(("why", name, path, *sorted(how.items())), made)

    def weights(self, name: str, how: How) -> dict[str, Any]:
        """Every tensor, those of equal layers once. layers: the numbers of the layers that have one each, null of what has no layer."""

        def made() -> dict[str, Any]:
            bill = self.bill(name, how)
            return {"schema": SCHEMA, "model": name, "weights": list(weights_to_json(bill))}

        return self.kept(("weights", name, *sorted(how.items())), made)

    def along(self, name: str, how: How, what: str, split: str | None = None) -> dict[str, Any]:
        """Cache, products and seconds at best while one setting goes over its range and the others stay."""
        if what not in ALONG:
            raise RequestError("server.field", 400, "along", name="along", found=what, allowed=" | ".join(ALONG))
        over = Split() if split is None else split_of(split)

        def made() -> dict[str, Any]:
            bills = ((value, self.bill(name, how | {what: value})) for value in values(self.bill(name, how), what))
            return {"schema": SCHEMA, "model": name, "along": what, "points": [point(value, bill, over) for value, bill in bills]}

        return self.kept(("along", name, what, split, *sorted(how.items())), made)

    def bill(self, name: str, how: How) -> Bill:
        """A model that was opened, or one of the catalogue."""
        if name not in self.registry.names and name not in catalog.models():
            raise RequestError("server.model", 404, "model", found=name, known=", ".join(self.registry.names))
        if (own := self.registry.loaded.get(name)) is not None:
            return count(name, known=(own.family, own.config), **how)
        return count(name, **how)

    def kept(self, key: tuple[Any, ...], made: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """An answer, made where it is not kept."""
        key = (language(), *key)
        with self.lock:
            if key in self.found:
                self.found.move_to_end(key)
                return self.found[key]
        out = made()
        with self.lock:
            self.found[key] = out
            while len(self.found) > self.limits.bills:
                self.found.popitem(last=False)
        return out
