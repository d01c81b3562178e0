"""Fixtures with hosts. A test that uses one is skipped without root, network namespaces or the programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hosts import slurm as slurm_programs
from tests.hosts import sshd as sshd_programs
from tests.hosts.network import Hosts, missing_parts
from tests.hosts.slurm import Slurm
from tests.hosts.sshd import start_sshd

NAMES = ("login", "h1", "h2", "h3")


def require(*programs: str) -> None:
    """Skip the test if hosts with these programs cannot be built."""
    missing = missing_parts(*programs)
    if missing:
        pytest.skip(missing)


@pytest.fixture(scope="session")
def host_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """The hosts login, h1, h2 and h3, for all tests. Prefer `hosts`, which mends them."""
    require()
    with Hosts(NAMES, tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


@pytest.fixture
def hosts(host_set: Hosts) -> Iterator[Hosts]:
    """The hosts login, h1, h2 and h3. After the test, their links work again."""
    yield host_set
    for name, host in host_set.items():
        host_set.set_switch_mtu(name, 1500)
        host.set_link("up")
        host.shape()


@pytest.fixture(scope="session")
def _slurm_set(host_set: Hosts) -> Slurm:
    require(*slurm_programs.PROGRAMS)
    slurm = Slurm(host_set)
    slurm.start()
    return slurm


@pytest.fixture
def slurm(hosts: Hosts, _slurm_set: Slurm) -> Iterator[Slurm]:
    """Slurm on `hosts`: login has the controller, and h1, h2 and h3 run jobs. Jobs of the test end with it."""
    yield _slurm_set
    for name, host in hosts.items():
        hosts.set_switch_mtu(name, 1500)
        host.set_link("up")
    _slurm_set.cancel_all()


@pytest.fixture(scope="session")
def _ssh_set(host_set: Hosts) -> None:
    require(*sshd_programs.PROGRAMS)
    start_sshd(host_set)


@pytest.fixture
def ssh(hosts: Hosts, _ssh_set: None) -> Hosts:
    """The hosts, each of which reaches the others by ssh."""
    return hosts


@pytest.fixture
def make_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Hosts]]:
    """Builds a set of hosts of its own, with names that the test chooses. They end with the test."""
    require()
    sets: list[Hosts] = []

    def make(*names: str, keep: tuple[Path, ...] = ()) -> Hosts:
        sets.append(Hosts(names, tmp_path_factory.mktemp("hosts"), keep=keep).__enter__())
        return sets[-1]

    yield make
    for hosts in reversed(sets):
        hosts.close()
