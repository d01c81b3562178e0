"""The part of `meshlab doctor --hosts` that runs on each host: it describes the host, and tries to reach the others.

It reads requests from its input and writes answers, one JSON document a line, and ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from meshlab.base._backends import BACKENDS, PROCESS_BACKENDS, package_version
from meshlab.base._documents import parse_own_json
from meshlab.base._errors import MeshlabError
from meshlab.base._version import __version__
from meshlab.engines._packets import answer_datagrams, largest_size, lost_size
from meshlab.engines._rank_hosts import missing_interface, network_choice, network_interfaces

_CONNECT_S = 5.0
_MOST_PATHS = 16  # that are tried at the same time
_LARGE = 1 << 18  # bytes, more than the buffers of a connection whose large packets are lost
_PACKAGES = ("mpi4py", "mpich", "torch", "nccl4py", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "ipyparallel", "pyzmq")
_BRIDGES = re.compile(r"^(lo|docker|br-|virbr|veth|cni|flannel|podman)")


def describe(port: int) -> dict[str, Any]:
    """Return the facts about this host."""
    import psutil

    states = psutil.net_if_stats()
    interfaces = network_interfaces()
    return {
        "name": socket.gethostname(),
        "port": port,
        "python": platform.python_version(),
        "meshlab": __version__,
        "packages": {name: text for name in _PACKAGES if (text := package_version(name)) != "unknown"},
        "interfaces": [[name, address, states[name].mtu] for name, address in interfaces if address],
        "rdma": [name for name, address in interfaces if not address],
        "chosen": {backend: network_choice(backend) for backend in PROCESS_BACKENDS},
        "missing": {backend: missing_interface(backend) for backend in PROCESS_BACKENDS},
    }


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request."""
    if request["kind"] == "time":
        return {"time": time.time()}
    if request["kind"] == "folder":
        return {"sees": Path(request["file"]).exists()}
    with ThreadPoolExecutor(_MOST_PATHS) as pool:
        paths = list(pool.map(_path_to, request["peers"]))
    return {"paths": paths, "interface": _interface_to_rank_0(request["first"])}


def _path_to(peer: Mapping[str, Any]) -> dict[str, Any]:
    """Return how this host reaches another one, and what is wrong."""
    name, addresses = peer["name"], list(peer["addresses"])
    path: dict[str, Any] = {"to": name, "problem": "", "kind": "", "interface": "", "address": ""}
    try:
        resolved = str(socket.getaddrinfo(name, peer["port"], socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError:
        path |= {"kind": "names", "problem": f"does not know the name {name}"}
        resolved = addresses[0] if addresses else ""
    if addresses and resolved not in addresses:
        path |= {"kind": "names", "problem": f"takes {name} for {resolved}, which is not an address of {name}"}
        resolved = addresses[0]
    path["address"] = resolved
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((resolved, 9))  # a datagram socket sends nothing here
        except OSError as error:
            return path | {"kind": "routes", "problem": f"has no route to {name} at {resolved}: {error.strerror}"}
        source = probe.getsockname()[0]
    interfaces = {address.split("/")[0]: interface for interface, address in network_interfaces() if address}
    path["interface"] = interfaces.get(source, "lo")
    try:
        line = socket.create_connection((resolved, peer["port"]), timeout=_CONNECT_S)
    except OSError as error:
        reason = error.strerror or str(error)
        return path | {"kind": "ports", "problem": f"cannot connect to port {peer['port']} of {name}: {reason}"}
    with line:
        size = lost_size(resolved, peer["port"], peer["mtus"].get(resolved, _LARGE))
        if size:
            largest = largest_size(resolved, peer["port"], size)
            problem = (
                f"→ {name}: packets of {size} bytes do not arrive, although both interfaces have at least this MTU; "
                f"the largest that arrive have {largest} bytes"
            )
            return path | {"kind": "mtu", "problem": problem}
        try:
            line.sendall(bytes(_LARGE))
            if line.recv(1):
                return path
            reason = "the connection was closed"
        except OSError as error:
            reason = error.strerror or str(error)
    problem = f"connects to {name}, but {_LARGE >> 10} KiB do not arrive there: {reason}"
    return path | {"kind": "mtu", "problem": problem}


def _interface_to_rank_0(first: str) -> str:
    """Return the interface that Gloo would use for a rank 0 at an address, or what is wrong."""
    from meshlab.comm.backends._gloo_world import _interface_to

    try:
        return _interface_to(first)
    except MeshlabError as error:
        return error.summary


def network_of(backend: str, facts: Mapping[str, Any], interface: str) -> str:
    """Return the network that a backend would use on a host, whose `interface` leads to rank 0."""
    chosen, library = facts["chosen"].get(backend), BACKENDS[backend]
    if library.on_gpus:
        return str(chosen or _nccl_network(facts))
    if library.starts == "mpiexec":
        return str(chosen or "its library chooses")
    return interface


def _nccl_network(facts: Mapping[str, Any]) -> str:
    """Return the network that NCCL would use without variables: RDMA, or the first interface."""
    if facts["rdma"]:
        return f"RDMA {', '.join(facts['rdma'])}"
    # NCCL takes ib*, then interfaces that are neither the loopback device nor of Docker.
    names = [name for name, *_ in facts["interfaces"] if not _BRIDGES.match(name)]
    return next((name for name in names if name.startswith("ib")), names[0] if names else "lo")


def _receive(server: socket.socket) -> None:
    """Answer every connection that has sent a large message with one byte."""
    while True:
        line, _ = server.accept()
        threading.Thread(target=_receive_from, args=(line,), daemon=True).start()


def _receive_from(line: socket.socket) -> None:
    with line:
        line.settimeout(2 * _CONNECT_S)
        left = _LARGE
        try:
            while left > 0 and (part := line.recv(left)):
                left -= len(part)
            if not left:
                line.sendall(b"k")
        except OSError:
            return


def main() -> None:
    """Describe this host, and answer requests until the input ends."""
    with socket.create_server(("", 0)) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        threading.Thread(target=_receive, args=(server,), daemon=True).start()
        with contextlib.suppress(OSError):  # another program has this port, and the sizes of packets stay unknown
            datagrams.bind(server.getsockname()[:2])
            threading.Thread(target=answer_datagrams, args=(datagrams,), daemon=True).start()
        _write(describe(server.getsockname()[1]))
        for line in sys.stdin:
            _write(answer(parse_own_json(line)))
        sys.stdout.flush()
        os._exit(0)  # threads may wait for others


def _write(document: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
