"""Several hosts on one machine: network namespaces with an sshd each, joined by a bridge.

Everything stays inside the machine. The file system is shared, so this environment is at the same
place on every host. Needs root, iproute2 and openssh-server.
"""

import fcntl
import os
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import gettempdir

from tests.distributed.warm import read_at_import

PROGRAMS = ("ip", "sshd", "ssh-keygen", "unshare", "nsenter")


@cache
def missing(programs=PROGRAMS):
    """What this machine lacks, in words; empty where nothing is."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = [name for name in programs if shutil.which(name, path=path) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    tried = "ip link add popbr type bridge && ip link add popv type veth peer name popw"
    # A container's root may be refused.
    done = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "sh", "-c", tried],
        env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stderr.strip()


@dataclass(frozen=True)
class Setup:
    """How one host differs from an ordinary one.

    Attributes:
        before: Shell commands that run in the host's own mount namespace before its sshd starts.
        environment: Variables of what is started over ssh.
        runs: Whether it has an sshd at all.
        admits: Whether its sshd knows the user's key.
        known: Whether its key is among the known ones.
    """

    before: str = "true"
    environment: str = ""
    runs: bool = True
    admits: bool = True
    known: bool = True


class Hosts:
    """A number of hosts, as a context.

    Args:
        folder: For keys and settings.
        number: How many.
        name: What their names begin with; short, and different for hosts that exist together.
        subnet: Their network is 10.77.<subnet>.0/24; different for hosts that exist together.
        setups: How single hosts differ, by their number from 0 on.

    Attributes:
        addresses: Their addresses.
        dead: The names of those that were killed.
        ssh_options: What ssh needs to reach them.
    """

    def __init__(self, folder, number=2, *, name="pophost", subnet=31, setups=None):
        self.folder = Path(folder)
        self.network = f"10.77.{subnet}"
        self.names = [f"{name}{index + 1}" for index in range(number)]
        self._bridge = f"popbr{subnet}"
        self._outer = [f"popv{subnet}x{index + 1}" for index in range(number)]
        self._setups = setups or {}
        self.dead = set()
        self._stack = ExitStack()
        self.addresses = [f"{self.network}.{11 + index}" for index in range(number)]
        self.ssh_options = (
            f"-i {self.folder}/key -o UserKnownHostsFile={self.folder}/known -o BatchMode=yes"
        )

    def __enter__(self):
        with ExitStack() as stack:
            # Another run of the tests on this machine may have hosts with these names.
            lock = stack.enter_context(Path(gettempdir(), f"{self._bridge}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._remove()  # what an earlier, killed run has left
            stack.callback(self._remove)
            self._make_keys()
            card = hardware_address(f"{self.network}.1")  # else one of its links'
            run("ip", "link", "add", self._bridge, "address", card, "type", "bridge")
            run("ip", "addr", "add", f"{self.network}.1/24", "dev", self._bridge)
            run("ip", "link", "set", self._bridge, "up")
            for index in range(len(self.names)):
                self._start(index)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def mpirun_options(self, mpirun):
        """Options by which an mpirun reaches these hosts over their own network."""
        prefix = Path(mpirun).parents[1]
        generation_5 = (prefix / "bin" / "prterun").exists()
        agent = "--prtemca plm_ssh_args" if generation_5 else "--mca plm_rsh_args"
        control = "--prtemca prte_if_include" if generation_5 else "--mca oob_tcp_if_include"
        network = f"{self.network}.0/24"
        return (
            f"--prefix {prefix} {agent} '{self.ssh_options}' {control} {network} "
            f"--mca btl_tcp_if_include {network}"
        )

    def cut(self, index):
        """Cuts a host's link; nothing more comes or goes, and nobody is told."""
        run("ip", "link", "set", self._outer[index], "down")

    def cut_to(self, index):
        """Loses all that is sent to a host, whose own words still arrive."""
        self._lead_astray(self.addresses[index], self._bridge)

    def cut_from(self, index):
        """Loses all that a host sends, which still hears all."""
        self._lead_astray(f"{self.network}.1", "eth0", self._inside(index))

    def _lead_astray(self, address, device, inside=()):
        nobody = ("lladdr", "02:00:00:00:00:01", "nud", "permanent")
        run(*inside, "ip", "neigh", "replace", address, "dev", device, *nobody)

    def mend(self, index):
        """Mends a host's link."""
        run("ip", "link", "set", self._outer[index], "up")

    def kill(self, index):
        """Ends all of a host at once: its link first, so that no farewell gets out."""
        self.cut(index)
        self.dead.add(self.names[index])
        self._kill_processes(index)

    def start_again(self, index):
        """Starts a host that was killed, without the files that were in use then."""
        self.dead.discard(self.names[index])
        for path in self.folder.glob(f"*.{self.names[index]}.*"):
            shutil.rmtree(path)
        subprocess.run(["ip", "netns", "del", self.names[index]], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._outer[index]], capture_output=True, check=False)
        self._start(index)

    def execute(self, index, command):
        """Starts a shell command on a host, with its name and mounts, and waits for it."""
        inside = f"hostname {self.names[index]} && {command}"
        run(*self._inside(index), "unshare", "--uts", "--mount", "sh", "-c", inside)

    def _inside(self, index):
        # Unlike `ip netns exec` this leaves /sys as it is, whose control groups Slurm wants to see.
        return "nsenter", f"--net=/run/netns/{self.names[index]}"

    def _make_keys(self):
        for name in ("hostkey", "key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name))
        for name, content in (
            ("authorized", (self.folder / "key.pub").read_text()),
            ("nobody", ""),
        ):
            (self.folder / name).write_text(content)
            (self.folder / name).chmod(0o600)
        kind, key = (self.folder / "hostkey.pub").read_text().split()[:2]
        known = "".join(
            f"{address} {kind} {key}\n"
            for index, address in enumerate(self.addresses)
            if self._setup(index).known
        )
        (self.folder / "known").write_text(known)
        Path("/run/sshd").mkdir(exist_ok=True)

    def _setup(self, index):
        return self._setups.get(index, Setup())

    def _start(self, index):
        name, outer, inner = self.names[index], self._outer[index], f"{self._outer[index]}i"
        address, setup = self.addresses[index], self._setup(index)
        run("ip", "netns", "add", name)
        card = hardware_address(self.addresses[index])
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "address", card)
        run("ip", "link", "set", outer, "master", self._bridge, "up")
        run("ip", "link", "set", inner, "netns", name)
        for words in (
            ("link", "set", inner, "name", "eth0"),
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            run(*self._inside(index), "ip", *words)
        settings = self.folder / f"sshd{index}.conf"
        settings.write_text(
            f"ListenAddress {address}\nHostKey {self.folder}/hostkey\n"
            f"PidFile {self.folder}/sshd{index}.pid\n"
            f"AuthorizedKeysFile {self.folder}/{'authorized' if setup.admits else 'nobody'}\n"
            "StrictModes no\nUsePAM no\nPermitRootLogin yes\n"
            # What killed daemons leave goes with the folder.
            f"SetEnv TMPDIR={self.folder} {_as_here()} {setup.environment}\n"
        )
        if setup.runs:
            # A host's name is its own only inside a namespace for it.
            self.execute(index, f"{{ {setup.before}; }} && exec /usr/sbin/sshd -f {settings}")

    def _kill_processes(self, index):
        listing = ["ip", "netns", "pids", self.names[index]]
        # Whoever sees another end may start something meanwhile.
        while pids := subprocess.run(
            listing, capture_output=True, text=True, check=False
        ).stdout.split():
            subprocess.run(["kill", "-9", *pids], capture_output=True, check=False)

    def _remove(self):
        for index, name in enumerate(self.names):
            self._kill_processes(index)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        # Connections that were cut keep a namespace alive for a while, and its link with it.
        for link in (*self._outer, self._bridge):
            subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)


def hardware_address(address):
    """The card of a host, which it still has when it comes back: others remember it."""
    return "02:00:" + ":".join(f"{int(number):02x}" for number in address.split("."))


def _as_here():
    """Variables for sshd's configuration, so that programs start warm on hosts too."""
    here = read_at_import(os.environb).items()
    return " ".join(f'"{name}={value}"' for name, value in here if name != "LD_LIBRARY_PATH")


def run(*words):
    """Runs a command that must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
