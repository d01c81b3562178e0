"""Frames in files: Parquet, CSV and JSON, also those of earlier versions."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.base._collectives import COUNTED
from meshlab.base._documents import LimitError, parse_own_json
from meshlab.base._errors import BenchError, ParseError
from meshlab.base._files import read_file
from meshlab.base._typed_values import typed_fields
from meshlab.frames._schema import SAMPLES, Column, conform
from meshlab.mesh._axes import WORLD
from meshlab.plans._options import OPTIONS

if TYPE_CHECKING:
    import pandas as pd

_MOST_COLUMNS = 1_000  # of a file
_MOST_ROWS, _ROW = 100_000, 40  # rows of a file, and bytes of the file for each further row
_SAMPLE = 4  # bytes of a row of samples in Parquet, which repeats most of its values: usually 6 and more
_MOST_UNPACKED, _UNPACKED = 64 << 20, 16  # bytes of an unpacked Parquet file, and further ones per byte of the file

_FRAME = {"columns": list[str], "attrs": dict[str, Any], "rows": list[list[Any]]}


def upgrade(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame of any version with the columns of this one, as far as they follow from those of the frame."""
    return _with_traffic(_with_options(_split_axes(frame)))


def _with_traffic(frame: pd.DataFrame) -> pd.DataFrame:
    """Fill in the traffic of results that meshlab measured when all chunks were equal."""
    if "time_us" not in frame or not {"source", "collective"} <= set(frame) or "traffic" in frame:
        return frame
    is_ours = ~frame["source"].eq("nccl-tests").fillna(value=False) & frame["source"].notna()
    rows = is_ours & frame["collective"].eq(COUNTED).fillna(value=False)
    new = frame.assign(traffic=_filled(frame, rows, "string", "even"), imbalance=_filled(frame, rows, "float64", 1.0))
    new.attrs = dict(frame.attrs)
    return new


def _with_options(frame: pd.DataFrame) -> pd.DataFrame:
    """Fill in the options of results that meshlab measured when it had none. Those of functions stay missing."""
    if "time_us" not in frame or "source" not in frame or "buffers" in frame:
        return frame
    is_ours = ~frame["source"].eq("nccl-tests").fillna(value=False) & frame["source"].notna()
    if "size_bytes" in frame:
        is_ours &= frame["size_bytes"].notna()
    columns = {
        name: ("string" if isinstance(value, str) else "Int64", value)
        for name, value in OPTIONS.items()
        if value is not None
    }
    new = frame.assign(**{name: _filled(frame, is_ours, dtype, value) for name, (dtype, value) in columns.items()})
    new.attrs = dict(frame.attrs)
    return new


def _filled(frame: pd.DataFrame, rows: pd.Series[bool], dtype: str, value: Any) -> pd.Series[Any]:
    import pandas as pd

    return pd.Series(value, index=frame.index, dtype=dtype).where(rows)


def _split_axes(frame: pd.DataFrame) -> pd.DataFrame:
    """Split the axis column of frames that were written before they had a column for the grouping."""
    # Those frames have "tp", "tp alone", "tp pairs" or "tp+dp" as the axis, and "0→1" or "0↔1" as the group of a pair.
    # Every reader calls this, because `as_results` accepts a single file as well as a folder with its schema version.
    if "axis" not in frame or "grouping" in frame:
        return frame
    axis = frame["axis"].astype("string")
    parts = axis.str.extract(r"^(?P<axis>[^ +]+)(?: (?P<grouping>alone|pairs))?(?:\+(?P<other>.+))?$").astype("string")
    is_ours = axis.notna()
    if "source" in frame:
        is_ours &= ~frame["source"].eq("nccl-tests").fillna(value=False)  # that tool does not record a grouping
    new = frame.assign(
        axis=parts["axis"].fillna(axis),
        grouping=parts["grouping"].mask(parts["grouping"].isna() & is_ours, "together"),
        concurrent_axis=parts["other"],
    )
    if "collective" in frame:
        new["concurrent_collective"] = _old_partners(new)
    if "group" in frame:
        group = frame["group"].astype("string")
        ranks = group.str.extract(r"^(\d+)[→↔](\d+)$").astype("Int64")
        is_pair = new["grouping"].eq("pairs").fillna(value=False)
        new["src_rank"], new["dst_rank"] = ranks[0].where(is_pair), ranks[1].where(is_pair)
        # A frame alone does not record which group of an axis a pair was in. `load` looks it up in the mesh.
        new["group"] = group.mask(is_pair & new["axis"].ne(WORLD), None).mask(is_pair & new["axis"].eq(WORLD), WORLD)
    new.attrs = dict(frame.attrs)
    return new


