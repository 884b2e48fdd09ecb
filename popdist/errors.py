"""The errors a user sees: what was wrong, the value seen, what is accepted, and a hint.

Every error carries a stable code (``PD012``) by which the troubleshooting page is keyed. The codes
of the core, the launcher, the Horovod build and the SDK's names are listed here; each adapter
declares its own beside its error classes.
"""

from __future__ import annotations

CODES: dict[str, str] = {
    # Contract between launcher and instance (popdist.popdist_core).
    "PD001": "a POPDIST_* variable is malformed",
    "PD002": "POPDIST_* variables contradict each other or are incomplete",
    "PD003": "a function needs the same number of replicas in every instance",
    "PD004": "an argument does not fit the job",
    "PD005": "a call contradicts what the launcher decides",
    "PD006": "the rank or size that another launcher has set is not valid",
    "PD007": "the instances of a job differ",
    # Host communication (popdist.backend).
    "PD010": "no usable Horovod is installed",
    "PD011": "Horovod sees another job than the launcher started",
    "PD012": "host communication is not initialised",
    "PD013": "Horovod is running with another framework's binding",
    "PD014": "the options describe another job than that of this process",
    # Exchange of gradients (popdist.exchange).
    "PD020": "buffers do not fit the plan of an exchange",
    "PD021": "an exchange was aborted because another instance ended or failed",
    "PD022": "a gradient changed after it was given to the exchange",
    # What a job trains (popdist.comparison, popdist.checks.trained).
    "PD023": "a job trains another model than its program alone",
    "PD024": "a job and its program alone cannot be compared",
    "PD025": "the instances of a job have trained without exchanging anything (a warning)",
    # Launcher (popdist.poprun).
    "PD100": "an option is unknown, ambiguous or malformed",
    "PD101": "options contradict each other",
    "PD102": "the program is missing or cannot be started",
    "PD103": "a host list is malformed",
    "PD104": "no usable mpirun was found",
    "PD105": "the job does not fit the hosts",
    "PD106": "a configuration file cannot be read or written",
    "PD107": "a job may not run as root",
    "PD108": "a job cannot be written as a Kubernetes manifest",
    "PD109": "a folder of the launcher cannot be made",
    "PD110": "a file or folder for logs, results or timelines cannot be written",
    "PD111": "a keyword or a value of popdist.run is not accepted",
    "PD112": "a function or a value cannot be sent to another process",
    "PD113": "a function that popdist.run called raised an exception in an instance",
    "PD114": "a job of popdist.run ended without the results of all instances",
    "PD115": "the result of an instance cannot be sent back to popdist.run",
    "PD116": "poprun was started inside a job",
    "PD117": "the limit of open files is too low for a job",
    "PD118": "the limit of processes is too low for a job",
    "PD119": "the working directory does not exist",
    "PD140": "a folder has no files of a run, or the report cannot be written",
    "PD120": "hosts cannot be reached, or differ from this host",
    "PD121": "the job and its Slurm allocation contradict each other",
    "PD122": "nodes of a job (--nnodes) do not meet",
    "PD123": "the key of a job's nodes (--nnodes) is missing, too short or not secret",
    "PD126": "no control groups can be made for a job (--control-groups)",
    "PD130": "a partition does not exist or cannot be created",
    "PD131": "a partition's devices are in use",
    "PD133": "a partition does not fit the job",
    # Horovod build (popdist.horovod_build).
    "PD200": "the Horovod build cannot start on this machine",
    "PD201": "the Horovod source cannot be downloaded, or is not the expected one",
    "PD202": "compiling Horovod failed",
    "PD203": "the built Horovod does not work",
    "PD204": "no MPI that Horovod and the launcher can share was found",
    "PD205": "the built wheel could not be installed",
    "PD206": "a wheel of Horovod cannot be used on other machines",
    "PD207": "a folder or page has no wheel of Horovod for this environment",
    # Names of the IPU SDK (popdist.sdk).
    "PD366": "a library for custom operators cannot be written",
    "PD450": "a name of the IPU SDK is refused on a host",
    "PD451": "the IPU SDK publishes no such name",
    "PD452": "the names of the IPU SDK cannot be enabled here",
    "PD453": "a program cannot be checked for names of the IPU SDK",
}
"""The codes of this package with their meaning; codes are never reused."""

