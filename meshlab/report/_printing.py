"""Print an HTML page to PDF with a browser that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from meshlab.base._errors import BenchError

_BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge", "msedge"),
)
_MAC = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
_TIMEOUT_S = 120.0


def find_browser() -> str | None:
    """Return the path of a browser that can print, or None. MESHLAB_BROWSER overrides the search."""
    if chosen := os.environ.get("MESHLAB_BROWSER"):
        return chosen
    path = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    return path or next((path for path in _MAC if Path(path).exists()), None)


def page_to_pdf(html: str) -> bytes:
    """Print a page, without its address and the date in the margins."""
    if (browser := find_browser()) is None:
        raise BenchError(
            "a PDF needs Chromium, Chrome or Edge, and none of them was found",
            hint="install one, set MESHLAB_BROWSER to its path, or save the report as .html and print it",
        )
    with tempfile.TemporaryDirectory(prefix="meshlab-print-") as folder:
        source, target = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_text(html, encoding="utf-8")
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--no-first-run",
            "--no-pdf-header-footer",
            f"--user-data-dir={folder}/profile",
            f"--print-to-pdf={target}",
        ]
        # The sandbox of Chromium refuses to run as root. The page is our own, and its policy forbids every request.
        command += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        try:
            done = subprocess.run(
                [*command, source.as_uri()], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
            printed = target.read_bytes() if target.exists() else b""
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BenchError(
                f"{browser} could not print the report: {error}", hint="save it as .html and print it"
            ) from error
    if not printed.startswith(b"%PDF"):
        last = (done.stderr.strip().splitlines() or ["it wrote nothing"])[-1]
        raise BenchError(f"{browser} could not print the report: {last}", hint="save it as .html and print it")
    return printed
