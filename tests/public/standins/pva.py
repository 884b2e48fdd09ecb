"""Takes the place of the reader of the compiler's reports, which a host does not write."""


class ProgramVisitor:
    """The base of classes that visit the programs of a report."""


def openReport(path):  # noqa: N802 - published
    """Opens a report, of which there is none."""
    raise FileNotFoundError(f"no report of a compiler: {path}")
