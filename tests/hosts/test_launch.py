"""Ranks that `launch` starts on several hosts: how they start, what it reports before, and that nothing is left."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.network import HostError, Hosts, end_tree, wait_until
from tests.hosts.slurm import Slurm
from tests.hosts.sshd import accept_keys, refuse_keys

pytestmark = pytest.mark.long

LAUNCH = """
import sys
import meshlab as ml

hosts, n, options = eval(sys.argv[1]), int(sys.argv[2]), eval(sys.argv[3])
try:
    with ml.launch(n, hosts=hosts, **options) as engines:
        print([(info.rank, info.host) for info in engines.ranks])
        print("sums", engines.run(lambda comm: comm.all_reduce(comm.xp.ones(1)).item())["value"].tolist(), flush=True)
        engines.run(lambda comm: print("word-of-rank", comm.rank))
        for line in sys.stdin:
            try:
                print(eval(line), flush=True)
            except ml.MeshlabError as error:
                print("error:", error.message, flush=True)
except ml.errors.EngineError as error:
    print("error:", error.message, "|", error.hint)
"""

PLACES = "[(0, 'h1'), (1, 'h1'), (2, 'h2'), (3, 'h2')]"


class Client:
    """A process on the login host that has launched ranks, and evaluates lines."""

    def __init__(self, hosts: Hosts, choice: object, n: int = 4, **options: Any) -> None:
        options = {"folder": str(hosts.shared / "runs"), "timeout_s": 40.0} | options
        self.process = hosts["login"].start(
            [sys.executable, "-c", LAUNCH, repr(choice), str(n), repr(options)], stdin=-1
        )
        assert self.process.stdout is not None
        self.lines = self.process.stdout

    def expect(self, pattern: str) -> str:
        before = []
        for line in self.lines:
            if re.search(pattern, line):
                return line
            before.append(line)
        assert self.process.stderr is not None
        raise AssertionError("".join(before) + self.process.stderr.read())

    def evaluate(self, expression: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        line = self.lines.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(f"{self.process.stderr.read()} (exit code {self.process.wait()})")
        return line

    def close(self) -> str:
        output, errors = self.process.communicate(timeout=60)
        return output + errors


@pytest.fixture(autouse=True)
def _files_of_other_tests(ssh: Hosts) -> None:
    """Remove the files that programs of other modules left when their hosts dropped: they ran without `launch`."""
    for host in ssh.values():
        host.run(["sh", "-c", "rm -f /tmp/hydra_* /dev/shm/mpich_*"], check=True)


@pytest.fixture
def launch(ssh: Hosts) -> Iterator[Callable[..., Client]]:
    shutil.rmtree(ssh.shared / "runs", ignore_errors=True)  # of a test that has failed
    clients: list[Client] = []

    def start(choice: object, n: int = 4, **options: Any) -> Client:
        clients.append(Client(ssh, choice, n, **options))
        return clients[-1]

    yield start
    for client in clients:
        end_tree(client.process)


def leftovers(hosts: Hosts) -> list[str]:
    """Return what runs of meshlab have left on the hosts: processes, shared memory and temporary files."""
    remaining = []
    for name, host in hosts.items():
        remaining += [f"{name}: {line}" for line in host.processes() if re.search("python|mpiexec|hydra|srun", line)]
        for folder in ("/dev/shm", "/tmp"):
            files = host.run(["ls", folder], check=True).stdout.split()
            remaining += [f"{name}: {folder}/{file}" for file in files if re.search("meshlab|mpi|hydra|ucx|ofi", file)]
    runs = hosts.shared / "runs"
    return remaining + ([f"shared: {path.name}" for path in runs.iterdir()] if runs.is_dir() else [])


def assert_nothing_is_left(hosts: Hosts) -> None:
    try:
        wait_until(lambda: not leftovers(hosts), 40)
    except HostError:
        raise AssertionError("\n".join(leftovers(hosts))) from None


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param("slurm --nodes=2", marks=pytest.mark.full),
        pytest.param(["h1", "h2"], marks=pytest.mark.full),
        "ssh:h[1-2]",
    ],
)
def test_ranks_start_on_two_hosts_encrypted_and_leave_nothing(
    ssh: Hosts, slurm: Slurm, launch: Callable[..., Client], choice: object, tmp_path: Path
) -> None:
    with ssh.capture(tmp_path / "packets", "tcp"):
        client = launch(choice)
        assert client.expect("h1").strip() == PLACES
        assert client.expect("sums").strip() == "sums [4.0, 4.0, 4.0, 4.0]"
        assert client.evaluate("engines.client.curve_serverkey is not None").strip() == "True"
        client.close()
    assert client.process.returncode == 0
    assert b"word-of-rank" not in (tmp_path / "packets").read_bytes()
    assert_nothing_is_left(ssh)
    wait_until(lambda: not slurm.jobs())  # a job that has ended is completed a moment later


def test_in_an_allocation_the_ranks_use_its_hosts_without_a_queue(ssh: Hosts, slurm: Slurm) -> None:
    options = repr({"folder": str(ssh.shared / "runs")})
    command = [sys.executable, "-c", LAUNCH, "'slurm'", "4", options]
    done = ssh["login"].run(["salloc", "-N2", "-n4", *command])
    assert PLACES in done.stdout, done.stdout + done.stderr
    assert "sums [4.0, 4.0, 4.0, 4.0]" in done.stdout
    assert_nothing_is_left(ssh)
    wait_until(lambda: not slurm.jobs())  # a job that has ended is completed a moment later


def test_an_allocation_that_is_too_small_is_one_sentence(ssh: Hosts, slurm: Slurm) -> None:
    options = repr({"folder": str(ssh.shared / "runs")})
    command = [sys.executable, "-c", LAUNCH, "'slurm --nodes=2'", "4", options]
    done = ssh["login"].run(["salloc", "-N1", "-n2", *command])
    assert "error: Slurm rejects the job: Only allocated 1 nodes asked for 2 | use at most the hosts" in done.stdout
    assert done.stdout.count("\n") == 1, done.stdout
    assert_nothing_is_left(ssh)
    assert not slurm.jobs()


def test_ranks_start_again_after_one_has_ended(ssh: Hosts, launch: Callable[..., Client]) -> None:
    client = launch(["h1", "h2"])
    client.expect("sums")
    text = client.evaluate("engines.run(lambda comm: comm.rank == 3 and __import__('os')._exit(3))")
    assert re.match(r"error: rank 3 \(process \d+ on h2\) ended while running", text)
    assert client.evaluate("engines.restart()").strip() == "None"
    assert client.evaluate("engines.run(lambda comm: comm.rank)['value'].tolist()").strip() == "[0, 1, 2, 3]"
    client.close()
    assert_nothing_is_left(ssh)


def test_the_queue_is_visible_and_an_interrupt_cancels_the_job(ssh: Hosts, slurm: Slurm) -> None:
    ssh["login"].run(["sbatch", "-N3", "--exclusive", "--job-name=other", "--wrap", "sleep 300"], check=True)
    wait_until(lambda: any("other RUNNING" in job for job in slurm.jobs()))
    file = ssh.shared / "start_in_queue.py"
    folder = str(ssh.shared / "runs")
    file.write_text(f"import meshlab as ml\nml.launch(4, hosts='slurm --nodes=2', folder={folder!r}, timeout_s=20)\n")
    log = ssh.shared / "queue.log"
    # `script` is a terminal, which turns the character of Ctrl-C into a signal.
    client = ssh["login"].start(["script", "-qfc", f"{sys.executable} {file}", str(log)], stdin=-1)
    try:
        wait_until(lambda: log.exists() and "waits in the queue" in log.read_text(errors="replace"), 40)
        assert any("meshlab PENDING" in job for job in slurm.jobs())
        assert client.stdin is not None
        client.stdin.write("\x03")
        client.stdin.flush()
        client.communicate(timeout=30)
    finally:
        end_tree(client)
    text = log.read_text(errors="replace")
    assert re.search(r"(?s)job \d+ of Slurm waits in the queue \(\w+\) for .*\ss; an interrupt cancels it", text)
    assert "KeyboardInterrupt" in text, text
    assert not any("meshlab" in job for job in slurm.jobs())
    assert_nothing_is_left(ssh)


def test_a_site_replaces_the_script_of_the_job(ssh: Hosts, slurm: Slurm, tmp_path: Path) -> None:
    folder = ssh.shared / "templates"
    folder.mkdir()
    printed = ssh["login"].run(["meshlab", "launch", "--print", "slurm"], check=True).stdout
    (folder / "slurm.sh").write_text(printed.replace("--job-name=meshlab", "--job-name=ours --nodes=2"))
    options = repr({"folder": str(ssh.shared / "runs")})
    client = ssh["login"].start(
        [sys.executable, "-c", LAUNCH, "'slurm'", "4", options], env={"MESHLAB_TEMPLATES": str(folder)}, stdin=-1
    )
    try:
        assert client.stdout is not None
        assert client.stdout.readline().strip() == PLACES
        assert any("ours RUNNING" in job for job in slurm.jobs())
        client.communicate(timeout=60)
    finally:
        end_tree(client)
    (folder / "slurm.sh").write_text("#!/bin/sh\nexec srun {programm}\n")
    failed = ssh["login"].run(["meshlab", "launch", "--print", "slurm"], env={"MESHLAB_TEMPLATES": str(folder)})
    assert failed.returncode == 2
    assert "slurm.sh has the unknown field {programm}; choose among n, log, options, program" in failed.stderr


@pytest.mark.parametrize(
    ("choice", "options", "text"),
    [
        (["h1", "h9"], {}, "h9 cannot be reached over ssh: Could not resolve hostname h9: "),
        (["h9"], {}, "no address of h9 is known here"),
        (["h1", "h2"], {"folder": "/tmp/only-here"}, "h1 does not see the folder /tmp/only-here/meshlab-"),
        (["h1", "h2", "h3", "login", "h2"], {}, "hosts contains h2 twice"),
        (["h1", "-oProxyCommand=x"], {}, "'-oProxyCommand=x' is not a host name"),
        ("slrum", {}, "unknown hosts 'slrum' (did you mean 'slurm'?)"),
        ("slurm --partition=none", {}, "Slurm rejects the job: Batch job submission failed: Invalid partition name"),
        ("slurm --constraint=x", {}, "Slurm rejects the job: Batch job submission failed: Invalid feature"),
        ("slurm --nodelist=h9", {}, "Invalid node name specified | correct the options; `sinfo` lists its partitions"),
        ("slurm --nodes=9", {}, " of Slurm would never leave the queue (Partition"),
        ("slurm --nodes=2", {"folder": "/tmp/only-here"}, "before the ranks were ready"),
        (
            ["h1", "h2"],
            {"env": {"FI_TCP_IFACE": "eth9"}},
            " has no network interface eth9, which FI_TCP_IFACE",
        ),
    ],
)
def test_a_bad_choice_of_hosts_is_one_sentence_and_nothing_is_left(
    ssh: Hosts, slurm: Slurm, launch: Callable[..., Client], choice: object, options: dict[str, Any], text: str
) -> None:
    output = launch(choice, **options).close()
    assert output.startswith("error:"), output
    assert output.count("\n") == 1, output
    assert text in output
    assert_nothing_is_left(ssh)
    wait_until(lambda: not slurm.jobs())  # a job that has ended is completed a moment later


def test_a_refused_key_is_reported(ssh: Hosts, launch: Callable[..., Client]) -> None:
    refuse_keys(ssh)
    try:
        output = launch(["h1", "h2"]).close()
    finally:
        accept_keys(ssh)
    assert "error: h1 cannot be reached over ssh:" in output
    assert "Permission denied (publickey), and 1 more host has a problem | make `ssh h1 true` work without a" in output
    assert_nothing_is_left(ssh)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (Path("meshlab/base/_version.py"), "h2 has meshlab 0.0.7, and not "),
        (Path("meshlab/base/__init__.py"), "of h2 cannot import meshlab"),
    ],
)
@pytest.mark.parametrize("choice", [["h1", "h2"], "slurm --nodes=2"])
def test_another_environment_of_a_host_is_reported(
    ssh: Hosts, slurm: Slurm, launch: Callable[..., Client], choice: object, target: Path, text: str, tmp_path: Path
) -> None:
    from tests.hosts.network import ROOT

    other = ssh.shared / "other.py"
    other.write_text('__version__ = "0.0.7"\n' if "version" in target.name else 'raise ImportError("no")\n')
    ssh["h2"].run(["mount", "--bind", str(other), str(ROOT / target)], check=True)
    try:
        output = launch(choice).close()
    finally:
        ssh["h2"].run(["umount", str(ROOT / target)], check=True)
    assert text in output
    assert output.count("\n") == 1
    assert_nothing_is_left(ssh)
    wait_until(lambda: not slurm.jobs())  # a job that has ended is completed a moment later


@pytest.mark.parametrize("choice", [["h1", "h2"], "slurm --nodes=2"], ids=["ssh", "slurm"])
def test_a_host_without_the_interpreter_is_reported(
    ssh: Hosts, slurm: Slurm, launch: Callable[..., Client], choice: object
) -> None:
    empty = ssh.shared / "empty"
    empty.mkdir(exist_ok=True)
    prefix = Path(sys.executable).parent
    ssh["h2"].run(["mount", "--bind", str(empty), str(prefix)], check=True)
    try:
        output = launch(choice).close()
    finally:
        ssh["h2"].run(["umount", str(prefix)], check=True)
    assert (
        output == f"error: h2 has no {sys.executable} | install the same environment under the same path on all hosts\n"
    )
    assert_nothing_is_left(ssh)
    assert not slurm.jobs()


@pytest.mark.parametrize("choice", [["h1", "h2"], "slurm --nodelist=h1,h2"], ids=["ssh", "slurm"])
def test_a_switch_with_a_smaller_mtu_is_reported(
    ssh: Hosts, slurm: Slurm, launch: Callable[..., Client], choice: object
) -> None:
    ssh.set_switch_mtu("h2", 600)
    begin = "h2 does not answer over ssh within 40 s:" if isinstance(choice, list) else "login → h2:"
    output = launch(choice).close()
    fix = "set the same MTU on all hosts, and on the switches at least that"
    assert output == f"error: {begin} packets of 1500 bytes do not arrive, although smaller ones do | {fix}\n"
    ssh.set_switch_mtu("h2", 1500)
    assert_nothing_is_left(ssh)
    wait_until(lambda: not slurm.jobs())


def test_a_host_that_slurm_cannot_use_is_named(ssh: Hosts, slurm: Slurm, launch: Callable[..., Client]) -> None:
    slurm.change_key(ssh["h2"], is_same=False)
    try:
        output = launch("slurm --nodelist=h1,h2").close()
    finally:
        slurm.change_key(ssh["h2"], is_same=True)
    text = (
        "error: Slurm cannot start a rank on h2: Zero Bytes were transmitted or received | check slurmd, munge and the"
    )
    assert output.startswith(text), output
    assert output.count("\n") == 1, output
    assert_nothing_is_left(ssh)


def test_another_clock_of_a_host_is_a_warning(ssh: Hosts, launch: Callable[..., Client]) -> None:
    from meshlab.base._version import __version__
    from tests.hosts.network import ROOT

    other = ssh.shared / "clock.py"
    other.write_text(
        f"import time\n__version__ = {__version__!r}\nread = time.time\ntime.time = lambda: read() + 300\n"
    )
    target = str(ROOT / "meshlab/base/_version.py")
    ssh["h2"].run(["mount", "--bind", str(other), target], check=True)
    try:
        client = launch(["h1", "h2"])
        client.expect("sums")
        output = client.close()
    finally:
        ssh["h2"].run(["umount", target], check=True)
    text = r"UserWarning: the clock of h2 is (300\.\d|299\.\d) s ahead of that of this host, so the times"
    assert len(re.findall(text, output)) == 1, output
    assert_nothing_is_left(ssh)


def test_a_host_with_fewer_gpus_than_ranks_is_reported(ssh: Hosts, launch: Callable[..., Client]) -> None:
    gpus = {"h1": 2, "h2": 1}
    for host, n in gpus.items():
        folders = " ".join(f"/proc/driver/nvidia/gpus/{index}" for index in range(n))
        ssh[host].run(["sh", "-ec", f"mount -t tmpfs none /proc/driver; mkdir -p {folders}"], check=True)
    try:
        output = launch(["h1", "h2"], backend="nccl").close()
    finally:
        for host in gpus:
            ssh[host].run(["umount", "/proc/driver"], check=True)
    fix = "start one rank per GPU, on more hosts, or choose another backend"
    assert output == f"error: h2 has 1 GPU, but gets 2 ranks | {fix}\n"
    assert_nothing_is_left(ssh)


def test_an_address_that_the_hosts_do_not_reach_is_named(ssh: Hosts) -> None:
    options = repr({"folder": str(ssh.shared / "runs")})
    done = ssh["login"].run(
        [sys.executable, "-c", LAUNCH, "['h1', 'h2']", "4", options], env={"MESHLAB_ADDRESS": "127.0.0.1"}
    )
    assert "h1 does not reach the client at 127.0.0.1: Connection refused" in done.stdout
    assert "set MESHLAB_ADDRESS to the address of this host in their network" in done.stdout
    assert_nothing_is_left(ssh)


@pytest.mark.parametrize("choice", [["h1", "h2"], "slurm --nodes=2"], ids=["ssh", "slurm"])
@pytest.mark.parametrize("victim", ["client", "controller", "step", "link"])
def test_nothing_is_left_after_a_fault(
    ssh: Hosts, slurm: Slurm, launch: Callable[..., Client], choice: object, victim: str
) -> None:
    client = launch(choice, deadline_s=10.0)
    client.expect("sums")
    login = ssh["login"]
    if victim == "client":
        login.run(["pkill", "-KILL", "-f", "hosts, n, options = eval"], check=True)
    elif victim == "controller":
        login.run(["pkill", "-KILL", "-f", "_lifeline controller"], check=True)
    elif victim == "step":
        ssh["h2"].run(["pkill", "-KILL", "-f", "^slurmstepd|hydra_pmi_proxy"], check=True)
    else:
        ssh["h2"].set_link("down")
    if victim != "client":
        text = client.evaluate("engines.run(lambda comm: comm.all_reduce(comm.xp.ones(1)).item())['value'].tolist()")
        # Ranks whose proxy or step was killed can still reach each other.
        assert text.startswith("error:") or victim == "step", text
        if victim == "link":
            assert "h2 does not answer: ranks 2, 3" in text
        client.close()
    wait_until(lambda: not [line for line in leftovers(ssh) if not line.startswith("shared")], 60)
    ssh["h2"].set_link("up")
    assert_nothing_is_left(ssh)
    # Slurm waits for a host that was unreachable.
    wait_until(lambda: not slurm.jobs(), 120)


@pytest.mark.parametrize("choice", [["h1", "h2"], "slurm --nodes=2"], ids=["ssh", "slurm"])
def test_ranks_start_again_on_the_hosts_that_are_left(
    ssh: Hosts, slurm: Slurm, launch: Callable[..., Client], choice: object
) -> None:
    client = launch(choice, deadline_s=10.0)
    client.expect("sums")
    assert client.evaluate("engines.state").strip() == "ready"
    ssh["h2"].set_link("down")
    text = client.evaluate("engines.run(lambda comm: comm.all_reduce(comm.xp.ones(1)).item())")
    assert "h2 does not answer: ranks 2, 3" in text
    assert client.evaluate("engines.restart(hosts='left', mesh='node=2, local=2')").strip() == (
        "error: node=2, local=2 has 4 ranks, but there are 2 engines"
    )
    assert client.evaluate("engines.restart(hosts='left', mesh='node=-1, local=2')").strip() == "None"
    places = client.evaluate("[(info.rank, info.host) for info in engines.ranks]").strip()
    assert places == "[(0, 'h1'), (1, 'h1')]"
    sums = "engines.run(lambda comm: comm.all_reduce(comm.xp.ones(1)).item())['value'].tolist()"
    assert client.evaluate(sums).strip() == "[2.0, 2.0]"
    assert client.evaluate("engines.restart()").strip() == "None"  # on the same hosts
    assert client.evaluate("len(engines.ranks), engines.world_size").strip() == "(2, 2)"
    assert "h2 does not answer, so the engines have 2 ranks" in client.close()
    ssh["h2"].set_link("up")
    assert_nothing_is_left(ssh)
    wait_until(lambda: not slurm.jobs(), 120)


@pytest.mark.full
def test_ranks_of_gloo_have_the_order_of_the_hosts(ssh: Hosts, launch: Callable[..., Client]) -> None:
    pytest.importorskip("torch")
    client = launch(["h2", "h1"], backend="gloo")
    assert client.expect("h1").strip() == "[(0, 'h2'), (1, 'h2'), (2, 'h1'), (3, 'h1')]"
    client.close()


@pytest.mark.full
def test_the_first_host_can_be_left_out_and_a_host_that_is_back_is_used_by_all(
    ssh: Hosts, launch: Callable[..., Client]
) -> None:
    client = launch("ssh:h[1-3]", 5, deadline_s=10.0)  # two ranks, two, and one
    client.expect("sums")
    assert client.evaluate("engines.state").strip() == "ready"
    ssh["h1"].set_link("down")
    assert "h1 does not answer: ranks 0, 1" in client.evaluate("engines.run(lambda comm: comm.barrier())")
    assert "h1 cannot be reached over ssh" in client.evaluate("engines.restart()")
    ssh["h1"].set_link("up")
    assert client.evaluate("engines.restart(hosts='left')").strip() == "None"
    assert client.evaluate("engines.world_size").strip() == "5"
    ssh["h1"].set_link("down")
    assert "h1 does not answer: ranks 0, 1" in client.evaluate("engines.run(lambda comm: comm.barrier())")
    assert client.evaluate("engines.restart(hosts='left')").strip() == "None"
    places = client.evaluate("[(info.rank, info.host) for info in engines.ranks]").strip()
    assert places == "[(0, 'h2'), (1, 'h2'), (2, 'h3')]"
    for host in ("h2", "h3"):
        ssh[host].set_link("down")
    assert "error: " in client.evaluate("engines.run(lambda comm: comm.barrier())")
    assert client.evaluate("engines.restart(hosts='left')").strip() == "error: none of the hosts answers: h2, h3"
    client.close()
    for host in ("h1", "h2", "h3"):
        ssh[host].set_link("up")
    assert_nothing_is_left(ssh)