RETIRED: dict[str, str] = {
    "PD132": "a note: a V-IPU server on the network is not an error",
    "PD304": "PD007",
    "PD334": "PD335",
    "PD337": "PD335",
    "PD338": "PD335",
    "PD413": "PD007",
    "PD526": "PD525",
    "PD568": "PD007",
}
"""Codes that are given no more, with the code or the words that took their place."""

_declared = dict(CODES)


def declare(codes: dict[str, str]) -> dict[str, str]:
    """Makes an adapter's codes known.

    Args:
        codes: Each code with its meaning.

    Returns:
        ``codes``.

    Raises:
        ValueError: A code is malformed, retired, or was given before with another meaning.
    """
    for code, meaning in codes.items():
        if not (len(code) == 5 and code[:2] == "PD" and code[2:].isdecimal() and meaning):  # noqa: PLR2004 - PDnnn
            raise ValueError(f"{code!r} is not a code of the form PDnnn with a meaning")
        if code in RETIRED:
            raise ValueError(f"{code} is retired: {RETIRED[code]} took its place")
        if _declared.setdefault(code, meaning) != meaning:
            raise ValueError(f"{code} already means: {_declared[code]}")
    return codes


class PopdistError(Exception):
    """Base of every error that popdist raises on purpose.

    Args:
        code: Stable code, in `CODES` here or in an adapter's ``errors.py``.
        what: What was wrong, one sentence without a final full stop.
        value: The value that was seen, where there is one.
        accepted: What would have been accepted.
        hint: The exact fix to try.
    """

    # TensorFlow's AutoGraph and Keras let errors with these marks through as they are, and wrap
    # others in errors of their own.
    ag_pass_through = True
    _keras_call_info_injected = True

    def __init__(
        self,
        code: str,
        what: str,
        *,
        value: object = None,
        accepted: str | None = None,
        hint: str | None = None,
    ) -> None:
        if code not in _declared:
            raise KeyError(f"{code} is not a declared error code")
        self.code = code
        self.what = what
        self.value = value
        self.accepted = accepted
        self.hint = hint
        super().__init__(self._text())

    def __reduce__(self) -> tuple[object, ...]:
        # By its fields: an exception is otherwise made again from its text alone, which fails.
        return _restore, (type(self), self.args, self.__dict__)

    def _text(self) -> str:
        lines = [f"[{self.code}] {self.what}"]
        if self.value is not None:
            lines.append(f"  seen:     {self.value!r}")
        if self.accepted is not None:
            lines.append(f"  accepted: {self.accepted}")
        if self.hint is not None:
            lines.append(f"  hint:     {self.hint}")
        return "\n".join(lines)


def _restore(
    kind: type[PopdistError], args: tuple[object, ...], fields: dict[str, object]
) -> object:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class ContractError(PopdistError, ValueError):
    """The ``POPDIST_*`` variables of this process are malformed or contradictory."""


class NonUniformError(PopdistError, RuntimeError):
    """A function that is defined only for equal numbers of replicas was called without them."""


class ArgumentError(PopdistError, ValueError):
    """An argument of a popdist function does not fit the job it runs in."""


class BackendError(PopdistError, RuntimeError):
    """Host communication is missing, not initialised, or not the launcher's."""


class UsageError(PopdistError, ValueError):
    """The launcher's command line, or a file it names, is wrong."""


class LaunchError(PopdistError, RuntimeError):
    """The job could not be started on this machine or on one of its hosts."""


class BuildError(PopdistError, RuntimeError):
    """Horovod could not be built or does not work."""
