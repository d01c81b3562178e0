"""Runs and frames on disk: current folders, and folders that were written before the grouping had a column."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, ParseError
from meshlab.frames._files import frame_from_csv, upgrade
from meshlab.frames._schema import RESULTS, SAMPLES, is_plain
from meshlab.runs._rundata import RunData
from meshlab.runs._store import as_frames, as_results, from_document, load, relabel, remove, to_document

OLD = Path(__file__).parent / "data" / "schema_2"  # send_recv along tp: together, alone, pairs, and next to dp
QUICK = ml.Sampling(max_s=0.02, min_batches=6)


@pytest.fixture
def measured(thread_engines: ml.Engines) -> ml.Run:
    """A run with all three groupings and a concurrent axis."""
    plan = ml.Plan(
        "send_recv",
        "tp",
        sizes="1K",
        mode="isolated",
        grouping=["together", "alone", "pairs"],
        concurrent={"dp": "reduce_scatter"},
        sampling=QUICK,
    )
    run = ml.bench(thread_engines, ml.DeviceMesh("dp=2, tp=2"), plan)
    run.wait(60)
    return run


def places(results: pd.DataFrame) -> list[tuple[object, ...]]:
    columns = ["step", "axis", "group", "grouping", "concurrent_axis", "concurrent_collective", "src_rank", "dst_rank"]
    found = results[columns].astype(object)
    return list(found.where(found.notna(), None).itertuples(index=False, name=None))


def test_an_old_run_has_the_columns_of_a_new_one(measured: ml.Run) -> None:
    old = ml.Run.load(OLD)
    assert places(old.results) == places(measured.results)
    assert old.plan == ml.Plan(**{**vars(measured.plan), "sampling": old.plan.sampling})
    assert old.steps == measured.steps
    keys = ["step", "axis", "grouping", "concurrent_axis", "group", "src_rank", "dst_rank", "rank"]
    samples = [run.samples[keys].drop_duplicates().sort_values(keys, ignore_index=True) for run in (old, measured)]
    pd.testing.assert_frame_equal(*samples)


def test_an_old_run_has_the_same_log_and_analyses_as_before() -> None:
    old = ml.Run.load(OLD)
    before = (OLD / "nccl_tests.txt").read_text(encoding="utf-8")
    rows = [line for line in old.to_nccl_tests().splitlines() if line[:1] == " "]
    assert rows == [line for line in before.splitlines() if line[:1] == " "]
    contention, interference, pairs = old.contention(), old.interference(), old.pairs()
    results = old.results
    together, alone = (
        rows.set_index("group")["time_us"].to_dict()
        for rows in (results[is_plain(results)], results[results["grouping"] == "alone"])
    )
    for row in contention.itertuples():
        assert row.ratio == together[row.group] / alone[row.group]
    assert interference["concurrent_axis"].tolist() == ["dp", "dp", "tp", "tp"]
    assert interference["concurrent_collective"].tolist() == ["reduce_scatter"] * 2 + ["send_recv"] * 2
    assert sorted(zip(pairs["src_rank"], pairs["dst_rank"], strict=True)) == [(0, 1), (2, 3)]
    assert len(old.stragglers()) == 24  # 12 rows of two ranks
    assert len(old.spikes()) == 12


def test_an_old_run_compares_with_a_new_one_row_by_row(measured: ml.Run) -> None:
    frame = ml.compare(OLD, measured, anyway=True).frame()
    assert len(frame) == len(measured.results) == 12
    old, new = ml.Run.load(OLD).results["time_us"], measured.results["time_us"]
    assert sorted(frame["after_us"]) == pytest.approx(sorted(new), rel=0.5)  # of batches, so not the same median
    assert sorted(frame["before_us"]) == pytest.approx(sorted(old), rel=0.5)


def test_a_run_survives_a_round_trip_to_disk(measured: ml.Run, tmp_path: Path) -> None:
    back = ml.Run.load(measured.save(tmp_path / "run"))
    assert type(back) is RunData
    pd.testing.assert_frame_equal(back.results, measured.results)
    pd.testing.assert_frame_equal(back.samples, measured.samples)
    assert back.results.attrs == measured.results.attrs
    for name in ("plan", "mesh", "steps", "run_id", "state", "source", "where", "hosts", "environment", "log"):
        assert getattr(back, name) == getattr(measured, name)
    assert back.progress == measured.progress
    assert str(back.table()) == str(measured.table())
    again = RunData.load(back.save(tmp_path / "again"))
    pd.testing.assert_frame_equal(again.results, measured.results)


@pytest.mark.parametrize("text", ["a\rb", "a\r\nb", "a\0b", "\ra", 'a "quoted",\r text', "a\u2028b\x0b\x0c\x85c"])
def test_the_csv_files_alone_are_a_run_with_any_text(measured: ml.Run, text: str, tmp_path: Path) -> None:
    run = load(measured.save(tmp_path / "first"))
    results = run.results.assign(stop_reason=pd.array([text] * len(run.results), dtype="string"))
    folder = from_document(to_document(run), run.plan, run.mesh, results, run.samples).save(tmp_path / "run")
    (folder / "results.parquet").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="its rows were read from results.csv"):
        copy = ml.Run.load(folder)
    assert len(copy.results) == len(results)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "␀")
    assert set(copy.results["stop_reason"]) == {lines}
    assert copy.results["time_us"].tolist() == results["time_us"].tolist()


def test_a_loaded_run_has_its_results_at_once_and_a_figure() -> None:
    old = ml.Run.load(OLD)
    pd.testing.assert_frame_equal(old.wait(progress=False), old.results)
    png = old._repr_png_()
    assert png is not None
    assert png.startswith(b"\x89PNG")


def test_run_data_can_be_pickled_and_a_live_run_raises_with_a_fix(measured: ml.Run) -> None:
    data = ml.Run.load(OLD)
    back = pickle.loads(pickle.dumps(data))
    pd.testing.assert_frame_equal(back.results, data.results)
    back.note("still works")
    with pytest.raises(BenchError, match=r"cannot pickle a live run; save it with run\.save"):
        pickle.dumps(measured)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json", "html"])
def test_an_old_frame_is_split_in_any_file_format(suffix: str, tmp_path: Path) -> None:
    old = pd.read_csv(OLD / "results.csv")
    path = tmp_path / f"results.{suffix}"
    if suffix == "parquet":
        old.to_parquet(path)
    elif suffix == "csv":
        path.write_bytes((OLD / "results.csv").read_bytes())
    else:
        rows = old.astype(object).where(old.notna(), None).to_numpy().tolist()
        text = json.dumps({"columns": list(old.columns), "attrs": {}, "rows": rows})
        if suffix == "html":
            packed = base64.b64encode(gzip.compress(text.encode())).decode()
            text = f'<script type="application/gzip" id="meshlab-results">{packed}</script>'
        path.write_text(text, encoding="utf-8")
    results = ml.Report.read(path).results if suffix == "html" else as_results(path)
    expected = places(ml.Run.load(OLD).results)
    # A frame alone does not record the mesh, so the group of a pair stays unknown.
    assert places(results) == [(*row[:2], None if row[3] == "pairs" else row[2], *row[3:]) for row in expected]


def test_only_rows_of_meshlab_get_a_grouping() -> None:
    log = pd.DataFrame({"axis": ["dp", None], "source": ["nccl-tests", "mpi"], "group": ["dp_0", None]})
    assert upgrade(log)["grouping"].isna().all()
    new = frame_from_csv(OLD / "results.csv", RESULTS)
    assert upgrade(new) is new


def test_all_supported_sources_become_results(tmp_path: Path) -> None:
    run = ml.Run.load(OLD)
    paths = [OLD, run.save(tmp_path / "run"), str(tmp_path / "run" / "results.parquet")]
    for source in (run, run.results, (run.results, run.samples), *paths):
        assert len(as_results(source)) == 12
    both = as_frames([run, OLD])
    assert (len(both.results), both.results["run_id"].nunique()) == (24, 2)
    assert (len(both.samples), both.samples["run_id"].nunique()) == (2 * len(run.samples), 2)
    assert len(as_frames(run.samples, run.results).samples) == len(run.samples)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "int has no results; pass a run or its folder"),
        ([], "an empty list has no results"),
        (pd.DataFrame({"batch": [0]}), "this is a samples frame, but results are needed; pass run"),
        (pd.DataFrame({"speed": [0]}), "this one has no column collective, size_bytes, time_us"),
        ("nowhere/at/all", "cannot read nowhere/at/all: No such file or directory; pass the folder of a run"),
        (__file__, r"is neither the folder of a run nor results as Parquet, CSV or JSON; .* ml\.nccl_tests\.read"),
    ],
)
def test_other_sources_are_rejected_with_a_fix(source: object, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        as_results(source)


def test_a_frame_may_have_additional_and_missing_columns() -> None:
    frame = pd.DataFrame(
        {"collective": ["all_reduce"], "size_bytes": [8000], "n_ranks": [2], "time_us": [4.0], "x": [1]}
    )
    results = as_results(frame)
    assert list(results) == [column.name for column in RESULTS]
    assert results["busbw_gbs"].tolist() == [2.0]


def test_a_newer_schema_is_rejected(tmp_path: Path) -> None:
    folder = shutil.copytree(OLD, tmp_path / "run")
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**document, "schema": 8}))
    with pytest.raises(ParseError, match="the run has schema 8, but this version of meshlab reads 2 to 7"):
        load(folder)


def test_a_run_of_schema_3_is_read_without_the_columns_of_schema_4(tmp_path: Path) -> None:
    new = {"n_modes", "trend", "process_set", "block"}
    run = load(OLD)
    folder = run.save(tmp_path / "run")
    document = json.loads((folder / "run.json").read_text())
    del document["files"], document["journal"]
    (folder / "run.json").write_text(json.dumps({**document, "schema": 3}))
    for name in ("results", "samples"):
        frame = pd.read_parquet(folder / f"{name}.parquet")
        frame[[column for column in frame if column not in new]].to_parquet(folder / f"{name}.parquet", index=False)
    again = load(folder)
    assert list(again.results) == [column.name for column in RESULTS]
    assert list(again.samples) == [column.name for column in SAMPLES]
    assert again.results[["n_modes", "trend", "process_set"]].isna().all().all()
    assert again.samples["block"].isna().all()
    pd.testing.assert_frame_equal(again.results, run.results)


def test_samples_are_read_with_their_new_columns() -> None:
    samples = frame_from_csv(OLD / "samples.csv", SAMPLES)
    assert set(samples["grouping"]) == {"together", "alone", "pairs"}
    assert samples.loc[samples["src_rank"].notna(), "grouping"].eq("pairs").all()


def test_results_without_options_had_plain_buffers_if_they_are_of_meshlab() -> None:
    old = frame_from_csv(OLD / "results.csv", RESULTS)
    assert old[["buffers", "alignment_bytes", "n_aggregated"]].drop_duplicates().values.tolist() == [["plain", 0, 1]]
    assert old[["algorithm", "protocol", "min_ctas", "max_ctas", "cta_policy"]].isna().all().all()
    assert ml.example()["buffers"].eq("plain").all()
    frame = pd.DataFrame({"source": ["mpi", "nccl-tests", None, "mpi"], "size_bytes": [8, 8, 8, None], "time_us": 1.0})
    assert as_results(frame.assign(collective="all_reduce"))["buffers"].isna().tolist() == [False, True, True, True]


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir, _huge])
@pytest.mark.parametrize("name", ["run.json", "results.parquet", "results.csv", "samples.parquet"])
def test_what_is_no_file_in_place_of_a_file_of_a_run_is_not_read(
    name: str, plant: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = ml.Run.load(OLD).save(tmp_path / "run")
    for file in [name] if name != "results.csv" else [name, "results.parquet"]:
        (folder / file).unlink()
        plant(folder / file)
    with contextlib.suppress(ParseError):
        assert len(ml.Run.load(folder).results) == 12
        assert name in ("samples.parquet", "results.parquet")  # which have a copy as CSV
    assert len(ml.frames.list_runs(tmp_path)) <= 1


def _repeated(n: int, value: object) -> Any:
    """A column of one value, which takes hardly any space in Parquet."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, "int32")), pa.array([value]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: {"time_us": _repeated(3_000_000, 1.0)}, "3,000,000 rows, but at most 1"),
        (lambda: {"collective": _repeated(90_000, "x" * 10_000)}, "900,000,000 bytes of text in its rows"),
        (lambda: {"group": ["x" * 80_000_000]}, "bytes when it is unpacked, but is only"),
        (lambda: {"time_us": [[1.0] * 9]}, "lists or records in a column"),
        (lambda: {f"c{number}": [1] for number in range(1001)}, "1,001 columns"),
    ],
    ids=["rows", "strings", "compressed", "lists", "columns"],
)
def test_a_small_parquet_file_does_not_take_much_memory(
    make: Callable[[], dict[str, Any]], message: str, tmp_path: Path
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "frame.parquet"
    parquet.write_table(pa.table(make()), path, compression="zstd")
    with pytest.raises(ParseError, match=message):
        as_results(path)


def test_a_name_and_notes_are_kept_renamed_reported_and_redacted(thread_engines: Any, tmp_path: Path) -> None:
    run = ml.bench(thread_engines, "dp=2, tp=2", axis="tp", sizes="1K", sampling=QUICK, out=tmp_path / "run")
    run.wait(60)
    run.name, run.notes = " before  the update\n", "node17.cluster.example excluded \n\nsee the log"
    assert (run.name, run.notes) == ("before the update", "node17.cluster.example excluded\n\nsee the log")
    run.hosts = ("node17.cluster.example",)
    saved = ml.Run.load(tmp_path / "run")  # also after the run has ended
    assert (saved.name, saved.notes) == (run.name, run.notes)
    assert ml.frames.list_runs(tmp_path)[["name", "notes"]].values.tolist() == [[run.name, run.notes]]
    assert "'before the update'" in repr(saved)
    assert ml.Report(saved).title == "before the update: collectives on dp=2, tp=2"
    assert "node17" not in run.redacted().notes
    assert "excluded" in run.redacted().notes
    saved.name = ""
    assert ml.Run.load(saved.save(tmp_path / "copy")).name == ""
    with pytest.raises(BenchError, match="name must be a text, not int"):
        run.name = 4  # type: ignore[assignment]


def test_a_run_is_relabelled_and_removed_in_its_folder(thread_engines: Any, tmp_path: Path) -> None:
    run = ml.bench(thread_engines, "dp=2, tp=2", axis="tp", sizes="1K", sampling=QUICK)
    run.wait(60)
    folder = run.save(tmp_path / "run")
    (folder / "mine.txt").write_text("stays")
    relabel(folder, run.run_id, name="first", notes="")
    assert ml.Run.load(folder).name == "first"
    for act in (lambda: relabel(folder, "other", name="", notes=""), lambda: remove(folder, "other")):
        with pytest.raises(BenchError, match="no longer holds the run other"):
            act()
    remove(folder, run.run_id)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    other = run.save(tmp_path / "second")
    remove(other, run.run_id)
    assert not other.exists()


@pytest.fixture(scope="module")
def many_samples() -> RunData:
    """A run whose samples are too many for a CSV file that nobody has asked for."""
    run = ml.Run.load(OLD)
    document, samples = to_document(run), run.samples
    document["calibration"] = None
    repeated = pd.concat([samples] * (50_000 // len(samples) + 1), ignore_index=True).iloc[:50_000]
    return from_document(document, run.plan, run.mesh, run.results, repeated)


def test_many_samples_are_only_in_parquet_unless_csv_is_requested(many_samples: RunData, tmp_path: Path) -> None:
    folder = many_samples.save(tmp_path / "run")
    others = {"run.json", "results.parquet", "results.csv", "samples.parquet"}
    assert {file.name for file in folder.iterdir()} == others
    pd.testing.assert_frame_equal(load(folder).samples, many_samples.samples)
    many_samples.save(folder, csv=True)
    assert {file.name for file in folder.iterdir()} == {*others, "samples.csv"}
    (folder / "samples.parquet").unlink()
    pd.testing.assert_frame_equal(load(folder).samples, many_samples.samples)
    many_samples.save(folder)
    assert {file.name for file in folder.iterdir()} == others


def test_many_samples_without_their_file_raise_a_readable_error(many_samples: RunData, tmp_path: Path) -> None:
    folder = many_samples.save(tmp_path / "run")
    (folder / "samples.parquet").unlink()
    message = r"samples.parquet: the file is missing, and the run was saved without samples.csv; copy the folder again"
    with pytest.raises(ParseError, match=message):
        load(folder)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_wrong_result_is_not_the_best_one_of_a_list(tmp_path: Path, suffix: str) -> None:
    run = load(OLD)
    results = run.results.assign(busbw_gbs=1.0, n_wrong=0, status="ok")
    results.loc[results.index[0], ["busbw_gbs", "n_wrong", "status"]] = [9.0, 5, "wrong"]
    edited = RunData(run.plan, run.mesh, run_id="a", source="mpi", where="", state="done", results=results)
    edited.save(tmp_path / "run")
    for path in (tmp_path / "run").glob("results.*"):
        if path.suffix != f".{suffix}":
            path.unlink()
    assert ml.frames.list_runs(tmp_path)["best_gbs"].tolist() == [1.0]