def _old_partners(frame: pd.DataFrame) -> pd.Series[str]:
    """Return the collective of the concurrent axis of each row."""
    import pandas as pd

    # A step on "tp+dp" has a partner in the same step with the axis "dp+tp", whose collective is the concurrent one.
    keys = [name for name in ("run_id", "launch", "step") if name in frame]
    steps = list(zip(*(frame[name].astype(object) for name in keys), strict=True)) or [()] * len(frame)
    collectives = dict(
        zip(
            zip(steps, frame["axis"], frame["concurrent_axis"].fillna(""), strict=True),
            frame["collective"],
            strict=True,
        )
    )
    partners = [
        collectives.get((step, other, axis)) if isinstance(other, str) else None
        for step, axis, other in zip(steps, frame["axis"], frame["concurrent_axis"], strict=True)
    ]
    return pd.Series(partners, index=frame.index, dtype="string")


def frame_to_parquet(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a frame to Parquet. Dtypes and `attrs` are kept."""
    _check_pyarrow()
    frame.to_parquet(path, index=False)


def frame_from_parquet(path: str | Path, columns: Sequence[Column], content: bytes | None = None) -> pd.DataFrame:
    """Read a frame that `frame_to_parquet` wrote. `content` is that of the file, if it was read before."""
    import pandas as pd

    # Read the file here: pyarrow reports a corrupt file as an OSError too, which would look like an unreadable one.
    data = read_file(path) if content is None else content
    _check_pyarrow()
    with _complete(path, "Parquet"):
        check_parquet_size(data, path, row=_SAMPLE if columns is SAMPLES else _ROW)
        return conform(upgrade(pd.read_parquet(io.BytesIO(data))), columns)


def _check_pyarrow() -> None:
    """Raise a `BenchError` if Parquet cannot be read or written."""
    if find_spec("pyarrow") is None:
        raise BenchError("Parquet files need pyarrow, which is not installed", hint="run pip install pyarrow")


def check_parquet_size(data: bytes, path: str | Path, *, row: int = _ROW) -> None:
    """Raise if a small Parquet file would take much memory. It may have 100,000 rows, plus one per `row` bytes."""
    # Values that repeat need hardly any space in a file, so its size does not limit the memory that it takes.
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    file = parquet.ParquetFile(io.BytesIO(data))
    metadata, types = file.metadata, {field.name: field.type for field in file.schema_arrow}
    most_rows, most_bytes = _MOST_ROWS + len(data) // row, _MOST_UNPACKED + _UNPACKED * len(data)
    n_bytes = sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
    if len(types) > _MOST_COLUMNS:
        problem = f"{len(types):,} columns"
    elif any(pa.types.is_nested(kind) for kind in types.values()):
        problem = "lists or records in a column"
    elif metadata.num_rows > most_rows:
        problem = f"{metadata.num_rows:,} rows, but at most {most_rows:,} are read from {len(data):,} bytes"
    elif n_bytes > most_bytes:
        problem = f"{n_bytes:,} bytes when it is unpacked, but is only {len(data):,} bytes large"
    else:
        texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
        names = [
            name
            for name, kind in types.items()
            if any(test(kind.value_type if pa.types.is_dictionary(kind) else kind) for test in texts)
        ]
        # As dictionaries: otherwise a long string in every row would be copied for each of them.
        table = parquet.read_table(io.BytesIO(data), columns=names, read_dictionary=names)
        n_text = sum(
            pc.sum(pc.take(pc.binary_length(chunk.dictionary), chunk.indices)).as_py() or 0
            for name in names
            for chunk in table[name].chunks
        )
        if n_text <= most_bytes:
            return
        problem = f"{n_text:,} bytes of text in its rows, but is only {len(data):,} bytes large"
    raise LimitError(f"the Parquet file has {problem}", hint="pass a file that meshlab wrote", file=str(path))


@contextmanager
def _complete(path: str | Path | None, kind: str) -> Iterator[None]:
    """Turn the errors of pandas and its readers about a corrupt file into a ParseError."""
    file = None if path is None else str(path)
    try:
        yield
    except LimitError:
        raise
    except BenchError as error:
        raise ParseError(f"not a frame of meshlab: {error.message}", hint=error.hint, file=file) from error
    except Exception as error:  # pandas and Arrow raise a dozen types
        raise ParseError(f"not a complete {kind} file; copy it again, or measure again", file=file) from error


def frame_to_csv(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a frame to CSV: one header row, floats in full, missing values empty, and formulas with an apostrophe.

    A carriage return in a text becomes a line break, and NUL the sign ``␀``: readers of CSV take them for ends.
    """
    # 17 significant digits identify every float64. Other tools may then compute the same statistics from the file.
    without_formulas(frame).to_csv(path, index=False, float_format="%.17g", lineterminator="\n")


def without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a copy for a CSV file, in which strings that a spreadsheet would compute begin with an apostrophe."""
    import pandas as pd

    safe = frame.copy()
    for name in safe.columns:
        if isinstance(safe[name].dtype, pd.StringDtype) or safe[name].dtype == object:
            safe[name] = safe[name].map(_safe_cell, na_action="ignore")
    return safe


def _safe_cell(text: object) -> object:
    if not isinstance(text, str):
        return text
    if "\r" in text or "\0" in text:  # which the writer of CSV does not quote
        text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "␀")
    # Spreadsheets ignore white space before a formula.
    return f"'{text}" if text[:1] in ("'", "\t", "\n") or text.lstrip()[:1] in ("=", "+", "-", "@") else text


def frame_from_csv(path: str | Path, columns: Sequence[Column], content: bytes | None = None) -> pd.DataFrame:
    """Read a frame that `frame_to_csv` wrote. `content` is that of the file, if it was read before."""
    import pandas as pd

    data = read_file(path) if content is None else content
    _check_csv_size(data, path)
    with _complete(path, "CSV"):
        if not data.endswith(b"\n"):  # a truncated row would be read as missing values
            raise ValueError
        # As strings, and only empty cells are missing: a group may be called "NA", and the schema has the dtypes.
        how: dict[str, Any] = {"dtype": "string", "keep_default_na": False, "na_values": [""]}
        conform(upgrade(pd.read_csv(io.BytesIO(data), nrows=0, **how)), columns)  # before the rows of another table
        frame = pd.read_csv(io.BytesIO(data), **how)
        for name in frame.columns:
            frame[name] = frame[name].str.removeprefix("'")
        return conform(upgrade(frame), columns)


def _check_csv_size(data: bytes, path: str | Path) -> None:
    """Raise if a CSV file has more columns than any frame, or more rows than its size allows."""
    most_rows = _MOST_ROWS + len(data) // _ROW
    n_rows = data.count(b"\n")
    if n_rows > most_rows:
        problem = f"the CSV has {n_rows:,} lines in {len(data):,} bytes, but at most {most_rows:,} are read"
    elif data.count(b",", 0, data.find(b"\n")) > _MOST_COLUMNS:
        problem = f"the CSV has more than {_MOST_COLUMNS:,} columns"
    else:
        return
    raise LimitError(problem, hint="pass a file that meshlab wrote", file=str(path))


def frame_to_json(frame: pd.DataFrame) -> str:
    """Write a frame as JSON: its columns, its `attrs`, and one list per row. Missing values are null."""
    # Column by column, because a frame of objects takes three times as long.
    columns = [frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame.columns]
    rows = list(zip(*columns, strict=True))
    return json.dumps(
        {"columns": [str(name) for name in frame.columns], "attrs": frame.attrs, "rows": rows}, allow_nan=False
    )


def frame_from_json(text: str, columns: Sequence[Column], *, file: str | None = None) -> pd.DataFrame:
    """Read a frame that `frame_to_json` wrote. The dtypes come from the definition."""
    import pandas as pd

    document = typed_fields(parse_own_json(text, file=file), _FRAME, "", file=file)
    names: list[str] = document["columns"]
    if len(set(names)) != len(names) or any(len(row) != len(names) for row in document["rows"]):
        raise ParseError("the rows do not have one value for each column", hint="copy the file again", file=file)
    with _complete(file, "JSON"):
        frame = conform(upgrade(pd.DataFrame(document["rows"], columns=names, dtype=object)), columns)
    frame.attrs = document["attrs"]
    return frame
