"""``Options``: the settings that a PopTorch program makes before it builds loaders and models.

Options can also be read from files and from JSON.
"""

from __future__ import annotations

import ast
import copy
import json
import os
from enum import Enum
from inspect import getattr_static
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from popdist.errors import PopdistError
from popdist_torch.errors import ConfigFileError, OptionError, UnknownOptionError
from popdist_torch.options import enums, strategies
from popdist_torch.options.device_only import (
    DeviceOnlyOptions,
    JitOptions,
    PopartOptions,
    PrecisionOptions,
    TensorLocationSettings,
    TensorLocationsOptions,
)
from popdist_torch.options.distributed import DistributedOptions
from popdist_torch.options.enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from popdist_torch.options.host import HostOptions, TrainingOptions
from popdist_torch.options.placement import Placement
from popdist_torch.options.strategies import ExecutionStrategy, PipelinedExecution

if TYPE_CHECKING:
    from typing_extensions import Self

    from popdist_torch.options.storage import OptionsDict


# Options from text: a file of calls, or JSON. Both are parsed, and nothing in them is executed.
#
# A file holds the text behind ``options.`` in a program: calls with literal arguments, members of
# enumerations, torch's types, and objects that options take (strategies, location settings). The
# original runs such files as Python. This reader knows no other names, imports nothing, and calls
# only methods of options and those constructors.


GROUPS = ("Training", "Precision", "Distributed", "TensorLocations", "Jit", "_Popart")
"""Names under which the groups of options are reached."""

_ENUMS: dict[str, type[Enum]] = {
    name: kind
    for name, kind in vars(enums).items()
    if isinstance(kind, type) and issubclass(kind, Enum)
}
_CONSTRUCTORS: dict[str, Any] = {
    "TensorLocationSettings": TensorLocationSettings,
    **{
        name: getattr(strategies, name)
        for name in strategies.__all__
        if name not in ("AutoStage", "ExecutionStrategy")
    },
}


