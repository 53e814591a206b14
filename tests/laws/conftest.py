"""Trees of sources are shared by the laws of a module, and dropped after it."""

from collections.abc import Iterator

import pytest

import source_tree


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    yield
    source_tree.forget()
