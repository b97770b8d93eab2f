"""A Slurm cluster of one machine, with accounting or without, in a folder of its own.

Daemons of Debian's packages run as this user, on ports of their own, and end with the block.
"""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from patience import until

NEEDS = ("munged", "slurmctld", "slurmd", "squeue", "sbatch")
ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacctmgr")

SLURM = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={controller}
SlurmdPort={node}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,batch_sched_delay=1
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
MpiDefault=none
{accounting}
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

SLURMDBD = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdPort={accounts}
SlurmUser={user}
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=root
StorageLoc=accounts
"""

KEEPS = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={accounts}
AccountingStoragePass={folder}/munge.socket
"""


def missing(*, accounting: bool) -> list[str]:
    """Programs that a cluster needs and that are not here."""
    wanted = NEEDS + ACCOUNTING * accounting
    return [name for name in wanted if shutil.which(name, path=_path()) is None]


@contextlib.contextmanager
def cluster(folder: Path, *, accounting: bool) -> Iterator[dict[str, str]]:
    """The environment in which this machine's commands of Slurm ask the cluster.

    Args:
      folder: for its files; its name must be short, it holds sockets.
      accounting: whether slurmdbd keeps accounts, in a MariaDB of its own.
    """
    ports = dict(zip(("controller", "node", "accounts", "database"), _ports(4), strict=True))
    named = {
        "folder": folder,
        "host": socket.gethostname().split(".")[0],
        "user": pwd.getpwuid(os.getuid()).pw_name,
        **ports,
    }
    keeps = KEEPS.format(**named) if accounting else "AccountingStorageType=accounting_storage/none"
    (folder / "slurm.conf").write_text(SLURM.format(accounting=keeps, **named))
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(folder / "slurm.conf")}
    with contextlib.ExitStack() as daemons:

        def start(*command: str) -> None:
            log = (folder / f"{command[0]}.out").open("wb")
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            daemons.callback(log.close)
            daemons.callback(process.wait)
            daemons.callback(process.terminate)

        def answers(*command: str) -> bool:
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            return done.returncode == 0 and bool(done.stdout.strip())

        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        places = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "log-file")]
        start("munged", "--foreground", "--force", f"--key-file={key}",
              f"--seed-file={folder}/munge.seed", *places)  # fmt: skip
        until(lambda: (folder / "munge.socket").exists())
        if accounting:
            _database(folder, ports["database"], environment, start)
            config = folder / "slurmdbd.conf"
            config.write_text(SLURMDBD.format(**named))
            config.chmod(0o600)
            start("slurmdbd", "-D")
            until(lambda: answers("sacctmgr", "--noheader", "--parsable2", "list", "user"))
        start("slurmctld", "-D")
        start("slurmd", "-D", "-N", named["host"])
        until(lambda: answers("sinfo", "--noheader", "--states=idle"))
        yield environment
        subprocess.run(["scancel", "--user", str(os.getuid())], env=environment, check=False)


def _database(folder: Path, port: int, environment: dict[str, str], start) -> None:
    data = folder / "data"
    user = pwd.getpwuid(os.getuid()).pw_name
    subprocess.run(
        ["mariadb-install-db", "--no-defaults", f"--datadir={data}", f"--user={user}",
         "--auth-root-authentication-method=normal", "--skip-test-db"],
        env=environment, check=True, capture_output=True,
    )  # fmt: skip
    start("mariadbd", "--no-defaults", f"--datadir={data}", f"--user={user}", f"--port={port}",
          "--bind-address=127.0.0.1", f"--socket={folder}/db.socket",
          "--innodb-buffer-pool-size=64M")  # fmt: skip
    until(lambda: _listens(port))


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _ports(count: int) -> list[int]:
    """Ports that nobody listens on, each another."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _path() -> str:
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
