"""The page's own files, read once from the package. No other path is served, so none from outside reaches the disk."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from pellucid.errors import RequestError

WEB = Path(__file__).parents[1] / "web"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
HASHED = re.compile(r"/assets/[\w.-]+-[\w-]{8,}\.\w+")  # as vite names what it built: a change of content is a change of name


@dataclass(frozen=True)
class File:
    """A file of the page, ready to be sent."""

    path: str
    content: bytes
    type: str

    @property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    @property
    def keeping(self) -> str:
        """Return the cache-control header: a hashed file never changes."""
        return "public, max-age=31536000, immutable" if HASHED.fullmatch(self.path) else "no-cache"


def files(folder: Path = WEB) -> dict[str, File]:
    """Read the files of a built page, by the paths of their addresses; "/" is index.html."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink() and p.suffix in TYPES) if folder.is_dir() else []
    table = {f"/{p.relative_to(folder).as_posix()}": p for p in paths}
    read = {path: File(path, p.read_bytes(), TYPES[p.suffix]) for path, p in table.items()}
    return read | ({"/": read["/index.html"]} if "/index.html" in read else {})


def sent(file: File | None, request: Request) -> Response:
    """Return the response with a file, or 304 if the browser has it. A RequestError if `file` is None."""
    if file is None:
        raise RequestError("server.missing", 404, path=request.scope["path"])
    headers = {"etag": file.tag, "cache-control": file.keeping}
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(None, 304, headers)
    return Response(file.content, 200, headers, file.type)
