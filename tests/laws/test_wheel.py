"""The wheel: its platform is one that an index takes and that has every symbol its kernels ask for."""

import re
from importlib.metadata import distribution
from pathlib import Path

import pytest

from pellucid.ops.native import make


@pytest.mark.parametrize(
    ("symbols", "tag"),
    [
        (["memcpy@GLIBC_2.14", "log@GLIBC_2.29", "free@GLIBC_2.2.5"], "manylinux_2_29_x86_64"),
        (["log@GLIBC_2.29", "x@GLIBC_2.38"], "manylinux_2_38_x86_64"),
        (["free@GLIBC_2.2.5", "x@GLIBCXX_3.4.30"], "manylinux_2_17_x86_64"),
        (["x@GLIBCXX_3.4.30"], "linux_x86_64"),
    ],
)
def test_the_platform_is_the_oldest_that_has_every_symbol(tmp_path: Path, symbols: list[str], tag: str) -> None:
    library = tmp_path / "kernels.so"
    library.write_bytes(b"\x7fELF\0" + b"\0".join(re.split("@", s)[1].encode() for s in symbols) + b"\0")
    assert make.platform_tag([library]) == tag
    older = tmp_path / "older.so"
    older.write_bytes(b"\0GLIBC_2.5\0")
    assert make.platform_tag([older, library]) == (tag if tag != "linux_x86_64" else "manylinux_2_17_x86_64")


def test_no_platform_of_the_kernels_is_plain_linux() -> None:
    made = sorted(Path(make.__file__).parent.glob("kernels_*.so"))
    assert bool(made) == (make.compiler() is not None)
    if made:
        assert re.fullmatch(r"manylinux_2_\d+_x86_64", make.platform_tag(made))
    about = distribution("pellucid").read_text("WHEEL")
    assert about is None or "linux_x86_64" not in re.findall(r"^Tag: py3-none-(.*)$", about, re.MULTILINE)
