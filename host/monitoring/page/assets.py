"""The page's files: our own beside this module, and the plotting library's from its installed package."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
INDEX, PLOTLY = "index.html", "plotly.min.js"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Smaller bodies are not worth it.
_LEAST_BYTES = 1024


@dataclass(frozen=True)
class Body:
    """What is sent: its bytes, its type, and the tag by which a browser knows that it has them already."""

    data: bytes
    content_type: str
    tag: str = ""

    @cached_property
    def gzipped(self) -> bytes:
        """The bytes, compressed, if that makes them fewer."""
        packed = gzip.compress(self.data, 6, mtime=0) if len(self.data) >= _LEAST_BYTES else self.data
        return packed if len(packed) < len(self.data) else self.data


@cache
def load_asset(path: Path) -> Body:
    """Return a file; it is read once."""
    data = path.read_bytes()
    return Body(data, _TYPES[path.suffix], hashlib.sha256(data).hexdigest()[:16])


def list_files() -> dict[str, Path]:
    """Return name -> path of all that may be served: no other file can be asked for, whatever the address."""
    files = {path.name: path for path in FOLDER.iterdir() if path.suffix in _TYPES}
    plotly = find_plotly()
    return files | ({PLOTLY: plotly} if plotly is not None else {})


def find_plotly() -> Path | None:
    """Return the plotting library's script; None without the package, which is found but not imported: that is slow."""
    found = importlib.util.find_spec("plotly")
    folders = (found.submodule_search_locations if found is not None else None) or ()
    scripts = (Path(folder) / "package_data" / PLOTLY for folder in folders)
    return next((path for path in scripts if path.is_file()), None)
