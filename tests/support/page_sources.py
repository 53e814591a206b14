"""Where the page's sources lie, and the bundler that makes a script for node of them."""

from pathlib import Path

WEB = Path(__file__).parents[2] / "web"
BUNDLER = WEB / "node_modules" / ".bin" / "rolldown"