def load(options: Options, path: str | Path) -> None:
    """Makes the calls that a file lists; ``#`` starts a comment.

    Raises:
        ConfigFileError: It is not a list of calls, or a call is not accepted; names line and file.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError("PD300", f"cannot read {path}", value=str(error)) from error
    try:
        # Lines may be indented as they would be in a program.
        flat = "\n".join(line.lstrip() for line in text.splitlines())
        statements = ast.parse(flat, filename=str(path)).body
    except SyntaxError as error:
        raise _wrong(path, error.lineno, f"invalid syntax: {error.msg}") from error
    line = 0
    try:
        for statement in statements:
            line = statement.lineno
            _call(options, statement.value if isinstance(statement, ast.Expr) else statement)
    except (PopdistError, TypeError, ValueError, LookupError) as error:
        raise _wrong(path, line, str(error)) from error


def load_json(options: Options, text: str) -> None:
    """Makes the calls that a JSON object lists.

    Keys are paths such as ``"Training.gradientAccumulation"``; a value is one argument or a list of
    them. Strings such as ``"OutputMode.All"`` stand for members of enumerations.

    Raises:
        OptionError: It is not such an object, or names no method of options.
    """
    try:
        calls = json.loads(text)
    except ValueError as error:
        raise OptionError("PD300", "options are not valid JSON", value=str(error)) from error
    if not isinstance(calls, dict):
        raise OptionError("PD300", "options in JSON are an object of calls", value=calls)
    for path, value in calls.items():
        *groups, name = path.split(".")
        receiver: OptionsDict = options
        for group in groups:
            receiver = _group(receiver, group, options)
        arguments = value if isinstance(value, list) else [value]
        _method(receiver, name)(*map(_from_json, arguments))


def _wrong(path: str | Path, line: int | None, what: str) -> ConfigFileError:
    return ConfigFileError(
        "PD300",
        f"line {line} of {path}: {what}",
        accepted="one call a line without the name of the options, such as "
        "Training.gradientAccumulation(4)",
    )


def _call(options: Options, node: ast.AST) -> Any:
    if not isinstance(node, ast.Call):
        raise OptionError("PD300", "this line is not a call", value=ast.unparse(node))
    receiver: OptionsDict
    if isinstance(node.func, ast.Name):
        receiver, name = options, node.func.id
    elif isinstance(node.func, ast.Attribute):
        receiver, name = _receiver(options, node.func.value), node.func.attr
    else:
        raise OptionError("PD300", "this line does not set an option", value=ast.unparse(node))
    return _method(receiver, name)(*_arguments(node)[0], **_arguments(node)[1])


def _receiver(options: Options, node: ast.AST) -> OptionsDict:
    if isinstance(node, ast.Name):
        return _group(options, node.id, options)
    return _call(options, node)  # type: ignore[no-any-return]  # a chain of calls


def _group(receiver: OptionsDict, name: str, options: Options) -> OptionsDict:
    if receiver is not options or name not in GROUPS:
        raise OptionError("PD300", "no such group of options", value=name, accepted=str(GROUPS))
    return getattr(options, name)  # type: ignore[no-any-return]


def _method(receiver: OptionsDict, name: str) -> Any:
    if not hasattr(getattr_static(receiver, name, None), "effect"):
        raise OptionError(
            "PD300", f"{type(receiver).__name__} has no such method", value=receiver.path + name
        )
    return getattr(receiver, name)


def _arguments(node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
    keywords = {word.arg: _value(word.value) for word in node.keywords if word.arg is not None}
    return [_value(argument) for argument in node.args], keywords


def _value(node: ast.AST) -> Any:
    if isinstance(node, ast.List | ast.Tuple):
        items = [_value(item) for item in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_value(key): _value(value) for key, value in pairs if key is not None}
    if isinstance(node, ast.Call):
        return _constructed(node)
    if isinstance(node, ast.Name | ast.Attribute):
        return _named(ast.unparse(node))
    return ast.literal_eval(node)  # refuses all but literals


def _constructed(node: ast.Call) -> Any:
    args, kwargs = _arguments(node)
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        made, name = _constructed(node.func.value), node.func.attr
        method = None if name.startswith("_") else getattr(made, name, None)
    else:
        name = ast.unparse(node.func).removeprefix("poptorch.")
        method = _CONSTRUCTORS.get(name)
    if not callable(method):
        raise OptionError("PD300", "this is nothing that options take", value=name)
    return method(*args, **kwargs)


def _named(text: str) -> Any:
    path = text.removeprefix("poptorch.")
    kind, _, member = path.partition(".")
    if kind in _ENUMS and member in _ENUMS[kind].__members__:
        return _ENUMS[kind][member]
    if kind == "torch" and isinstance(getattr(torch, member, None), torch.dtype):
        return getattr(torch, member)
    raise OptionError(
        "PD300",
        "this argument is not a plain value",
        value=text,
        accepted="literals, members of poptorch's enumerations, torch's types",
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if isinstance(value, str) and value.removeprefix("poptorch.").partition(".")[0] in _ENUMS:
        return _named(value)
    return value


class Options(HostOptions, DeviceOnlyOptions):
    """Options of a model and of the loaders that feed it.

    Every method returns the options, so that calls chain. Once a `popdist_torch.DataLoader` or a
    wrapped model has taken them they are frozen; `clone` gives a copy that can be changed.

    Methods that act on a host are in one base class, those that only an IPU uses in the other. The
    published environment variables apply to every fresh object: ``POPTORCH_DEFAULT_OPTIONS``
    (as for `from_json`) and ``POPTORCH_CACHE_DIR`` (as for `enableExecutableCaching`).
    """

    def __init__(self) -> None:
        self._training = TrainingOptions()
        self._precision = PrecisionOptions()
        self._distributed = DistributedOptions()
        self._locations = TensorLocationsOptions()
        self._jit = JitOptions()
        self._Popart = PopartOptions()
        # Facts that loaders leave for the first-step check of the model they feed.
        self._data_facts: list[str] = []
        super().__init__(
            replication_factor=1,
            input_group_size=1,
            input_cgt=CommGroupType.Consecutive,
            broadcast_buffers=True,
            device_iterations=1,
            log_dir=".",
            max_repeat_logs=4,
            auto_round_num_ipus=False,
            anchored_tensors={},
            output_mode=OutputMode.Default,
            output_return_period=1,
            connection_type=ConnectionType.Always,
            sync_pattern=SyncPattern.Full,
            available_memory_proportion={},
            execution_strategy=PipelinedExecution(),
        )
        if folder := os.environ.get("POPTORCH_CACHE_DIR"):
            self.enableExecutableCaching(folder)
        if defaults := os.environ.get("POPTORCH_DEFAULT_OPTIONS"):
            self.from_json(defaults)

    @property
    def Training(self) -> TrainingOptions:
        """Options that only training reads."""
        return self._training

    @property
    def Precision(self) -> PrecisionOptions:
        """Options of the device's arithmetic."""
        return self._precision

    @property
    def Distributed(self) -> DistributedOptions:
        """The place of this process among those that train one model."""
        return self._distributed

    @property
    def TensorLocations(self) -> TensorLocationsOptions:
        """Where an IPU keeps tensors."""
        return self._locations

    @property
    def _popart(self) -> PopartOptions:
        """The name of `_Popart` in SDK 3."""
        return self._Popart

    @property
    def _execution_strategy(self) -> ExecutionStrategy:
        return self("execution_strategy")  # type: ignore[no-any-return]  # checked when it was set

    @property
    def Jit(self) -> JitOptions:
        """How PopTorch builds its graph."""
        return self._jit

    def clone(self) -> Self:
        """A copy that can be changed.

        Returns:
            The copy, never frozen.
        """
        return copy.deepcopy(self)

    def loadFromFile(self, filepath: str | Path) -> Self:
        """Makes the calls that a file lists, one a line, without the name of the options.

        The file is parsed, never executed; see `popdist_torch.options.options`.

        Args:
            filepath: The file; ``#`` starts a comment.

        Returns:
            These options.

        Raises:
            ConfigFileError: A line is not a call that options accept; names line and file.
        """
        load(self, filepath)
        return self

    def from_json(self, string: str) -> Self:
        """Makes the calls that a JSON object lists.

        Args:
            string: Such as ``{"deviceIterations": 4, "outputMode": "OutputMode.All"}``; a list
                stands for several arguments.

        Returns:
            These options.

        Raises:
            OptionError: It is not such an object, or names no method of options.
        """
        load_json(self, string)
        return self

    def toDict(self) -> dict[str, Any]:
        """All options and those of the groups as plain data.

        Returns:
            Keys with values.

        Raises:
            OptionError: The output mode is still ``Default``, which only a model resolves.
        """
        if self.defaultOutputMode():
            raise OptionError(
                "PD300",
                "toDict needs a resolved output mode",
                value=OutputMode.Default,
                hint="call outputMode(...) first",
            )
        merged = super().toDict()
        for group in self._groups():
            for key, value in group.toDict().items():
                merged[key] = value
        return merged

    @property
    def placement(self) -> Placement:
        """Which replicas of the job this process runs.

        Processes of a plain job all have this process's number of replicas; only the launcher has
        the numbers if they differ.
        """
        here, local = self.Distributed, int(self("replication_factor"))
        return Placement(
            first_replica=here.processId * local,
            local_replicas=local,
            total_replicas=here.numProcesses * local,
            process_id=here.processId,
            num_processes=here.numProcesses,
        )

    def resolved(self, default: OutputMode) -> Self:
        """A copy for a model's own use, with the output mode settled and everything frozen.

        Args:
            default: What ``Default`` means to the model.

        Returns:
            The frozen copy.
        """
        own = self.clone()
        if own.defaultOutputMode():
            own.set(output_mode=default)
        own._data_facts = self._data_facts  # noqa: SLF001 - loaders built later add to it too
        own._freeze()  # noqa: SLF001
        return own

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except UnknownOptionError as error:
            groups = () if name.startswith("_") else GROUPS
            group = next((one for one in groups if hasattr(getattr(self, one), name)), None)
            if group is None:
                raise
            raise UnknownOptionError(
                "PD300",
                f"{type(self).__name__} has no option {name!r} itself",
                hint=f"it is one of opts.{group}: opts.{group}.{name}",
            ) from error

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        clone = super().__deepcopy__(memo)
        clone.__dict__["_data_facts"] = []
        return clone

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Options):
            return NotImplemented
        return super().__eq__(other) and self._groups() == other._groups()

    __hash__ = None  # type: ignore[assignment]  # equal options can be changed to differ

    def __repr__(self) -> str:
        lines = [super().__repr__()[:-1]]
        for name in GROUPS:
            indented = repr(getattr(self, name)).replace("\n", "\n    ")
            lines.append(f"    {name}: {indented}")
        return "\n".join(lines) + ")"

    def _groups(self) -> list[OptionsDict]:
        return [getattr(self, name) for name in GROUPS]

    def _freeze(self) -> None:
        super()._freeze()
        for group in self._groups():
            group._freeze()  # noqa: SLF001 - groups freeze with the whole

    def _unfreeze(self) -> None:
        super()._unfreeze()
        for group in self._groups():
            group._unfreeze()  # noqa: SLF001
