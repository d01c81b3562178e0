"""Redaction: replace the names of hosts and users, addresses, serial numbers and secrets by hashes before sharing.

A `Redactor` first learns names (see `PrivateNames`). Then it replaces every name wherever it occurs, so that a host
that only one line of a log identifies is also replaced in a title. Shapes such as addresses and tokens are replaced
without being learned.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.mesh._document import mesh_from_document, mesh_to_document
from meshlab.mesh._mesh import DeviceMesh
from meshlab.runs import _private_shapes as shapes
from meshlab.runs._private_names import CLOSED_COLUMNS, PrivateNames, is_frame, texts_in
from meshlab.runs._rundata import RunData
from meshlab.runs._similar_lines import SimilarLines
from meshlab.runs._store import from_document, to_document

if TYPE_CHECKING:
    import pandas as pd

_MESH_COLUMNS = ("collective", "axis", "group", "concurrent_axis", "concurrent_collective", "traffic")
_LONGEST_COMMAND = 300  # characters before an option
_TOKEN = re.compile(r"[^\W_][\w.-]*")

Step = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]


class Redactor:
    """Replaces names by keyed hashes. `keep` are words that it never learns from a text, such as axes of a mesh."""

    def __init__(self, hosts: Iterable[str] = (), users: Iterable[str] = (), *, keep: Iterable[str] = ()) -> None:
        # The key is not stored, so a hash cannot be reversed by trying names.
        self._key = secrets.token_bytes(16)
        self._hashes: dict[str, str] = {}
        self._names = PrivateNames(keep)
        for host in hosts:
            self._names.add_host(host)
        for user in users:
            self._names.add("user", user)
        # In this order: a step does not look into what an earlier one has replaced.
        self._steps: list[Step] = [
            (shapes.TOKENS, "[secret]"),
            (shapes.CREDENTIALS, "[secret]@"),
            (shapes.KEYED_SECRET, r"\g<key>\g<between>[secret]"),
            (shapes.OPTION_SECRET, r"\g<key>\g<between>[secret]"),
            (shapes.SHORT_OPTION_SECRET, _without_short_option),
            (shapes.UUID, lambda match: f"{match['kind'] or 'uuid-'}{self._hash(match['uuid'])}"),
            *((pattern, self._hardware(kind)) for kind, pattern in shapes.HARDWARE_IDS.items()),
            (shapes.SERIAL, lambda match: f"{match['key']}serial-{self._hash(match['serial'].lower())}"),
            (shapes.IPV6, self._address),
            (shapes.IPV4, self._address),
            (shapes.HOME, lambda match: f"{match['folder']}user"),
            (shapes.SHARED_FOLDER, self._shared_folder),
            (shapes.BRACKETED, self._bracketed),
        ]

    def learn(self, *values: Any) -> Redactor:
        """Learn the names in strings, mappings, sequences, dataclasses and frames, and return this redactor."""
        for value in values:
            self._names.learn(value)
        return self

    def learn_facts(self, *values: Any) -> Redactor:
        """Learn the hosts, users and serial numbers that readers have extracted, and return this redactor."""
        for value in values:
            self._names.learn_facts(value)
        return self

    def learn_hosts(self, hosts: Iterable[str]) -> Redactor:
        """Learn names that stand where a host stands, unless they are ordinary words, and return this redactor."""
        for host in hosts:
            self._names.add_host(host, is_guess=True)
        return self

    # -- replacing -----------------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """Return a string in which hashes replace the names, addresses and serial numbers. Line breaks are kept."""
        if not text or text.isspace():
            return text
        if "PRIVATE KEY" in text:
            text = shapes.PRIVATE_KEY.sub(lambda match: "[secret]" + "\n" * match[0].count("\n"), text)
        similar = SimilarLines(text)
        lines = list(similar.lines)
        for (pattern, new), numbers in zip(
            self._steps, similar.containing([pattern for pattern, _ in self._steps]), strict=True
        ):
            for number in numbers:
                lines[number] = pattern.sub(new, lines[number])
        for number, line in enumerate(lines):
            if "[secret]" in line:
                lines[number] = shapes.FURTHER_WORDS.sub(r"\g<key>", line)
        if "\n" not in text:
            return self._without_names(lines[0])
        redacted = dict(zip(similar.lines, self._without_names("\n".join(lines)).split("\n"), strict=True))
        return "\n".join([redacted[line] for line in text.split("\n")])

    def _without_names(self, text: str) -> str:
        """Return a text in which hashes replace the names. The test before a pattern only saves time."""
        names = self._names
        if names.others:
            # The longest name first, because the alternatives of a regular expression are tried in order.
            longest_first = sorted(map(re.escape, names.others), key=len, reverse=True)
            pattern = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)")
            text = pattern.sub(lambda match: self._hashed(names.others[match[0]], match[0]), text)
        if names.listed:
            stems = "|".join(sorted(map(re.escape, names.listed), key=len, reverse=True))
            pattern = re.compile(rf"(?i)(?<![^\W_])(?:{stems})\d+(?![^\W_])")
            text = pattern.sub(lambda match: self._hashed("host", match[0].lower()), text)
        if not names.words:
            return text
        replaced = {}
        for word in set(_TOKEN.findall(text)):
            if (places := names.hidden(word)) is not None:
                replaced[word] = self._replaced(word, places)
        return _TOKEN.sub(lambda match: replaced.get(match[0], match[0]), text) if replaced else text

    def _replaced(self, word: str, places: list[tuple[int, int, str, str]]) -> str:
        done, pieces = 0, []
        for start, end, kind, name in places:
            pieces += [word[done:start], self._hashed(kind, name)]
            done = end
        return "".join([*pieces, word[done:]])

    def _hardware(self, kind: str) -> Callable[[re.Match[str]], str]:
        return lambda match: self._hashed(kind, match[0])

    def _shared_folder(self, match: re.Match[str]) -> str:
        """Replace a folder in a file system of a cluster, unless its name is an ordinary word."""
        first = self._names.as_folder(match["first"])
        second = None if match["second"] is None else self._names.as_folder(match["second"])
        pieces = [match["folder"], match["first"] if first is None else self._hashed("folder", first), match["slash"]]
        if match["second"] is not None:
            pieces.append(match["second"] if second is None else self._hashed("folder", second))
        return "".join(pieces)

    def _bracketed(self, match: re.Match[str]) -> str:
        """Replace the stem of a list of hosts, such as node[1-4,7] of Slurm."""
        if match["stem"].lower() not in self._names.stems:
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
        if is_frame(value):
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
            if name in CLOSED_COLUMNS:
                continue
            # The names of axes and groups change only together with the mesh.
            is_of_mesh = renamed is not None and name in _MESH_COLUMNS
            hashed = {
                text: renamed.get(text, text) if renamed is not None and is_of_mesh else self.text(text)
                for text in texts_in(frame[name])
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
        if (digest := self._hashes.get(name)) is None:
            data = name.encode(errors="surrogatepass")
            digest = self._hashes[name] = hmac.new(self._key, data, hashlib.sha256).hexdigest()[:8]
        return digest


def _without_short_option(match: re.Match[str]) -> str:
    """Replace a password after ``-p``, unless the command before it has another meaning of this option."""
    if match["login"] is not None:
        return f"{match['login']}[secret]"
    if shapes.PARTITION_COMMAND.search(match.string, max(0, match.start() - _LONGEST_COMMAND), match.start()):
        return match[0]
    return f"{match['key'] or match['attached']}[secret]"


def redact(run: RunData, redactor: Redactor | None = None) -> RunData:
    """Return a copy of a run with hashes instead of names. See `RunData.redacted`."""
    redactor = redactor_of(run) if redactor is None else redactor
    document, results, samples = to_document(run), run.results, run.samples
    traffics = [traffic.name for traffic in run.plan.traffic if traffic is not None]
    mesh, renamed = redactor.mesh(run.mesh, [*run.plan.functions, *traffics])
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


def _are_equal(first: Any, second: Any) -> bool:
    try:
        return bool(first == second)
    except ValueError:  # arrays
        return False
