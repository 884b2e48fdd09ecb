"""Causes and fixes: programs with the SDK's names."""

REMEDIES = {
    "PD366": (
        (
            "`popdist-sdk custom-ops` was given the path of a file that it did not write, or of a "
            "file that cannot be written."
        ),
        "Remove the file, or give the path that the program loads.",
    ),
    "PD450": (
        "The program uses a feature that only an IPU or its compiler has.",
        (
            "The message has the reason and an alternative. [Compatibility](compatibility.md) "
            "lists all such names; `popdist-sdk check train.py` finds them without running the "
            "program."
        ),
    ),
    "PD451": (
        "The SDK's documentation and popdist do not have this name.",
        "See the most similar name in the message, and [compatibility](compatibility.md).",
    ),
    "PD452": (
        (
            "The SDK's names cannot be enabled here: this Python is not in a virtual environment, "
            "or the SDK itself is installed."
        ),
        "Use a virtual environment, or `python -m popdist.sdk train.py` for one program.",
    ),
    "PD453": (
        (
            "`popdist-sdk check` cannot read a file: it does not exist, or is not Python of this "
            "version."
        ),
        "Correct the path. Convert Python 2 programs to Python 3 first.",
    ),
}
