"""Completion scripts for shells, made from the table of options.

The scripts are self-contained: no key press starts the launcher.
"""

from __future__ import annotations

from popdist.poprun.options.table import OPTIONS
from popdist.poprun.options.types import FLAG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from popdist.poprun.options.types import Option

_BASH = """\
# Completion of poprun in bash: eval "$(poprun --completion bash)"
_poprun() {
    local cur=${COMP_WORDS[COMP_CWORD]} option= word= i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $word == = ]]; then    # bash has cut --option=value at the sign
            continue
        elif [[ -n $option ]]; then
            option=
        elif [[ $word == -?* && $word != -- ]]; then
            case $word in
            @FLAGS@) ;;
            -?*=*) ;;
            *) option=$word ;;
            esac
        else                         # the program: the rest belongs to it
            [[ $word == -- ]] && ((i++))
            _poprun_program $i
            return
        fi
    done
    [[ $cur == = ]] && cur=
    case $option in
    '')
        if [[ $cur == -* ]]; then
            COMPREPLY=($(compgen -W '@NAMES@' -- "$cur"))
        else
            COMPREPLY=($(compgen -c -- "$cur"))
            _poprun_files -f
        fi
        ;;
@VALUES@
    esac
}
_poprun_files() {
    local line
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen "$1" -- "$cur")
    compopt -o filenames 2>/dev/null
}
_poprun_program() {
    if declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif ((COMP_CWORD == $1)); then
        COMPREPLY=($(compgen -c -- "$cur"))
    else
        _poprun_files -f
    fi
}
complete -F _poprun poprun
"""

_ZSH = """\
#compdef poprun
# Completion of poprun in zsh: eval "$(poprun --completion zsh)", after compinit
_poprun() {
    _arguments -S \\
@OPTIONS@
        '(-)1:program:_command_names -e' \\
        '*::argument:_normal'
}
if [[ $funcstack[1] == _poprun ]]; then
    _poprun "$@"
else
    compdef _poprun poprun
fi
"""

_BASH_ACTIONS = {
    "file": "_poprun_files -f",
    "directory": "_poprun_files -d",
    "host": 'COMPREPLY=($(compgen -A hostname -- "$cur"))',
}
_ZSH_ACTIONS = {"file": "_files", "directory": "_files -/", "host": "_hosts"}


def completion_script(shell: str) -> str:
    """The completion script for "bash" or "zsh"."""
    return _bash() if shell == "bash" else _zsh()


def _spellings(option: Option) -> list[str]:
    return [f"--{option.name}", *option.aliases]


def _bash() -> str:
    flags = [name for option in OPTIONS if option.kind is FLAG for name in _spellings(option)]
    names = [f"--{option.name}" for option in OPTIONS]
    names += [alias for option in OPTIONS for alias in option.aliases if alias.startswith("--")]
    values: dict[str, list[str]] = {}
    for option in OPTIONS:
        kind = option.kind
        if kind.choices:
            action = f"COMPREPLY=($(compgen -W '{' '.join(kind.choices)}' -- \"$cur\"))"
        else:
            action = _BASH_ACTIONS.get(kind.completes, "")
        if action:
            values.setdefault(action, []).extend(_spellings(option))
    cases = [f"    {'|'.join(words)}) {action} ;;" for action, words in values.items()]
    return (
        _BASH.replace("@FLAGS@", "|".join(flags))
        .replace("@NAMES@", " ".join(names))
        .replace("@VALUES@", "\n".join(cases))
        .rstrip()
    )


def _zsh() -> str:
    lines = [f"        {_zsh_spec(option)} \\" for option in OPTIONS]
    return _ZSH.replace("@OPTIONS@", "\n".join(lines)).rstrip()


def _zsh_spec(option: Option) -> str:
    names = _spellings(option)
    help_text = option.help
    for character in "\\[]:'":
        help_text = help_text.replace(character, "'\\''" if character == "'" else f"\\{character}")
    value = "" if option.kind is FLAG else f":{option.name}:{_zsh_action(option)}"
    # --option=value and --option value; one-dash names take the next word, or it attached (-Hh0).
    marked = [
        name if option.kind is FLAG else f"{name}=" if name.startswith("--") else f"{name}+"
        for name in names
    ]
    others = "*" if option.repeatable else f"({' '.join([*names, *_excluded(option)])})"
    if len(marked) == 1:
        return f"'{others}{marked[0]}[{help_text}]{value}'"
    return f"'{others}'{{{','.join(marked)}}}'[{help_text}]{value}'"


def _excluded(option: Option) -> list[str]:
    return [f"--{option.excludes}"] if option.excludes else []


def _zsh_action(option: Option) -> str:
    if option.kind.choices:
        return f"({' '.join(option.kind.choices)})"
    return _ZSH_ACTIONS.get(option.kind.completes, " ")
