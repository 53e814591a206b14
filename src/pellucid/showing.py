"""How a thing shows itself: as the page, in a notebook's cell or in one HTML file.

What draws the page stands floors above the things that it draws; the package puts it in here when it is imported.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar


class Shown:
    """A thing that the page can show."""

    _page: ClassVar[Callable[[], Any]]  # gives `pellucid.saved`

    def _repr_html_(self) -> str:
        """What a notebook shows: the page in a frame of its own, with as much as fits `saved.notebook.LIMITS`."""
        return Shown._page().cell(self)  # type: ignore[no-any-return]

    def save_html(self, path: str | Path, **how: Any) -> None:
        """Write the page with what it shows as one file, which opens without a network. how: see `saved.html`."""
        Shown._page().save(self, path, **how)
