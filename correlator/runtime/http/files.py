"""The files of the status page (docs/status-page.md). They are read once: no request names a file of the disk."""

from collections.abc import Mapping
from pathlib import Path

from correlator.serving import Response

DIRECTORY = Path(__file__).parent / "page"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"content-security-policy": _POLICY, "referrer-policy": "no-referrer"}


def page_files() -> Mapping[str, Response]:
    """The answer for each file by its path: `/` and `/page/NAME`."""
    found = [path for path in sorted(DIRECTORY.rglob("*")) if path.suffix in _KINDS]
    files = {f"/page/{path.relative_to(DIRECTORY).as_posix()}": _read(path) for path in found}
    return {"/": files.pop("/page/index.html"), **files}


def _read(path: Path) -> Response:
    return Response(200, path.read_bytes(), _KINDS[path.suffix], _HEADERS)
