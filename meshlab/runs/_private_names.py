"""The names that identify hosts, users and hardware in a document: those that it lists, and those that its texts show.

One object has them all, so that a host that only one line of a log identifies is also replaced in a title. Names come
from facts, such as the hosts of a run and what the readers of a log have extracted, and from the shapes of texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from meshlab.base._backends import BACKENDS
from meshlab.base._prefixes import find_prefix
from meshlab.comm._catalog import CATALOG
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._options import OPTIONS
from meshlab.runs import _private_shapes as shapes
from meshlab.runs._similar_lines import SimilarLines

if TYPE_CHECKING:
    import pandas as pd

# Words that are also names of hosts, accounts, keys or columns somewhere, and that do not identify a person. They are
# never replaced, because a text in which every "node" or "gpu" is a hash cannot be read.
_COMMON_WORDS = """
localhost localdomain host hosts hostname node nodes gpu gpus cpu cpus cuda rank ranks world
server client machine machines master worker workers login head compute cluster local remote unknown none null true
false error warning info debug fatal kernel root admin administrator user users ubuntu debian centos rocky fedora
ec2-user azureuser opc runner jovyan vscode nobody daemon docker container slurm home shared public tmp data scratch
app test default run log plan mesh state source where results samples environment settings software library backend
name note started oversubscribed system processor cores memory driver device devices axis group groups size mode dtype
op time before after median mean max min all any first last step steps launch collective calibration ring tree simple
symmetric plain registered graph isolated pipelined together alone pairs ok failed wrong skipped slow fast with from
and the is of on in at to for by not no yes or as an it a via was are be has than
git www docs api ftp mail ssh vpn gateway proxy
"""
_COMMON = frozenset((*_COMMON_WORDS.split(), *BACKENDS))

# Words of logs that stand where a name may stand: "on node failure", "host: unreachable", "/scratch/checkpoints". They
# are not taken for names, except where a run or a cluster lists them.
_ORDINARY_WORDS = """
abort aborted aborting access active activity actual add added address addresses affinity agent alive allocated
allocation allocations allocator already also and another application applications array assigned available awaiting
back bandwidth basic because been below beyond bin bind both buffer buffers build builds busy but bytes cache caches
call calls can cannot capability card cards cgroup change channel channels check checkpoint checkpoints ckpt ckpts
class clock closed closing cold command comms communicator communicators completed completion conf config configs
configuration connect connected connecting connection connections constraint container containers control controller
copy core count counter counters crash crashed crashes current cxi daemonset dataset datasets datatypes dead deadline
dead-lock defined deleted deployment dev died different direct directory disconnected disk distributed does domain
done down drain drained draining dropped dump dumps during each echo either empty enabled end ended ends endpoint env
envs etc ethernet event events every exception exceptions excluded exclusive exists exit exited experiment experiments
external fabric fail failing fails failure failures false fault faults feature file files filesystem finalize finished
firmware flag folder format found freed full function gid global gone had hang hanging hangs hardware has have health
healthy high hung idle ids image images imagenet inactive include index inf init initialization initialized input
inside instance instances interface interfaces internal interrupt interrupted into invalid inventory iommu ip ipc its
job jobs join joined key keys killed label labels lane lanes large latency later layer layers left less level lib
libs limit limits line link links list listening loaded lock locked logs loss lost low main maintenance management
manager many map mapping match maximum may means message messages metadata metrics minimum mismatch missing mixed model
models module modules monitor more mount mounted multiple names nccl near needs network networks never new next
nic nics none normal not number numa object offline okay old once one online only open opened operation option order
other others out output outputs over packages pair parent part partition password path paths peer peers pending per
performance permission persistent pid pinned placement pod pods pointer policy pool port ports power present preset
process processes profile profiles program progress protocol provider published python pytorch query queue ran range
rate raw reached reachable read ready real reason reboot rebooted rebooting receive received recv refused registry
regular release reload removed replica replicas report reports request requested requests required reset resource
resources response restart restarted restarting restarts result resumed retries retry retrying return returned role
roots route routing rule running runs runtime same scheduled scheduler scratch script scripts self send sends sent
service services session set several shape shm should shutdown side signal single singularity size sizes sleep slot
slots slower snapshot socket sockets software some space specification speed spine src stack stage started starting
startup status step stopped storage store stream streams string style subject subset success suspended sw swap switch
switches sync target task tasks team temp temporary tensor tensors terminated terminating tests that them then there
these they this thread threads three through timed timeout timeouts times token tokens tool tools topology torch total
trace traces train trainer training transport tree true two type types uid undefined under undrained unexpected
unhealthy unique unless unreachable unresponsive until unused up use used using utilization value values variable
venv version versions view visible volume volumes wait waiting wants warm warnings weights were when which while will
within without slurmstepd slurmd srun mpirun mpiexec torchrun prterun orted ulimit libfabric gloo
fabricmanager nvlsm cxi0 around py-spy rccl work working workspace write writes written wrong your zero
nccl-tests all_reduce_perf megatron megatron-lm deepspeed vllm sglang transformers conda miniconda miniconda3 anaconda
anaconda3 mambaforge miniforge miniforge3 pytorch openmpi mpich ucx spack modules apps opt usr sbin var lib64
site-packages include local project projects workspaces software sw models slurm llama llm moe nemo ray accelerate
"""
_ORDINARY = frozenset(_ORDINARY_WORDS.split())

_SUFFIX_WORDS = """
log txt out err json yaml yml toml csv parquet xml html md py sh so png svg pdf gz zip tar conf cfg ini env cc cpp cu h
"""
FILE_SUFFIXES = frozenset(_SUFFIX_WORDS.split())
_DATA_SUFFIXES = frozenset(
    ("pt", "pth", "bin", "safetensors", "ckpt", "npy", "npz", "gguf", "sif", "sqsh", "ipynb", "c")
)

# Keys of mappings, columns of tables, and fields of what a reader extracts, whose values are names.
_HOST_KEYS = re.compile(
    r"(?i)^(?:hosts?|host_?names?|nodes?|node_?(?:list|names?)|master_addr|machine_name|peers?|pods?|pod_?names?"
    r"|nodelist\(reason\)|(?:local|remote|batch|submit)[_ -]?host|exec_?host)$"
)
_USER_KEYS = re.compile(r"(?i)^(?:users?|user_?names?|owner|logname|account|author|measured_by)$")
_SERIAL_KEYS = re.compile(
    r"(?i)^(?:[\w.]{0,30}[_. -])?(?:serial|serial[_ -]?(?:number|num|no)|asset[_ -]?tag|part[_ -]?serial)s?$"
)

# Columns with a fixed vocabulary, and random identifiers, which have to stay equal in all copies of a run.
_COLUMN_WORDS = """
run_id source op dtype mode grouping status mesh_fingerprint when launch
"""
CLOSED_COLUMNS = frozenset((*_COLUMN_WORDS.split(), *OPTIONS)) - {"traffic"}  # whose names users choose

_LISTED = re.compile(r"[^,\[\]]{1,300}(?:\[[^\[\]]{0,2000}\][^,\[\]]{0,100})*")
_SHORTEST_SERIAL = 5
_LONGEST_PREFIX = 400
_MOST_ROWS = 20_000
_MOST_TABLES = 50  # of different columns
_TABLE_HEAD = re.compile(
    r"(?i)(?<![\w-])(?:[\w.]{0,30}serial(?:[_ ]number)?|host_?name|host|node(?:list|_?name)?|user(?:name)?|pods?)"
    r"(?![\w=:-])"
)
_SEPARATED = ",;\t|"


class PrivateNames:
    """Names by kind. `keep` are words that are never learned from a text, such as axes of a mesh."""

    def __init__(self, keep: Iterable[str] = ()) -> None:
        self._keep = _COMMON | {name.lower() for name in (*CATALOG, *keep)}
        self._seen: set[tuple[str, str]] = set()  # guesses, which a long log repeats
        self.words: dict[str, tuple[str, str]] = {}  # in lower case, with the kind and the name that is hashed
        self._exact: dict[str, str] = {}  # hosts that look like products in other capitals: gpu7 is not GPU7
        self.first_parts: set[str] = set()
        self.stems: set[str] = set()
        self.listed: set[str] = set()  # stems of lists of hosts, such as node[1-4], followed by a number
        self.others: dict[str, str] = {}  # names that are not words, such as "Ada L.", with their kinds

    # -- learning ------------------------------------------------------------------------------------------------------

    def learn(self, value: Any, key: str = "") -> None:
        """Learn the names in strings, mappings, sequences, dataclasses and frames."""
        if isinstance(value, str):
            self._learn_item(value, key)
            self.learn_text(value)
        elif isinstance(value, Mapping):
            for name, item in value.items():
                self.learn(name)
                self.learn(item, str(name))
        elif is_frame(value):
            self.learn(value.attrs)
            for name in value.columns:
                if name not in CLOSED_COLUMNS:
                    for item in texts_in(value[name]):
                        self.learn(item, str(name))
        elif isinstance(value, (list, tuple, set, frozenset)):
            for item in value:
                self.learn(item, key)
        elif is_dataclass(value) and not isinstance(value, (type, DeviceMesh)):
            for field in fields(value):
                self.learn(getattr(value, field.name), field.name)

    def learn_facts(self, value: Any) -> None:
        """Learn the fields that are names by their keys, in anything that a reader returns. Texts are not searched."""
        items, done = [value], set()
        fields_of: dict[type, tuple[str, ...] | None] = {}
        while items:
            value = items.pop()
            if isinstance(value, (str, bytes, int, float, type(None))) or id(value) in done:
                continue
            if isinstance(value, Mapping):
                done.add(id(value))
                named: Iterable[tuple[str, Any]] = [(str(key), item) for key, item in value.items()]
                items += [key for key in value if isinstance(key, tuple)]
            elif (names := _remembered(fields_of, type(value))) is not None:
                named = [(name, getattr(value, name, None)) for name in names]
            elif isinstance(value, (list, tuple, set, frozenset)):
                done.add(id(value))
                items += value
                continue
            else:
                continue
            for key, item in named:
                if isinstance(item, str):
                    self._learn_item(item, key, is_guess=True)
                elif isinstance(item, (list, tuple, set, frozenset)) and _HOST_KEYS.match(key):
                    for name in item:
                        if isinstance(name, str):
                            self._learn_item(name, key, is_guess=True)
                        else:
                            items.append(name)
                else:
                    items.append(item)

    def _learn_item(self, text: str, key: str, *, is_guess: bool = False) -> None:
        kind = _kind_of(key) if key else None
        if kind == "host":
            is_guess = is_guess or " " in text.strip()  # such as "12, from node01 to node12"
            for name in re.split(r"[\s;]+", text) if "[" in text else re.split(r"[\s,;]+", text):
                if "[" in name:
                    self._add_list(name)
                else:
                    self.add_host(name, is_guess=is_guess)
        elif kind is not None:
            self.add(kind, text, is_guess=is_guess)

    def learn_text(self, text: str) -> None:
        """Learn the names that the shapes of a text show.

        Such a name is a guess. It is not added if it is an ordinary word or a product, or contains a name that an
        earlier shape has shown.
        """
        if not text or text.isspace():
            return
        lines = SimilarLines(text)
        for pattern, numbers in zip(_PATTERNS, lines.containing(_PATTERNS), strict=True):
            learn = _LEARN[pattern]
            for match in pattern.finditer(lines.text_of(numbers)):
                learn(self, match)
        for number in lines.where(lambda head: bool(find_prefix(head[:_LONGEST_PREFIX])[2])):
            self.add_host(find_prefix(lines.lines[number][:_LONGEST_PREFIX])[2] or "", is_guess=True)
        if "\n" not in text:
            return
        heads, table_heads = lines.containing([shapes.BLOCK_HEAD, _TABLE_HEAD])
        if heads:
            for match in shapes.HOST_BLOCKS.finditer(text):
                for name in shapes.LISTED_ITEM.findall(match["hosts"]):
                    self.add_host(name, is_guess=True)
        heads_of_tables = [(head, _columns_of(head)) for head in (lines.lines[number] for number in table_heads)]
        for head, columns in [(head, columns) for head, columns in heads_of_tables if columns][:_MOST_TABLES]:
            self._learn_table(text, head, columns)

    def _learn_table(self, text: str, head: str, columns: Mapping[int, str]) -> None:
        """Learn columns of a table, such as the serial numbers of ``nvidia-smi --query-gpu=serial --format=csv``."""
        separator = _separator_of(head)
        n_fields = len(head.split(separator))
        start = text.find(head) if text.startswith(head) else text.find(f"\n{head}\n") + 1
        for line in text[start + len(head) + 1 :].split("\n", _MOST_ROWS)[:_MOST_ROWS]:
            cells = line.split(separator)
            if len(cells) != n_fields:
                break
            for number, kind in columns.items():
                cell = cells[number].strip(" \t\"'")
                if kind == "host":
                    self._add_list(cell)
                else:
                    self.add(kind, cell, is_guess=True)

    # -- adding --------------------------------------------------------------------------------------------------------

    def add_host(self, name: str, *, is_guess: bool = False) -> None:
        """Add a host with its domain. An address has its own shape."""
        if is_guess:
            if ("host", name) in self._seen:
                return
            self._seen.add(("host", name))
        name = name.strip().strip(".")
        short, _, domain = name.partition(".")
        if not re.search(r"[^\W\d]", short) or (is_guess and name.lower().endswith(shapes.PUBLIC_DOMAINS)):
            return  # an address, or a public site
        if is_guess and (domain.lower().rpartition(".")[2] in FILE_SUFFIXES or not shapes.WORD.fullmatch(name)):
            return
        self.add("host", short, is_guess=is_guess)
        if "." in domain or (domain and domain.lower() not in FILE_SUFFIXES | shapes.TOP_DOMAINS | self._keep):
            self.add("domain", domain, is_guess=is_guess)
        stem = short.lower().rstrip("0123456789")
        if stem != short.lower():
            self.stems.add(stem)

    def _add_list(self, text: str) -> None:
        """Add the hosts of a list, some of which may have their numbers in brackets."""
        if ("list", text) in self._seen:
            return
        self._seen.add(("list", text))
        for name in _LISTED.findall(text):
            stem, bracket, _ = name.partition("[")
            low = stem.lower()
            if not bracket:
                self.add_host(re.sub(r":\d+\Z", "", name.strip("\"' :.-")), is_guess=True)
            elif (
                re.search(r"[^\W\d]", low) and low.strip("-_.") not in self._keep and not shapes.PRODUCT.fullmatch(low)
            ):
                self.stems.add(low)
                self.listed.add(low)

    def add(self, kind: str, name: str, *, is_guess: bool = False) -> None:
        """Add a name of a kind, unless it identifies nothing."""
        name = name.strip()
        low = name.lower()
        if low in _COMMON or len(name) < 2:  # a single letter identifies no one
            return
        if kind == "serial":
            if len(name) < _SHORTEST_SERIAL or not re.search(r"\d", name) or re.search(r"[\s/=]", name):
                return
        elif not re.search(r"[^\W\d]", name):  # a number would be replaced everywhere
            return
        # node7-ib0 is an interface of node7, which is replaced within it.
        if is_guess:
            if low in self._keep or low in _ORDINARY or self.hidden(name) is not None:
                return
            if shapes.PRODUCT.fullmatch(name) and not (kind == "host" and shapes.NUMBERED_HOST.fullmatch(name)):
                return
        if kind == "host" and low not in self.words and shapes.PRODUCT.fullmatch(name):
            self._exact[low] = name
        if not shapes.WORD.fullmatch(name):
            if not is_guess or len(name) > 3:
                self.others.setdefault(name, kind)
        elif low not in self.words:
            self.words[low] = (kind, low)
            self.first_parts.add(re.split(r"[-_.]", low, maxsplit=1)[0])

    def as_folder(self, name: str) -> str | None:
        """Return the name of a folder as it is hashed, or None if it is an ordinary word or a file."""
        low = name.lower()
        is_file = "." in low and low.rpartition(".")[2] in FILE_SUFFIXES | _DATA_SUFFIXES
        if is_file or low in self._keep or low in _ORDINARY or not re.search(r"[^\W\d]", low) or len(low) < 2:
            return None
        return low

    # -- finding -------------------------------------------------------------------------------------------------------

    def hidden(self, word: str) -> list[tuple[int, int, str, str]] | None:
        """Return where names are in a word, with their kinds, or None. Separators divide it: mgmt-node7-ib0.cluster."""
        name = self._name(word)
        if name is not None:
            return [(0, len(word), *name)]
        low = word.lower()
        separators = list(_SEPARATORS.finditer(low))
        if not separators:
            return None
        # The first of the longest names wins. A set of the first parts of all names keeps this fast: most words of a
        # log have no name, and are not compared with any.
        starts = [0, *(separator.end() for separator in separators)]
        ends = [*(separator.start() for separator in separators), len(low)]
        places: list[tuple[int, int, str, str]] = []
        done = 0
        for index, start in enumerate(starts):
            if start < done or low[start : ends[index]] not in self.first_parts:
                continue
            for end in reversed(ends[index:]):
                name = self._name(word[start:end])
                if name is not None:
                    done = _end_of_name(low, name[0], end)
                    places.append((start, done, *name))
                    break
        return places or None

    def _name(self, part: str) -> tuple[str, str] | None:
        low = part.lower()
        return None if self._exact.get(low, part) != part else self.words.get(low)


_SEPARATORS = re.compile(r"[-_.]+")


def _end_of_name(low: str, kind: str, end: int) -> int:
    """Return where a name ends. The domain after a host is a part of it, but the suffix of a file is not."""
    rest = low[end:]
    is_domain = kind == "host" and re.fullmatch(r"(?:\.[^\W_](?:[\w-]*[^\W_])?)+", rest) is not None
    last = rest.rpartition(".")[2]
    return len(low) if is_domain and last not in FILE_SUFFIXES and not last[:1].isdecimal() else end


def _learn_user(names: PrivateNames, match: re.Match[str]) -> None:
    names.add("user", match["user"], is_guess=True)


def _learn_user_at_host(names: PrivateNames, match: re.Match[str]) -> None:
    names.add("user", match["user"], is_guess=True)
    names.add_host(match["host"], is_guess=True)


def _learn_folder(names: PrivateNames, match: re.Match[str]) -> None:
    for name in (match["first"], match["second"]):
        if name is not None and "." not in name:
            names.add("user", name, is_guess=True)


def _learn_list(names: PrivateNames, match: re.Match[str]) -> None:
    names._add_list(match["hosts"])


def _learn_host(names: PrivateNames, match: re.Match[str]) -> None:
    host = match["host"] or (match["second"] if "second" in match.re.groupindex else None)
    if host:
        names.add_host(host, is_guess=True)


def _learn_frame(names: PrivateNames, match: re.Match[str]) -> None:
    # Nothing but a host stands here, so gpu0 is a host, and not a GPU.
    names.add_host(match["host"], is_guess=shapes.PRODUCT.fullmatch(match["host"]) is None)


def _learn_resources(names: PrivateNames, match: re.Match[str]) -> None:
    for resource in shapes.RESOURCE.finditer(match["resources"]):
        names.add_host(resource["host"], is_guess=True)


def _learn_pod(names: PrivateNames, match: re.Match[str]) -> None:
    """Learn a pod, and its job: the name without the numbers that the controller adds."""
    names.add_host(match["pod"], is_guess=True)
    base = shapes.POD_SUFFIX.sub("", match["pod"])
    if "-" in base:
        names.add_host(base, is_guess=True)


def _learn_serial(names: PrivateNames, match: re.Match[str]) -> None:
    names.add("serial", match["serial"], is_guess=True)


_LEARN: dict[re.Pattern[str], Callable[[PrivateNames, re.Match[str]], None]] = {
    shapes.HOME: _learn_user,
    shapes.CREDENTIALS: _learn_user,
    shapes.USER_AT_HOST: _learn_user_at_host,
    **dict.fromkeys(shapes.USER_SHAPES, _learn_user),
    **dict.fromkeys(shapes.HOST_LISTS, _learn_list),
    shapes.RESOURCES: _learn_resources,
    shapes.FRAME: _learn_frame,
    **dict.fromkeys(shapes.POD_SHAPES, _learn_pod),
    **dict.fromkeys(shapes.HOST_SHAPES, _learn_host),
    shapes.SHARED_FOLDER: _learn_folder,
    shapes.SERIAL: _learn_serial,
}
_PATTERNS = list(_LEARN)


def _separator_of(head: str) -> str | None:
    """Return the sign between the columns of a table, or None for blanks."""
    return next((sign for sign in _SEPARATED if sign in head), None)


def _columns_of(head: str) -> dict[int, str]:
    """Return which columns of a table have names, by its head, and their kinds. Of a line without columns, none."""
    separator = _separator_of(head)
    if separator is None and sum(name.isupper() for name in head.split()) < 3:
        return {}
    names = [name.strip(" \t\"'#") for name in head.split(separator)]
    is_head = 1 < len(names) == len(set(names))  # a row of nvidia-smi topo -m repeats NODE
    kinds = {number: _kind_of(name) for number, name in enumerate(names)} if is_head else {}
    return {number: kind for number, kind in kinds.items() if kind is not None}


@lru_cache(4096)
def _kind_of(key: str) -> str | None:
    """Return the kind of name that a key announces."""
    kinds = (("host", _HOST_KEYS), ("user", _USER_KEYS), ("serial", _SERIAL_KEYS))
    return next((kind for kind, pattern in kinds if pattern.match(key)), None)


def _fields_of(kind: type) -> tuple[str, ...] | None:
    """Return the fields of a dataclass or a named tuple."""
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return tuple(kind._fields)
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None


def _remembered(fields_of: dict[type, tuple[str, ...] | None], kind: type) -> tuple[str, ...] | None:
    if kind not in fields_of:
        fields_of[kind] = _fields_of(kind)
    return fields_of[kind]


def is_frame(value: Any) -> bool:
    """Return whether a value is a frame of pandas, which need not be imported."""
    return hasattr(value, "columns") and hasattr(value, "attrs")


def texts_in(column: pd.Series[Any]) -> list[str]:
    """Return the different strings of a column."""
    return list(dict.fromkeys(item for item in column if isinstance(item, str))) if column.dtype.kind == "O" else []
