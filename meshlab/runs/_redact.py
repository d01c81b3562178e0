"""Redaction: replace the names of hosts and users, addresses, serial numbers and secrets by hashes before sharing.

A `Redactor` first learns names: those that a run lists, and those that its texts show by their shape or by the word
before them. Then it replaces every name wherever it occurs, so that a host that only one line of a log identifies is
also replaced in a title. Shapes such as addresses and tokens are replaced without being learned.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._backends import BACKENDS
from meshlab.base._prefixes import find_prefix
from meshlab.comm._catalog import CATALOG
from meshlab.mesh._document import mesh_from_document, mesh_to_document
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._options import OPTIONS
from meshlab.runs import _private_shapes as shapes
from meshlab.runs._rundata import RunData
from meshlab.runs._store import from_document, to_document

if TYPE_CHECKING:
    import pandas as pd

# Words that are also names of hosts, accounts, keys or columns somewhere, and that do not identify a person.
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

_SUFFIX_WORDS = """
log txt out err json yaml yml toml csv parquet xml html md py sh so png svg pdf gz zip tar conf cfg ini env
"""
_FILE_SUFFIXES = frozenset(_SUFFIX_WORDS.split())

# Keys of mappings whose values are names.
_HOST_KEYS = re.compile(r"(?i)^(?:hosts?|host_?names?|nodes?|node_?(?:list|names?)|master_addr|machine_name|peers?)$")
_USER_KEYS = re.compile(r"(?i)^(?:users?|user_?names?|owner|logname|account|author|measured_by)$")

# Columns with a fixed vocabulary, and random identifiers, which have to stay equal in all copies of a run.
_COLUMN_WORDS = """
run_id source op dtype mode grouping status mesh_fingerprint when launch
"""
_CLOSED_COLUMNS = frozenset((*_COLUMN_WORDS.split(), *OPTIONS))
_MESH_COLUMNS = ("collective", "axis", "group", "concurrent_axis", "concurrent_collective")

_LISTED = re.compile(r"[^,\[\]]{1,300}(?:\[[^\[\]]{0,2000}\][^,\[\]]{0,100})*")


class Redactor:
    """Replaces names by keyed hashes. `keep` are words that it never learns from a text, such as axes of a mesh."""

    def __init__(self, hosts: Iterable[str] = (), users: Iterable[str] = (), *, keep: Iterable[str] = ()) -> None:
        # The key is not stored, so a hash cannot be reversed by trying names.
        self._key = secrets.token_bytes(16)
        self._keep = _COMMON | {name.lower() for name in (*CATALOG, *keep)}
        self._names: dict[str, tuple[str, str]] = {}  # in lower case, with the kind and the name that is hashed
        self._first_parts: set[str] = set()
        self._stems: set[str] = set()
        self._listed: set[str] = set()  # stems of lists of hosts, such as node[1-4], followed by a number
        self._listed_names: re.Pattern[str] | None = None
        self._others: dict[str, str] = {}  # names that are not words, such as "Ada L.", with their kinds
        self._other_names: re.Pattern[str] | None = None
        for host in hosts:
            self._add_host(host)
        for user in users:
            self._add("user", user)

    # -- learning ------------------------------------------------------------------------------------------------------

    def learn(self, *values: Any) -> Redactor:
        """Learn the names in strings, mappings, sequences, dataclasses and frames, and return this redactor."""
        for value in values:
            self._learn(value, "")
        return self

    def _learn(self, value: Any, key: str) -> None:
        if isinstance(value, str):
            if _HOST_KEYS.match(key):
                for name in re.split(r"[\s,;]+", value):
                    self._add_host(name)
            elif _USER_KEYS.match(key):
                self._add("user", value)
            # A log repeats its lines, and the patterns take most of the time.
            self._learn_text("\n".join(dict.fromkeys(value.split("\n"))))
        elif isinstance(value, Mapping):
            for name, item in value.items():
                self._learn(name, "")
                self._learn(item, str(name))
        elif _is_frame(value):
            self._learn(value.attrs, "")
            for name in value.columns:
                if name not in _CLOSED_COLUMNS:
                    for item in _texts_in(value[name]):
                        self._learn(item, str(name))
        elif isinstance(value, (list, tuple, set, frozenset)):
            for item in value:
                self._learn(item, key)
        elif is_dataclass(value) and not isinstance(value, (type, DeviceMesh)):
            for item in fields(value):
                self._learn(getattr(value, item.name), item.name)

    def _learn_text(self, text: str) -> None:
        # A name that a shape shows is a guess. It is not added if it is a common word or a product, or contains a name
        # that an earlier shape has shown.
        for shape in (shapes.HOME, shapes.CREDENTIALS):
            for match in shape.finditer(text):
                self._add("user", match["user"], is_guess=True)
        for match in shapes.USER_AT_HOST.finditer(text):
            self._add("user", match["user"], is_guess=True)
            self._add_host(match["host"], is_guess=True)
        for shape in shapes.USER_SHAPES:
            for match in shape.finditer(text):
                self._add("user", match["user"], is_guess=True)
        for shape in shapes.HOST_LISTS:
            for match in shape.finditer(text):
                for name in _LISTED.findall(match["hosts"]):
                    self._add_listed(name)
        for shape in shapes.HOST_SHAPES:
            for match in shape.finditer(text):
                self._add_host(match["host"], is_guess=True)
        for line in text.split("\n"):
            host = find_prefix(line[:400])[2]
            if host:
                self._add_host(host, is_guess=True)

    def _add_host(self, name: str, *, is_guess: bool = False) -> None:
        name = name.strip().strip(".")
        short, _, domain = name.partition(".")
        if not re.search(r"[^\W\d]", short) or (is_guess and name.lower().endswith(shapes.PUBLIC_DOMAINS)):
            return  # an address, which has its own shape, or a public site
        self._add("host", short, is_guess=is_guess)
        if "." in domain or (domain and domain.lower() not in _FILE_SUFFIXES | self._keep):
            self._add("domain", domain, is_guess=is_guess)
        stem = short.lower().rstrip("0123456789")
        if stem != short.lower():
            self._stems.add(stem)

    def _add_listed(self, name: str) -> None:
        """Add a host of a list, or the hosts whose numbers are in brackets."""
        stem, bracket, _ = name.partition("[")
        low = stem.lower()
        if not bracket:
            self._add_host(re.sub(r":\d+\Z", "", name), is_guess=True)
        elif re.search(r"[^\W\d]", low) and low.strip("-_.") not in self._keep and not shapes.PRODUCT.fullmatch(low):
            self._stems.add(low)
            self._listed.add(low)
            self._listed_names = None

    def _add(self, kind: str, name: str, *, is_guess: bool = False) -> None:
        name = name.strip()
        low = name.lower()
        # A single letter identifies no one, and a number would be replaced everywhere.
        if len(name) < 2 or not re.search(r"[^\W\d]", name) or low in _COMMON:
            return
        # node7-ib0 is an interface of node7, which is replaced within it.
        if is_guess and (
            low in self._keep or shapes.PRODUCT.fullmatch(name) or shapes.WORD.sub(self._word, name) != name
        ):
            return
        if not shapes.WORD.fullmatch(name):
            self._others.setdefault(name, kind)
            self._other_names = None
        elif low not in self._names:
            self._names[low] = (kind, low)
            self._first_parts.add(re.split(r"[-_.]", low, maxsplit=1)[0])

    # -- replacing -----------------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """Return a string in which hashes replace the names, addresses and serial numbers. Line breaks are kept."""
        if "PRIVATE KEY" in text:
            text = shapes.PRIVATE_KEY.sub(lambda match: "[secret]" + "\n" * match[0].count("\n"), text)
        if "\n" not in text:
            return self._line(text)
        # A log repeats its lines.
        lines = text.split("\n")
        redacted = {line: self._line(line) for line in dict.fromkeys(lines)}
        return "\n".join(redacted[line] for line in lines)

    def _line(self, text: str) -> str:
        """Return a line in which hashes replace the names. The tests before the patterns only save time."""
        if not text or text.isspace():
            return text
        text = shapes.TOKENS.sub("[secret]", text)
        if "://" in text:
            text = shapes.CREDENTIALS.sub("[secret]@", text)
        if shapes.SECRET_WORD.search(text):
            text = shapes.KEYED_SECRET.sub(r"\g<key>\g<between>[secret]", text)
            text = shapes.OPTION_SECRET.sub(r"\g<key>\g<between>[secret]", text) if "-" in text else text
        if any(sign.isdecimal() for sign in text):
            text = self._without_numbers(text)
        text = shapes.HOME.sub(lambda match: f"{match['folder']}user", text)
        if self._others:
            text = self._replace_others(text)
        if self._listed:
            text = self._replace_listed(text)
        if self._stems and "[" in text:
            text = shapes.BRACKETED.sub(self._bracketed, text)
        return shapes.WORD.sub(self._word, text) if self._names else text

    def _without_numbers(self, text: str) -> str:
        """Return a line in which hashes replace addresses and the identifiers of hardware."""
        if text.count("-") > 3:
            text = shapes.UUID.sub(lambda match: f"{match['kind'] or 'uuid-'}{self._hash(match['uuid'])}", text)
        for kind, pattern in shapes.HARDWARE_IDS.items():
            text = pattern.sub(lambda match, kind=kind: f"{kind}-{self._hash(match[0])}", text)  # type: ignore[misc]
        text = shapes.SERIAL.sub(lambda match: f"{match['key']}serial-{self._hash(match['serial'])}", text)
        text = shapes.IPV6.sub(self._address, text) if text.count(":") > 1 else text
        return shapes.IPV4.sub(self._address, text) if text.count(".") > 2 else text

    def _replace_others(self, text: str) -> str:
        if self._other_names is None:
            # The longest name first, because the alternatives of a regular expression are tried in order.
            longest_first = sorted(map(re.escape, self._others), key=len, reverse=True)
            self._other_names = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)")
        return self._other_names.sub(lambda match: f"{self._others[match[0]]}-{self._hash(match[0])}", text)

    def _replace_listed(self, text: str) -> str:
        if self._listed_names is None:
            stems = "|".join(sorted(map(re.escape, self._listed), key=len, reverse=True))
            self._listed_names = re.compile(rf"(?i)(?<![^\W_])(?:{stems})\d+(?![^\W_])")
        return self._listed_names.sub(lambda match: self._hashed("host", match[0].lower()), text)

    def _bracketed(self, match: re.Match[str]) -> str:
        """Replace the stem of a list of hosts, such as node[1-4,7] of Slurm."""
        if match["stem"].lower() not in self._stems:
            return match[0]
        return f"host-{self._hash(match['stem'].lower())}{match['numbers']}"

    def _address(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(match["address"])
        except ValueError:  # a version, a time or a list of numbers
            return match[0]
        if address.is_loopback or address.is_unspecified or str(address).startswith("255."):
            return match[0]
        start = match.start()
        if address.version == 4 and shapes.VERSION_BEFORE.search(match.string, max(0, start - 32), start):
            return match[0]
        interface = match["interface"] if address.version == 6 else None
        return f"{interface or ''}address-{self._hash(str(address))}"

    def _word(self, match: re.Match[str]) -> str:
        """Replace the names within a word, which separators divide into parts: mgmt-node7-ib0.cluster."""
        word: str = match[0]
        low = word.lower()
        name = self._names.get(low)
        if name is not None:
            return self._hashed(*name)
        separators = list(re.finditer(r"[-_.]+", low))
        if not separators:
            return word
        # The first of the longest names wins. A set of the first parts of all names keeps this fast: most words of a
        # log have no name, and are not compared with any.
        starts = [0, *(separator.end() for separator in separators)]
        ends = [*(separator.start() for separator in separators), len(low)]
        done, pieces, index = 0, [], 0
        while index < len(starts):
            if low[starts[index] : ends[index]] in self._first_parts:
                for last in range(len(ends) - 1, index - 1, -1):
                    name = self._names.get(low[starts[index] : ends[last]])
                    if name is not None:
                        end = self._end_of_name(low, name[0], ends[last])
                        pieces += [word[done : starts[index]], self._hashed(*name)]
                        done, index = end, last
                        break
            index += 1
            while index < len(starts) and starts[index] < done:
                index += 1
        return "".join([*pieces, word[done:]])

    @staticmethod
    def _end_of_name(low: str, kind: str, end: int) -> int:
        """Return where a name ends. The domain after a host is a part of it, but the suffix of a file is not."""
        rest = low[end:]
        is_domain = kind == "host" and re.fullmatch(r"(?:\.[^\W_](?:[\w-]*[^\W_])?)+", rest) is not None
        last = rest.rpartition(".")[2]
        return len(low) if is_domain and last not in _FILE_SUFFIXES and not last[:1].isdecimal() else end

    def _hashed(self, kind: str, name: str) -> str:
        return f"{kind}-{self._hash(name)}"

    def anything(self, value: Any) -> Any:
        """Return nested mappings, sequences, dataclasses, meshes and frames in which hashes replace the names."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.anything(name): self._item(name, item) for name, item in value.items()}
        if isinstance(value, DeviceMesh):
            return self.mesh(value)[0]
        if _is_frame(value):
            return self.frame(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple
            return type(value)(*(self.anything(item) for item in value))
        if isinstance(value, (list, tuple, set, frozenset)):
            return type(value)(self.anything(item) for item in value)
        if isinstance(value, np.ndarray) and value.dtype.kind in "UO":
            return np.array([self.anything(item) for item in value.ravel()], dtype=object).reshape(value.shape)
        if is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value)
        return value

    def _item(self, key: Any, value: Any) -> Any:
        """Return a value of a mapping. The value of a key such as HF_TOKEN is a secret of any shape."""
        if isinstance(key, str) and isinstance(value, str) and value.strip():
            return "[secret]" if shapes.KEYED_SECRET.fullmatch(f"{key}={value.split()[0]}") else self.text(value)
        return self.anything(value)

    def _dataclass(self, value: Any) -> Any:
        changed = {}
        for item in fields(value):
            old = getattr(value, item.name)
            new = self.anything(old) if item.init else old
            if new is not old and not _are_equal(new, old):
                changed[item.name] = new
        return replace(value, **changed) if changed else value

    def frame(self, frame: pd.DataFrame, renamed: Mapping[str, str] | None = None) -> pd.DataFrame:
        """Return a frame with hashes in its texts and its `attrs`. `renamed` has the new names of axes and groups."""
        import pandas as pd

        new = frame.copy()
        new.attrs = self.anything(frame.attrs)
        for name in frame.columns:
            if name in _CLOSED_COLUMNS:
                continue
            # The names of axes and groups change only together with the mesh.
            is_of_mesh = renamed is not None and name in _MESH_COLUMNS
            hashed = {
                text: renamed.get(text, text) if renamed is not None and is_of_mesh else self.text(text)
                for text in _texts_in(frame[name])
            }
            dtype: Any = frame[name].dtype
            if dtype.name == "object" or any(text != new_text for text, new_text in hashed.items()):
                items = [hashed[item] if isinstance(item, str) else self.anything(item) for item in frame[name]]
                new[name] = pd.Series(items, index=frame.index, dtype=dtype)
        return new

    def mesh(self, mesh: DeviceMesh, others: Iterable[str] = ()) -> tuple[DeviceMesh, dict[str, str]]:
        """Return a mesh with hashes in its axes and groups, and the new names, also of `others` such as functions."""
        names = [axis.name for axis in mesh.axes] + [group.name for group in mesh.custom_groups]
        # Names of axes and groups are identifiers, which have no dashes.
        renamed = {name: self.text(name).replace("-", "_") for name in (*names, *others) if self.text(name) != name}
        if not renamed:
            return mesh, {}
        document = mesh_to_document(mesh)
        document["axes"] = [[renamed.get(name, name), size] for name, size in document["axes"]]
        document["groups"] = [[renamed.get(name, name), ranks] for name, ranks in document["groups"]]
        document["backends"] = {renamed.get(name, name): backend for name, backend in document["backends"].items()}
        new = mesh_from_document(document)
        for axis in mesh.axes:
            if axis.name in renamed:
                renamed |= dict(zip(mesh[axis.name].names, new[renamed[axis.name]].names, strict=True))
        return new, renamed

    def _hash(self, name: str) -> str:
        return hmac.new(self._key, name.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()[:8]


def redact(run: RunData, redactor: Redactor | None = None) -> RunData:
    """Return a copy of a run with hashes instead of names. See `RunData.redacted`."""
    redactor = redactor_of(run) if redactor is None else redactor
    document, results, samples = to_document(run), run.results, run.samples
    mesh, renamed = redactor.mesh(run.mesh, run.plan.functions)
    plan = _renamed(run.plan, renamed) if renamed else run.plan
    results, samples = redactor.frame(results, renamed), redactor.frame(samples, renamed)
    if mesh.fingerprint != run.mesh.fingerprint:
        results["mesh_fingerprint"] = results["mesh_fingerprint"].replace(run.mesh.fingerprint, mesh.fingerprint)
    hidden = {name: redactor.anything(value) for name, value in document.items() if name not in ("run_id", "user")}
    return from_document({**document, **hidden, "user": ""}, plan, mesh, results, samples)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return a plan, or a part of it, with the new names of axes, groups and functions."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, tuple):
        return tuple(_renamed(item, names) for item in value)
    if isinstance(value, Mapping):
        return {names.get(name, name): item for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{item.name: _renamed(getattr(value, item.name), names) for item in fields(value)})
    return value


def redactor_of(
    run: RunData | None, *others: Any, hosts: Iterable[str] = (), mesh: DeviceMesh | None = None
) -> Redactor:
    """Return a redactor with the names in a run and other values, and of the user. The names in `mesh` are kept."""
    mesh = mesh if run is None else run.mesh
    keep = set() if mesh is None else {axis.name for axis in mesh.axes} | {group.name for group in mesh.custom_groups}
    users = [current_user(), Path.home().name]
    if run is None:
        return Redactor(hosts, users, keep=keep).learn(*others)
    redactor = Redactor([*run.hosts, *hosts], [*users, run.user], keep=keep | set(run.plan.functions))
    name = run.environment.get("Host", {}).get("name", "")
    return redactor.learn({"host": name}, to_document(run), run.results, run.samples, *others)


def current_user() -> str:
    """Return the name of the user of this process, or an empty string if it has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user ID without an entry in the password database, as in some containers
        return ""


def _is_frame(value: Any) -> bool:
    return hasattr(value, "columns") and hasattr(value, "attrs")


def _texts_in(column: pd.Series[Any]) -> list[str]:
    """Return the different strings of a column."""
    return list(dict.fromkeys(item for item in column if isinstance(item, str))) if column.dtype.kind == "O" else []


def _are_equal(first: Any, second: Any) -> bool:
    try:
        return bool(first == second)
    except ValueError:  # arrays
        return False
