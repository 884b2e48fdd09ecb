"""Stands for a Python program that a nursery runs: see `warm`, which gives the words to start it.

The arguments are the folder of the nurseries, the interpreter, and the program's own words. Started
by ``python -I -S``; imports next to nothing, as every rank of every job waits for it.
"""

import _signal as signal
import _socket
import marshal
import os
import resource
import sys

RANKS = ("POPDIST_INSTANCE_INDEX", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")
LIMITS = sorted({n for name, n in vars(resource).items() if name.startswith("RLIMIT_")})
SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
NUMBER = 8  # bytes of every number that is sent


def main(folder, interpreter, *words):
    fds = _inherited()
    # No signal may be lost before there is a process to pass it to.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    nursery = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    rank = next((int(os.environ[name]) for name in RANKS if name in os.environ), 0)
    nurseries = os.listdir(folder)
    nursery.connect(f"{folder}/{rank % len(nurseries)}")
    _send(nursery, {"words": [interpreter, *words], "fds": fds, **state()}, fds)
    pid = _receive(nursery)
    if not pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.execv(interpreter, [interpreter, *words])  # noqa: S606 - no shell is the point
    for number in SIGNALS:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    status = _receive(nursery)
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left one, if any
        if -status in SIGNALS:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def state():
    """What a process has from the process that started it, descriptors apart."""
    mask = os.umask(0)
    os.umask(mask)
    return {
        "environ": dict(os.environb),
        "directory": os.getcwd(),
        "umask": mask,
        "cores": sorted(os.sched_getaffinity(0)),
        "limits": [(kind, resource.getrlimit(kind)) for kind in LIMITS],
    }


def _inherited():
    """The open descriptors, without that of the folder in which they are listed."""
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            os.fstat(fd)
        except OSError:
            continue
        found.append(fd)
    return found


def _send(nursery, request, fds):
    data = marshal.dumps(request)
    rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
    size = len(data).to_bytes(NUMBER, "big")
    nursery.sendmsg([size], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    nursery.sendall(data)


def _receive(nursery):
    data = b""
    while len(data) < NUMBER:
        part = nursery.recv(NUMBER - len(data))
        if not part:
            os.write(2, b"the nursery that ran this program has ended\n")
            os._exit(1)
        data += part
    return int.from_bytes(data, "big", signed=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
