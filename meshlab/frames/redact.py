"""Redaction: replace host names, user names, addresses and UUIDs in a run by hashes before sharing it."""

from __future__ import annotations

import getpass
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from meshlab.frames.rundata import RunData
from meshlab.frames.store import from_document, to_document

__all__ = ["Redactor", "redact", "redactor_of"]

_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b")
_HOME = re.compile(r"(/home/|/Users/)[^/\s:]+")


class Redactor:
    """Replaces names by keyed hashes. The key is random and not stored, so a hash cannot be reversed by trying names.

    Parameters
    ----------
    hosts : iterable of str
        Host names to replace, also without their domains.
    users : iterable of str, default ()
        User names to replace.

    Examples
    --------
    >>> redactor = Redactor(["node7"])
    >>> text = redactor.text("node7, GPU 0: node7 answers, node77 does not")
    >>> "node7 " in text, "node77" in text, text.count("host-")
    (False, True, 2)
    """

    def __init__(self, hosts: Iterable[str], users: Iterable[str] = ()) -> None:
        self._key = secrets.token_bytes(16)
        names = {name: "host" for host in hosts for name in (host, host.partition(".")[0]) if name}
        names |= {user: "user" for user in users if user and user != "root"}
        self._kinds = names
        # The longest name first, because the alternatives of a regular expression are tried in order: otherwise node1
        # would be replaced within node1.cluster.example, and the domain would remain.
        longest_first = sorted(map(re.escape, names), key=len, reverse=True)
        # Letters, digits, underscores and dashes are part of a name, so that node7 does not match in node77.
        self._names = re.compile(rf"(?<![\w-])(?:{'|'.join(longest_first) or '(?!)'})(?![\w-])")

    def text(self, text: str) -> str:
        """Return a string in which hashes replace the names."""
        text = _UUID.sub(lambda found: f"{found[1]}-{self._hash(found[0])}", text)
        text = _HOME.sub(r"\1user", text)
        text = self._names.sub(lambda found: f"{self._kinds[found[0]]}-{self._hash(found[0])}", text)
        return _ADDRESS.sub(lambda found: f"address-{self._hash(found[0])}", text)

    def anything(self, value: Any) -> Any:
        """Return nested dicts, lists and strings in which hashes replace the names. Other values are unchanged."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.anything(name): self.anything(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.anything(item) for item in value)
        return value

    def _hash(self, name: str) -> str:
        return hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()[:8]


def redact(run: RunData) -> RunData:
    """Return a copy of a run with hashes instead of names. See `RunData.redacted`."""
    redactor = redactor_of(run.hosts)
    frames = []
    for frame in (run.results, run.samples):
        frame.attrs = redactor.anything(frame.attrs)
        frames.append(frame)
    results, samples = frames
    results["stop_reason"] = results["stop_reason"].map(redactor.text, na_action="ignore").astype("string")
    return from_document(redactor.anything(to_document(run)), run.plan, run.mesh, results, samples)


def redactor_of(hosts: Iterable[str]) -> Redactor:
    """Return a redactor for these hosts and for the user of this process."""
    return Redactor(hosts, [_user(), Path.home().name])


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user ID without an entry in the password database, as in some containers
        return ""
