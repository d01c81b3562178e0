"""The hosts of `launch`, and the scripts that start the ranks on them, which a site can replace."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Formatter

from meshlab.base._errors import EngineError, did_you_mean
from meshlab.base._files import decode_text, read_file
from meshlab.topology.readers._hostlists import expand_hosts

KINDS = ("slurm", "ssh")

FOLDER_OF_TEMPLATES = "MESHLAB_TEMPLATES"
"""The environment variable with the folder of a site's templates."""

_FORMS = "'slurm', 'slurm --nodes=2', a list of host names, or 'ssh:node0[1-4]'"

TEMPLATES = {
    "slurm": """\
#!/bin/sh
#SBATCH --job-name=meshlab
#SBATCH --ntasks={n}
#SBATCH --output={log}
#SBATCH --open-mode=append
# Inside an allocation, this script runs without sbatch. {options} are those of hosts="slurm --nodes=2" then.
exec srun --mpi=pmi2 --ntasks={n} --overlap --kill-on-bad-exit=1 {options} {program}
""",
    "ssh": """\
#!/bin/sh
# {address} is that of this host, as the others reach it. {ssh} is a script that calls ssh for mpiexec.
exec {mpiexec} -launcher ssh -launcher-exec {ssh} -rmk user -localhost {address} \\
    -hosts {hosts} -ppn {per_host} -n {n} {program}
""",
}
"""The script of each kind. The fields in braces are replaced."""

_FIELDS = {
    "slurm": ("n", "log", "options", "program"),
    "ssh": ("n", "hosts", "per_host", "address", "mpiexec", "ssh", "log", "program"),
}


@dataclass(frozen=True)
class HostChoice:
    """The hosts on which ranks start, and how."""

    kind: str
    names: tuple[str, ...] = ()
    """The hosts, in order. Empty if the scheduler chooses them."""
    options: tuple[str, ...] = ()
    """The options of the scheduler."""

    @classmethod
    def read(cls, hosts: str | Sequence[str]) -> HostChoice:
        """Read the argument `hosts` of `launch`."""
        if isinstance(hosts, str):
            try:
                kind, *options = shlex.split(hosts) or [""]
            except ValueError as error:
                raise EngineError(
                    f"hosts {hosts!r} cannot be read: {error}", hint="close its quotation marks"
                ) from None
            if kind == "slurm":
                return cls("slurm", options=tuple(options))
            if not hosts.startswith("ssh:"):
                similar = did_you_mean(hosts.partition(":")[0], KINDS)
                raise EngineError(f"unknown hosts {hosts!r}{similar}", hint=f"pass {_FORMS}")
            names = [name.strip() for name in expand_hosts(hosts.removeprefix("ssh:"))]
        else:
            names = list(hosts)
        for name in names:
            # A name that begins with a dash would be an option of ssh.
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][\w.@:-]*", name):
                raise EngineError(f"{name!r} is not a host name", hint=f"pass {_FORMS}")
        if not names:
            raise EngineError("hosts is empty", hint=f"pass {_FORMS}")
        if len(set(names)) < len(names):
            name = next(name for name in names if names.count(name) > 1)
            raise EngineError(f"hosts contains {name} twice", hint="pass each host once; n is the number of all ranks")
        return cls("ssh", tuple(names))

    @property
    def argument(self) -> str | list[str]:
        """The argument `hosts` of `launch` that reads as this choice."""
        return list(self.names) if self.kind == "ssh" else shlex.join([self.kind, *self.options])

    def only(self, hosts: Sequence[str]) -> HostChoice:
        """Return the choice of some of the hosts."""
        if self.kind == "ssh":
            return replace(self, names=tuple(hosts))
        # The last option of a name counts. Slurm's names of hosts have no domain.
        nodes = ",".join(host.partition(".")[0] for host in hosts)
        return replace(self, options=(*self.options, f"--nodelist={nodes}", f"--nodes={len(hosts)}"))

    def per_host(self, n: int) -> int:
        """Return the most ranks that a host gets, of `n`."""
        if n < len(self.names):
            raise EngineError(f"{n} ranks cannot use {len(self.names)} hosts", hint="pass fewer hosts, or a larger n")
        return -(-n // max(1, len(self.names)))


def read_template(kind: str) -> tuple[str, str]:
    """Return the script of a kind, and the file that it comes from, which is empty for that of meshlab."""
    folders = [os.environ.get(FOLDER_OF_TEMPLATES, ""), str(Path.home() / ".config" / "meshlab")]
    for folder in filter(None, folders):
        file = Path(folder) / f"{kind}.sh"
        # An empty one is just being written, by `meshlab launch --print slurm >FILE`.
        if file.is_file() and (template := decode_text(read_file(file))).strip():
            _check_fields(kind, template, file)
            return template, str(file)
    return TEMPLATES[kind], ""


def _check_fields(kind: str, template: str, file: Path) -> None:
    try:
        fields = {field for _, field, _, _ in Formatter().parse(template) if field is not None}
    except ValueError as error:
        raise EngineError(f"{file}: {error}", hint="write {{ and }} for braces of the shell") from error
    unknown = sorted(fields.difference(_FIELDS[kind]))
    if unknown:
        raise EngineError(
            f"{file} has the unknown field {{{unknown[0]}}}",
            hint=f"choose among {', '.join(_FIELDS[kind])}, and write {{{{ and }}}} for braces of the shell",
        )
    if "program" not in fields:
        raise EngineError(f"{file} does not contain {{program}}, the command of a rank", hint="add it to the last line")
