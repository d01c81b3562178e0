"""The files of a report: whether each one that exists is complete, whenever its writer was killed."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Collection
from pathlib import Path
from xml.etree import ElementTree

from tests.chaos.client import REPORTS

__all__ = ["broken_reports"]


def broken_reports(folder: Path, lengths: Collection[int], *, is_complete: bool = False) -> list[str]:
    """Return what is wrong with the reports in a folder, whose results have one of some lengths."""
    problems = []
    for name in REPORTS:
        path = folder / name
        if not path.exists():
            problems += [f"{name} does not exist"] if is_complete else []
            continue
        try:
            length = _READERS[path.suffix](path)
        except Exception as error:
            problems.append(f"{name} cannot be read: {type(error).__name__}: {error}")
            continue
        if length is not None and length not in lengths:
            problems.append(f"{name} has {length} results, but one of {lengths} was written")
    return problems


def _read_page(path: Path) -> None:
    if not path.read_text().rstrip().endswith("</html>"):
        raise ValueError("the page is cut off")


def _read_markdown(path: Path) -> None:
    from PIL import Image

    for name in re.findall(r"!\[[^]]*\]\(<?([^)>]+\.png)>?\)", path.read_text()):
        Image.open(io.BytesIO((path.parent / name).read_bytes())).load()


def _read_csv(path: Path) -> int:
    import pandas as pd

    return len(pd.read_csv(io.StringIO(path.read_text()), comment="#"))


def _read_parquet(path: Path) -> int:
    import pandas as pd

    return len(pd.read_parquet(path))


def _read_junit(path: Path) -> None:
    ElementTree.parse(path)


def _read_json(path: Path) -> None:
    json.loads(path.read_text())


_READERS: dict[str, Callable[[Path], int | None]] = {
    ".html": _read_page,
    ".md": _read_markdown,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".xml": _read_junit,
    ".json": _read_json,
}
