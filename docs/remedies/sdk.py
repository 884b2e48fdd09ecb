"""Causes and fixes: programs with the SDK's names."""

REMEDIES = {
    "PD450": (
        "The program uses something that only an IPU, or its compiler, can do.",
        (
            "The message says why, and what to use. [Compatibility](compatibility.md) lists all "
            "such names; `popdist-sdk check train.py` finds them without running the program."
        ),
    ),
    "PD451": (
        "The name is neither in the SDK's references nor here.",
        "See the nearest name in the message, and [compatibility](compatibility.md).",
    ),
    "PD452": (
        (
            "The SDK's names cannot be made permanent here: this Python is the system's, or the "
            "SDK itself is installed."
        ),
        "Use a virtual environment, or `python -m popdist.sdk train.py` for one program.",
    ),
    "PD453": (
        (
            "`popdist-sdk check` cannot read a file: it does not exist, or is not Python of this "
            "version."
        ),
        "Programs of Python 2 have to be converted first.",
    ),
}
