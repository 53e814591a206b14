"""The wheel: its platform is one that an index takes and that has every symbol its kernels ask for."""

import platform
import re
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from pellucid.ops.native import make


@pytest.mark.parametrize(
    ("symbols", "tag"),
    [
        (["memcpy@GLIBC_2.14", "log@GLIBC_2.29", "free@GLIBC_2.2.5"], "manylinux_2_29"),
        (["log@GLIBC_2.29", "x@GLIBC_2.38"], "manylinux_2_38"),
        (["free@GLIBC_2.2.5", "x@GLIBCXX_3.4.30"], "manylinux_2_17"),
        (["x@GLIBCXX_3.4.30"], "linux"),
    ],
)
def test_the_platform_is_the_oldest_that_has_every_symbol(tmp_path: Path, symbols: list[str], tag: str) -> None:
    library = tmp_path / "kernels.so"
    library.write_bytes(b"\x7fELF\0" + b"\0".join(re.split("@", s)[1].encode() for s in symbols) + b"\0")
    older = tmp_path / "older.so"
    older.write_bytes(b"\0GLIBC_2.5\0")
    for machine in ("x86_64", "aarch64"):
        assert make.platform_tag([library], "linux", machine) == f"{tag}_{machine}"
        assert make.platform_tag([older, library], "linux", machine) == f"{tag if tag != 'linux' else 'manylinux_2_17'}_{machine}"
    assert make.platform_tag([library], "darwin", "arm64") == "macosx_11_0_arm64"


def test_no_platform_of_the_kernels_is_plain_linux() -> None:
    made = sorted(Path(make.__file__).parent.glob("kernels_*.so"))
    assert bool(made) == (make.compiler() is not None)
    if made and sys.platform == "linux":
        assert re.fullmatch(rf"manylinux_2_\d+_{platform.machine()}", make.platform_tag(made))
    about = distribution("pellucid").read_text("WHEEL")
    assert about is None or f"linux_{platform.machine()}" not in re.findall(r"^Tag: py3-none-(.*)$", about, re.MULTILINE)
