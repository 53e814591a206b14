"""The build hook of the wheel: compiles the native kernels where there is a compiler, and leaves them out where there is none.

An editable install compiles them next to their sources; a wheel's are kept in build/, so that a second install of the same sources
compiles nothing. They bind to no version of Python, only to the platform.
"""

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("src", "pellucid", "ops", "native")


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled kernels to a wheel, and names its platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        native = Path(self.root) / NATIVE
        spec = importlib.util.spec_from_file_location("make", native / "make.py")
        assert spec is not None and spec.loader is not None
        make = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(make)
        if version == "editable":
            make.build(native)
            return
        made = make.kept()
        for path in made:
            build_data["force_include"][str(path)] = str(Path("pellucid", "ops", "native", path.name))
        if made:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{make.platform_tag(made)}"
