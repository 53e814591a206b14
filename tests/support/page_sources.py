"""Where the page's sources lie, and the bundler that makes a script for node of them."""

import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "web"
BUNDLER = WEB / "node_modules" / ".bin" / "rolldown"


def script_of(source: str, folder: Path) -> Path:
    """Return a script for node of a source of the page. The test is skipped where node or the bundler is missing."""
    if shutil.which("node") is None or not BUNDLER.exists():
        pytest.skip("node, or the page's modules (cd web && npm ci), are not installed")
    script = folder / "driver.mjs"
    bundle = [str(BUNDLER), source, "--format", "esm", "--platform", "node", "--file", str(script)]
    subprocess.run(bundle, cwd=WEB, check=True, capture_output=True)
    return script
