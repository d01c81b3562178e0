"""The public entry points, each as a function of one input."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base import _units as units
from meshlab.base._folders import digest_of
from meshlab.cli._main import main
from meshlab.comm._catalog import find_collective
from meshlab.comm._elements import find_dtype, find_op
from meshlab.mesh.interop._frameworks import FRAMEWORKS, READERS, mesh_text_kind
from meshlab.runs._store import as_results
from meshlab.topology.readers._hostlists import expand_hosts
from tests.fuzz import mutations, seeds, strategies

__all__ = ["ENTRIES", "Entry"]

Source = str | bytes


@dataclass(frozen=True)
class Entry:
    """An entry point.

    Parameters
    ----------
    name : str
        Its name on the command line.
    call : callable
        Takes an input and an empty folder.
    make : callable
        Returns an input, by mutation. Takes a random generator and a folder that is kept for all inputs.
    strategy : SearchStrategy, optional
        Other inputs, with the structure of good ones.
    may_fail : tuple of type
        The exceptions that the documentation of the entry point lists besides those of meshlab.
    """

    name: str
    call: Callable[[Any, Path], object]
    make: Callable[[random.Random, Path], Any] | None = None
    strategy: st.SearchStrategy[Any] | None = None
    may_fail: tuple[type[BaseException], ...] = ()


# -- inputs ------------------------------------------------------------------------------------------------------------


def _number(value: object) -> int:
    """Return a number that is the same in every process, unlike a hash, so that a failure can be repeated."""
    return zlib.crc32(repr(value).encode(errors="surrogatepass"))


def _text(rng: random.Random, good: tuple[str, ...]) -> Source:
    """Return a mutated text, mostly of the format that the entry point reads."""

    def seed() -> str:
        data = rng.choice(good) if good and rng.random() < 0.7 else rng.choice(seeds.texts()).decode(errors="replace")
        if len(data) > 8_000 and rng.random() < 0.8:  # a part is faster to read, and as good
            start = rng.choice((0, rng.randrange(len(data))))
            data = data[start : start + 8_000]
        return data

    text = mutations.mutate_text(rng, seed(), seed)
    if rng.random() < 0.15:
        return mutations.mutate_bytes(rng, text.encode(errors="surrogatepass"))
    return text


def _only_text(*good: str) -> Callable[[random.Random, Path], str]:
    def make(rng: random.Random, kept: Path) -> str:
        text = _text(rng, good)
        return text if isinstance(text, str) else text.decode(errors="replace")

    return make


def _source(*good: str) -> Callable[[random.Random, Path], Source]:
    return lambda rng, kept: _text(rng, good)


def _passed(source: Source, folder: Path, suffix: str = ".txt") -> Any:
    """Return the input as one of the forms of text that readers accept: itself, a file, or the name of a file."""
    number = _number(source) % 4
    if number > 1 and (isinstance(source, str) or number == 2):
        return source
    path = folder / f"input{suffix}"
    path.write_bytes(source if isinstance(source, bytes) else source.encode(errors="surrogatepass"))
    return path if number else str(path)


FILES = ("run.json", "results.csv", "samples.csv", "results.parquet", "samples.parquet")


def _file_of_run(rng: random.Random, kept: Path) -> tuple[str, bytes]:
    """Return the name of a file of a run, and its content after a mutation."""
    name = rng.choice((*FILES[:1] * 6, *FILES))
    return name, _mutated(rng, (seeds.saved_run(kept) / name).read_bytes())


def _sealed_file(rng: random.Random, kept: Path) -> tuple[str, bytes]:
    """Return the name of a file of a run, and a content that its writer could have recorded."""
    kind = rng.choice(("run", "results", "results", "samples", "steps"))
    if kind == "run":
        text = mutations.mutate_json(rng, (seeds.saved_run(kept) / "run.json").read_text())
        return "run.json", text.encode(errors="surrogatepass")
    if kind == "steps":
        texts = [mutations.mutate_json(rng, text) if rng.random() < 0.4 else text for text in seeds.records(kept)]
        lines = [text.encode(errors="surrogatepass") for text in texts]
        return "steps-0.jsonl", b"".join(b"%08x %s\n" % (zlib.crc32(line), line) for line in lines)
    frame = mutations.mutate_frame(rng, pd.read_parquet(seeds.saved_run(kept) / f"{kind}.parquet"))
    with contextlib.suppress(pa.ArrowException, ValueError, TypeError, OverflowError):  # a column of several types
        return f"{kind}.parquet", frame.to_parquet(index=False)
    return f"{kind}.csv", frame.to_csv(index=False).encode(errors="surrogatepass")


def _mutated(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.15 or data[:4] == b"PAR1":
        return mutations.mutate_bytes(rng, data)
    text = data.decode()
    if text[:1] == "{" and rng.random() < 0.8:
        return mutations.mutate_json(rng, text).encode(errors="surrogatepass")
    return mutations.mutate_text(rng, text, lambda: text).encode(errors="surrogatepass")


def _own_file(name: str) -> Callable[[random.Random, Path], bytes]:
    def make(rng: random.Random, kept: Path) -> bytes:
        seeds.saved_run(kept)
        return _mutated(rng, (kept / name).read_bytes())

    return make


def _csv_or_parquet(rng: random.Random, kept: Path) -> tuple[str, bytes]:
    run = seeds.saved_run(kept)
    name = rng.choice(("results.csv", "results.parquet", "frame.json"))
    return name, _mutated(rng, (kept / name if name == "frame.json" else run / name).read_bytes())


# -- calls -------------------------------------------------------------------------------------------------------------


def _shown(value: Any) -> None:
    """Show a value in the ways that a notebook and a terminal do."""
    for text in (repr(value), str(value), getattr(value, "_repr_html_", str)()):
        if text is not None:
            text.encode()


def _read(source: Source, folder: Path) -> None:
    reading = ml.read(_passed(source, folder))
    _shown(reading)


def _explain(source: Source, folder: Path) -> None:
    explanation = ml.explain(_passed(source, folder))
    for text in (str(explanation), explanation.to_markdown(), explanation.to_json(), explanation._repr_html_()):
        text.encode()
    _ = (
        explanation.mesh,
        explanation.cluster,
        explanation.frame(),
        [explanation.table(name) for name in explanation.tables],
    )


def _explain_several(pair: tuple[Source, Source], folder: Path) -> None:
    ml.explain([_passed(pair[0], folder), pair[1]])


def _two_sources(*good: str) -> Callable[[random.Random, Path], tuple[Source, Source]]:
    return lambda rng, kept: (_text(rng, good), _text(rng, good))


def _mesh(text: str, folder: Path) -> None:
    mesh = ml.DeviceMesh(text)
    if mesh.world_size > 4096:
        _shown(mesh)
        return
    _shown(mesh)
    mesh.explain().encode()
    for framework in FRAMEWORKS:
        with contextlib.suppress(ml.MeshlabError):
            recipe = mesh.to(framework)
            assert ml.DeviceMesh.read(recipe).world_size == mesh.world_size
            with contextlib.suppress(ml.MeshlabError):
                ml.DeviceMesh.read(recipe.text, world_size=mesh.world_size)


def _mesh_read(text: str, folder: Path) -> None:
    _ = mesh_text_kind(text)
    number = _number(text)
    world = (None, 8, 64, 2**70)[number % 4]
    framework = READERS[number % len(READERS)] if number % 3 == 0 else None
    _shown(ml.DeviceMesh.read(text, framework=framework, world_size=world, experts=(None, True, False)[number % 3]))


def _mesh_numbers(values: tuple[Any, Any, Any, str], folder: Path) -> None:
    a, b, c, name = values
    for make in (
        lambda: ml.DeviceMesh.data_parallel(a),
        lambda: ml.DeviceMesh.tensor_parallel(a, b),
        lambda: ml.DeviceMesh.pipeline_parallel(a, b),
        lambda: ml.DeviceMesh.mixed(a, b, c),
        lambda: ml.DeviceMesh((a, b), ("dp", name)),
        lambda: ml.DeviceMesh({"dp": a, name: b}, world_size=c),
        lambda: ml.DeviceMesh("dp=2, tp=2", ranks=[a, b, c, 0], world_size=4),
    ):
        with contextlib.suppress(ml.MeshlabError):
            _shown(make())
    mesh = ml.DeviceMesh("dp=2, tp=4")
    for ask in (
        lambda: mesh.coordinates(a),
        lambda: mesh.rank_at(dp=a, tp=b),
        lambda: mesh[name],
        lambda: mesh.group(name),
        lambda: mesh["tp"].of(a),
        lambda: mesh["tp"][a] if isinstance(a, int) and -2 <= a < 2 else None,
        lambda: mesh.with_group(name, [0, 1]),
        lambda: mesh.with_group("g", [a, b]),
        lambda: mesh.view(name),
        lambda: mesh.diff(name),
    ):
        with contextlib.suppress(ml.MeshlabError, KeyError):
            ask()


def _hardware(source: Source, folder: Path) -> None:
    number = _number(source)
    found = ml.topology.read(_passed(source, folder), machine=(None, None, 0, 1)[number % 4])
    _shown(found)
    if isinstance(found, ml.Cluster):
        _shown(found.health())
        if found.n_nodes < 100 and number % 3 == 0:
            ml.topology.text(found).encode()
            with contextlib.suppress(ml.MeshlabError):
                _shown(ml.place("dp=-1", found))


def _hardware_readers(text: str, folder: Path) -> None:
    for read in (
        ml.topology.read_nccl_graph,
        ml.topology.read_nccl_info,
        ml.topology.read_nccl_topology,
        ml.topology.read_nvidia_smi,
        ml.topology.read_amd_smi,
        ml.topology.read_slurm_topology,
    ):
        with contextlib.suppress(ml.MeshlabError):
            _shown(read(text))


def _tests_log(source: Source, folder: Path) -> None:
    log = ml.nccl_tests.read(_passed(source, folder, ".json"))
    _shown(log)
    results = log.results
    if len(results) and _number(source) % 5 == 0:
        ml.nccl_tests.write(results).encode()


def _run(named: tuple[str, bytes], folder: Path) -> None:
    name, data = named
    shutil.copytree(seeds.saved_run(folder.parent / "kept"), folder / "run")
    if name.startswith(("results", "samples")) and _number(data) % 2:
        (folder / "run" / f"{name.partition('.')[0]}.parquet").unlink()
    (folder / "run" / name).write_bytes(data)
    _loaded(folder, _number(data))


def _sealed_run(named: tuple[str, bytes], folder: Path) -> None:
    """Read a run with a changed file, whose digest in run.json is that of the changed content."""
    name, data = named
    run = shutil.copytree(seeds.saved_run(folder.parent / "kept"), folder / "run")
    kind = name.partition(".")[0]
    replaced = ("results", "samples") if kind.startswith("steps") else (kind,)
    for path in run.iterdir():
        if path.name.startswith(replaced):
            path.unlink()
    (run / name).write_bytes(data)
    if name != "run.json":
        document = json.loads((run / "run.json").read_text())
        frames = [path for path in run.iterdir() if path.suffix in (".csv", ".parquet")]
        document["files"] = {path.name: digest_of(path.read_bytes()) for path in frames}
        document["journal"] = None if frames else name
        document["n_rows"] |= {kind: _n_rows(name, data)} if frames else {"results": 0, "samples": 0}
        (run / "run.json").write_text(json.dumps(document))
    _loaded(folder, _number(data))


def _n_rows(name: str, data: bytes) -> int:
    if name.endswith(".csv"):
        return len(pd.read_csv(io.BytesIO(data), dtype=str))
    return int(pq.read_metadata(io.BytesIO(data)).num_rows)


def _loaded(folder: Path, number: int) -> None:
    """Read the run in a folder, and show it in every way. Every tenth one is also redacted, reported and compared."""
    ml.frames.list_runs(folder)
    run = ml.frames.RunData.load(folder / "run")
    _ = run.results, run.samples, run.devices, run.progress, run.alert, run.attrs, run.calibration, run.steps
    for text in (repr(run), run.table()._repr_html_(), str(run.table())):
        text.encode()
    if number % 10 == 0:
        run.redacted().save(folder / "copy")
        ml.frames.RunData.load(folder / "copy")
        with contextlib.suppress(ml.MeshlabError):
            ml.Report(run).markdown().encode()
        with contextlib.suppress(ml.MeshlabError):
            _shown(ml.compare(run, run))


def _tuning(data: bytes, folder: Path) -> None:
    path = folder / "tuning.json"
    path.write_bytes(data)
    tuning = ml.analysis.Tuning.load(path)
    for text in (repr(tuning), str(tuning), str(tuning.table())):
        text.encode()
    if _number(data) % 10 == 0:
        tuning.save(folder / "again.json")
        ml.analysis.Tuning.load(folder / "again.json")


def _report(data: bytes, folder: Path) -> None:
    path = folder / "report.html"
    path.write_bytes(data)
    _shown(ml.Report.read(path).results)


def _frame(named: tuple[str, bytes], folder: Path) -> None:
    path = folder / named[0]
    path.write_bytes(named[1])
    results = as_results(path)
    if len(results) and _number(named[1]) % 4 == 0:
        _shown(ml.compare(results, results))


def _sizes(text: str, folder: Path) -> None:
    for parse in (units.parse_size, units.parse_sizes):
        with contextlib.suppress(ml.MeshlabError):
            parse(text)


def _units(value: Any, folder: Path) -> None:
    for parse in (units.parse_size, units.parse_sizes):
        with contextlib.suppress(ml.MeshlabError):
            parse(value)
    if not isinstance(value, (int, float)):
        return
    for write in (units.format_time_us, units.format_seconds, units.format_bandwidth):
        write(value)
    if value >= 0:
        units.format_size(value)


def _plan(fields: dict[str, Any], folder: Path) -> None:
    plan = ml.Plan(**fields)
    _shown(plan)
    for step in plan.steps("dp=2, tp=2")[:20]:
        str(step).encode()


_CHOICES: dict[str, list[Any]] = {
    "collective": ["all_reduce", "broadcast", "send", "all_to_all"],
    "axis": ["tp", "dp, tp", "dp-tp"],
    "sizes": ["1K:4K", 1024, [8, "1K"]],
    "dtype": ["float32", "bfloat16", "int8"],
    "op": ["sum", "pre_mul_sum(0.5)", "avg"],
    "mode": ["pipelined", "graph"],
    "grouping": ["together", "alone", "pairs"],
    "root": [0, 1],
    "launches": [1, 3],
    "seed": [0, 7],
    "buffers": ["plain", "symmetric"],
    "algorithm": ["ring", None],
    "min_ctas": [1, None],
    "max_ctas": [4, None],
    "alignment_bytes": [0, 4],
    "n_aggregated": [1, 8],
    "sampling": ["quick", None],
    "concurrent": [{"dp": "all_reduce"}],
}


def _plans() -> st.SearchStrategy[dict[str, Any]]:
    values = {
        name: st.one_of(
            st.sampled_from(good), strategies.words, strategies.numbers, st.lists(strategies.words, max_size=3)
        )
        for name, good in _CHOICES.items()
    }
    needed = {name: values.pop(name) for name in ("collective", "axis")}
    return st.fixed_dictionaries(needed, optional=values)


def _words(word: str, folder: Path) -> None:
    for call in (
        find_collective,
        find_dtype,
        find_op,
        ml.preset,
        ml.Job.preset,
        ml.Sampling.named,
        ml.describe,
        ml.topology.as_cluster,
        lambda text: ml.mesh.Axis(text, 2),
        lambda text: ml.mesh.as_mesh(text, 8),
        lambda text: ml.predict("dp=2, tp=2", "dgx-h100", text),
        lambda text: ml.predict("dp=2, tp=2", text),
        lambda text: ml.predict("dp=2, tp=2", "dgx-h100", sizes=text),
        lambda text: ml.predict("dp=2, tp=2", "dgx-h100", dtype=text),
        lambda text: ml.predict("dp=2, tp=2", "dgx-h100", axis=text),
        lambda text: ml.search("dgx-h100", text),
        lambda text: ml.search("dgx-h100", "llama3-8b", order=text),
        lambda text: ml.place(text, "dgx-h100"),
        lambda text: ml.place("dp=2, tp=4", "dgx-h100").of(text),
        lambda text: ml.place("dp=2, tp=4", "dgx-h100").loads("dp", collective=text),
        lambda text: ml.place("dp=2, tp=4", "dgx-h100").describe(size=text),
        lambda text: ml.prediction.NcclSettings.of_environment({"NCCL_ALGO": text, "NCCL_PROTO": text}),
        lambda text: ml.prediction.NcclSettings.of_environment({"NCCL_NVLS_ENABLE": text, "NCCL_COLLNET_ENABLE": text}),
        lambda text: as_results(text),
        lambda text: ml.frames.RunData.load(text),
        lambda text: ml.analysis.Tuning.load(text),
        lambda text: ml.Report.read(text),
        lambda text: ml.frames.list_runs(text),
        lambda text: ml.read(text),
        lambda text: ml.explain(text),
        lambda text: ml.nccl_tests.read(text),
        lambda text: ml.topology.read(text),
    ):
        with contextlib.suppress(ml.MeshlabError):
            _shown(call(word))


def _cluster_numbers(values: tuple[Any, Any, Any], folder: Path) -> None:
    a, b, c = values
    for call in (
        lambda: ml.preset("dgx-h100", nodes=a),
        lambda: ml.preset("dgx-h100", nodes=4, nodes_per_leaf=a, taper=b),
        lambda: ml.preset("dgx-h100", nodes=4, nodes_per_pod=a, rails=b),
        lambda: ml.preset("gb200-nvl72", nodes=a, nodes_per_rack=b),
        lambda: ml.place("dp=2, tp=2", "dgx-h100", devices=[a, b, c, 0]),
        lambda: ml.preset("dgx-h100").without_device(a),
        lambda: ml.preset("dgx-h100", nodes=2).without_node(a),
        lambda: ml.preset("dgx-h100", nodes=2).without_nic(a, b),
        lambda: ml.preset("dgx-h100", nodes=4).with_taper(leaf=a),
    ):
        with contextlib.suppress(ml.MeshlabError):
            _shown(call())


def _layout_numbers(values: tuple[Any, Any, Any], folder: Path) -> None:
    a, b, c = values
    for call in (
        lambda: ml.preset("dgx-h100").with_nodes(a),
        lambda: ml.search("dgx-h100", "llama3-8b", world_size=a, tp=b, pp=c),
        lambda: ml.search("dgx-h100", "llama3-8b", memory_share=a, memory_gib=b, peak=c),
        lambda: ml.predict("dp=2, tp=2", "dgx-h100", "all_reduce", sizes=a),
        lambda: ml.frames.bandwidth(["all_reduce"], [a], [b], [c]),
        lambda: ml.prediction.cost("all_reduce", a, b),
    ):
        with contextlib.suppress(ml.MeshlabError):
            _shown(call())


JOB_FIELDS = (
    *("layers", "hidden", "heads", "kv_heads", "head_size", "ffn_hidden", "vocabulary", "sequence", "global_batch"),
    *(
        "micro_batch",
        "experts",
        "top_k",
        "dense_layers",
        "expert_hidden",
        "parameters",
        "recompute",
        "zero",
        "interleave",
    ),
)


def _job(fields: dict[str, Any], folder: Path) -> None:
    try:
        job = ml.Job.preset("llama3-8b", **fields)
    except TypeError as error:
        if "unexpected keyword" in str(error):
            return
        raise
    _shown(job)
    for call in (job.memory, job.volumes, job.flops, job.bubble):
        with contextlib.suppress(ml.MeshlabError):
            call("pp=2, dp=2, tp=2")


def _hosts(text: str, folder: Path) -> None:
    expand_hosts(text)


def _host_documents(rng: random.Random, kept: Path) -> Any:
    """Return the description of a host as `read_host` returns it, stored as JSON, with wrong values."""
    host = json.dumps(ml.topology.read_host())
    return json.loads(mutations.mutate_json(rng, host))


def _cluster_from_hosts(host: Any, folder: Path) -> None:
    if isinstance(host, dict):
        _shown(ml.topology.cluster_from_hosts([host]))


def _calibration_document(rng: random.Random, kept: Path) -> Any:
    document = json.loads((seeds.saved_run(kept) / "run.json").read_text())["calibration"]
    return json.loads(mutations.mutate_json(rng, json.dumps(document)))


def _calibration_from(document: Any, folder: Path) -> None:
    if isinstance(document, dict):
        calibration = ml.prediction.Calibration.from_document(document)
        for text in (repr(calibration), calibration.explain(), calibration.frame().to_string()):
            text.encode()
        if _number(str(document)) % 10 == 0:
            calibration._repr_html_().encode()


def _arguments(rng: random.Random, kept: Path) -> list[str | bytes]:
    """Return the words of a command line. Bytes are the content of a file, whose name they are replaced by."""

    def word(*good: str) -> str:
        text = rng.choice(good)
        if rng.random() < 0.6:
            text = mutations.mutate_text(rng, text, lambda: rng.choice(good))
        return text[:2000]

    def file() -> bytes:
        text = _text(rng, ())
        return text if isinstance(text, bytes) else text.encode(errors="surrogatepass")

    def option(name: str, *good: str) -> list[str]:
        return [name, word(*good)] if rng.random() < 0.3 else []

    kind = rng.randrange(7)
    if kind == 0:
        return ["show", word("dp=2, tp=4", "tp=8"), *option("--axis", "tp", "dp-tp"), *option("--ranks", "8", "x")]
    if kind == 1:
        return ["explain", file(), *option("--format", "json", "html", "markdown"), *option("--out", "a.md", "a.html")]
    if kind == 2:
        return ["report", rng.choice((file(), word("run", ".")))]
    if kind == 3:
        return ["compare", file(), file(), *option("--threshold", "0.05", "5%")]
    if kind == 4:
        sizes, dtype = option("--sizes", "1K:4K"), option("--dtype", "float32")
        return ["predict", word("dp=2, tp=4"), "--cluster", rng.choice((word("dgx-h100"), file())), *sizes, *dtype]
    if kind == 5:
        job = word("llama3-8b")
        ranks, order = option("--ranks", "8", "16"), option("--order", "pp, dp, tp")
        return [
            "search",
            job,
            "--cluster",
            rng.choice((word("dgx-h100"), file())),
            *option("--nodes", "1", "2"),
            *ranks,
            *order,
        ]
    return [word("show", "bench", "doctor"), "--help"]


def _command_line(words: list[str | bytes], folder: Path) -> None:
    arguments = []
    for number, word in enumerate(words):
        if isinstance(word, bytes):
            (folder / f"file{number}").write_bytes(word)
            word = str(folder / f"file{number}")
        arguments.append(word)
    arguments = [
        str(folder / word) if before == "--out" else word
        for before, word in zip(["", *arguments], arguments, strict=False)
    ]
    # Like a terminal: a message or a table that cannot be encoded is an error.
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    errors = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), contextlib.suppress(SystemExit):
        main(arguments)
        output.flush()


def _entries() -> Iterator[Entry]:
    every = st.one_of(strategies.all_texts, strategies.all_texts.map(lambda text: text.encode(errors="replace")))
    yield Entry("read", _read, _source(), every)
    yield Entry("explain", _explain, _source(*seeds.LOGS, *seeds.JSONS), every)
    yield Entry("explain-several", _explain_several, _two_sources(*seeds.LOGS, *seeds.JSONS))
    yield Entry("mesh", _mesh, _only_text(*seeds.MESHES[:3]), strategies.mesh_texts)
    mesh_texts = st.one_of(strategies.mesh_texts, strategies.config_texts, strategies.json_texts())
    yield Entry("mesh-read", _mesh_read, _only_text(*seeds.MESHES, *seeds.CONFIGS), mesh_texts)
    four = st.tuples(strategies.numbers, strategies.numbers, strategies.numbers, strategies.words)
    yield Entry("mesh-numbers", _mesh_numbers, None, four)
    yield Entry("topology", _hardware, _source(*seeds.HARDWARE, *seeds.SLURM), strategies.hardware_texts)
    yield Entry(
        "topology-readers", _hardware_readers, _only_text(*seeds.HARDWARE, *seeds.SLURM), strategies.hardware_texts
    )
    yield Entry("nccl-tests", _tests_log, _source(seeds.JSONS[0], seeds.tests_log()), strategies.json_texts())
    yield Entry("run", _run, _file_of_run)
    yield Entry("sealed-run", _sealed_run, _sealed_file)
    yield Entry("tuning", _tuning, _own_file("tuning.json"))
    yield Entry("report", _report, _own_file("report.html"))
    yield Entry("frame", _frame, _csv_or_parquet)
    yield Entry("sizes", _sizes, _only_text("1K:64M", "8 MiB", "8:1G*4", "1M:8M+1M"), strategies.size_texts)
    yield Entry("units", _units, None, st.one_of(strategies.numbers, strategies.size_texts))
    yield Entry("plan", _plan, None, _plans())
    yield Entry(
        "words", _words, _only_text("all_reduce", "float32", "dgx-h100", "llama3-8b", "dp=2, tp=4"), strategies.words
    )
    three = st.tuples(strategies.numbers, strategies.numbers, strategies.numbers)
    yield Entry("cluster-numbers", _cluster_numbers, None, three)
    yield Entry("layout-numbers", _layout_numbers, None, three)
    fields = st.one_of(strategies.numbers, strategies.words)
    yield Entry("job", _job, None, st.dictionaries(st.sampled_from(JOB_FIELDS), fields, min_size=1, max_size=3))
    yield Entry("hosts", _hosts, _only_text("n[001-128],login", "r[1-2]n[0-1]-ib", "a,b c"), strategies.host_lists)
    yield Entry("host-documents", _cluster_from_hosts, _host_documents)
    yield Entry("calibration", _calibration_from, _calibration_document)
    yield Entry("command-line", _command_line, _arguments)


ENTRIES = {entry.name: entry for entry in _entries()}
