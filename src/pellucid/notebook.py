"""Objects that show themselves as the page, in a notebook's cell or in one HTML file.

The page's code lies on a floor above these objects, so the package sets `Shown._page` when it is imported.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from pellucid.arguments import checked


class Shown:
    """An object that the page can show."""

    _page: ClassVar[Callable[[], Any]]  # gives `pellucid.html`

    def _repr_html_(self) -> str:
        """Return a notebook's output: the page in a frame, within the limits of `html.frame`."""
        return Shown._page().cell(self)  # type: ignore[no-any-return]

    @checked
    def save_html(self, path: str | Path, most: int | None = None, cells: int | None = None) -> None:
        """Write the page as one file, which opens without a network.

        most: bytes that its tensors may take, 64 MB where None; the largest are left out first.  cells: whose terms it carries at most.
        """
        how = {"most": most, "cells": cells}
        Shown._page().save(self, path, **{name: value for name, value in how.items() if value is not None})
