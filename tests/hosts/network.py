"""Several hosts on one machine: network namespaces with an sshd each, joined by a bridge.

Everything stays inside the machine. The file system is shared, so this environment is at the same
place on every host. Needs root, iproute2 and openssh-server.
"""

import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

PREFIX = "pophost"
BRIDGE = "popbridge0"
NETWORK = "10.77.31"
PROGRAMS = ("ip", "sshd", "ssh-keygen", "unshare")


def missing():
    """What this machine lacks, in words; empty where nothing is."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


class Hosts:
    """A number of hosts, as a context.

    Attributes:
        addresses: Their addresses.
        ssh_options: What ssh needs to reach them.
    """

    def __init__(self, folder, number=2):
        self._folder = Path(folder)
        self._number = number
        self._stack = ExitStack()
        self.addresses = [f"{NETWORK}.{11 + index}" for index in range(number)]
        self.ssh_options = (
            f"-i {self._folder}/key -o UserKnownHostsFile={self._folder}/known -o BatchMode=yes"
        )

    def __enter__(self):
        self._remove()  # what an earlier, killed run has left
        with ExitStack() as stack:
            stack.callback(self._remove)
            self._make_keys()
            run("ip", "link", "add", BRIDGE, "type", "bridge")
            run("ip", "addr", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
            run("ip", "link", "set", BRIDGE, "up")
            for index in range(self._number):
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
        network = f"{NETWORK}.0/24"
        return (
            f"--prefix {prefix} {agent} '{self.ssh_options}' {control} {network} "
            f"--mca btl_tcp_if_include {network}"
        )

    def _make_keys(self):
        for name in ("hostkey", "key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name))
        authorized = self._folder / "authorized"
        authorized.write_text((self._folder / "key.pub").read_text())
        authorized.chmod(0o600)
        kind, key = (self._folder / "hostkey.pub").read_text().split()[:2]
        known = "".join(f"{address} {kind} {key}\n" for address in self.addresses)
        (self._folder / "known").write_text(known)
        Path("/run/sshd").mkdir(exist_ok=True)

    def _start(self, index):
        name, address = f"{PREFIX}{index + 1}", self.addresses[index]
        outer, inner = f"popv{index + 1}", f"popi{index + 1}"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
        run("ip", "link", "set", outer, "master", BRIDGE, "up")
        run("ip", "link", "set", inner, "netns", name)
        for words in (
            ("link", "set", inner, "name", "eth0"),
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            run("ip", "netns", "exec", name, "ip", *words)
        settings = self._folder / f"sshd{index}.conf"
        settings.write_text(
            f"ListenAddress {address}\nHostKey {self._folder}/hostkey\n"
            f"PidFile {self._folder}/sshd{index}.pid\n"
            f"AuthorizedKeysFile {self._folder}/authorized\n"
            "StrictModes no\nUsePAM no\nPermitRootLogin yes\n"
            f"SetEnv TMPDIR={self._folder}\n"  # what killed daemons leave goes with the folder
        )
        # A host's name is its own only inside a namespace for it.
        start = f"hostname {name} && exec /usr/sbin/sshd -f {settings}"
        run("ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", start)

    def _remove(self):
        for index in range(self._number):
            name = f"{PREFIX}{index + 1}"
            inside = subprocess.run(
                ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
            )
            for pid in inside.stdout.split():
                subprocess.run(["kill", "-9", pid], check=False)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True, check=False)


def run(*words):
    """Runs a command that must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
