"""``Options.Distributed``: which process of how many this is."""

from __future__ import annotations

import os

from popdist.backend import launch
from popdist_torch.errors import OptionError
from popdist_torch.options.option_methods import names, whole_number, with_effect, without_effect
from popdist_torch.options.storage import OptionsDict


class DistributedOptions(OptionsDict):
    """The place of this process among those that train one model.

    A fresh object describes the process that mpirun started, as PopTorch's does, or that another
    launcher did (see `popdist.backend.launch`). Reading variables is the published meaning of
    `setEnvVarNames`, so this class reads the environment.
    """

    path = "Distributed."

    def __init__(self) -> None:
        self._chosen = False
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        here = launch()
        self._place(here.rank or 0, here.size or 1)

    @with_effect("the process trains alone")
    def disable(self) -> DistributedOptions:
        """Makes this process stand alone.

        Returns:
            These options.
        """
        return self.configureProcessId(0, 1)

    @with_effect("the place among the processes of the job")
    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> DistributedOptions:
        """Takes the place from environment variables.

        Args:
            var_num_processes: Variable that holds the number of processes; 1 where it is unset.
            var_process_id: Variable that holds this process's index; 0 where it is unset.

        Returns:
            These options.

        Raises:
            OptionError: The variables hold no valid place.
        """
        self._place(_number(var_process_id, default=0), _number(var_num_processes, default=1))
        # Variables that nobody has set are no choice to train alone.
        self._chosen = var_num_processes in os.environ
        return self

    @with_effect("the place among the processes of the job")
    def configureProcessId(self, process_id: int, num_processes: int) -> DistributedOptions:
        """Sets the place.

        Args:
            process_id: Index of this process, from 0.
            num_processes: Number of processes.

        Returns:
            These options.

        Raises:
            OptionError: The index does not exist among so many processes.
        """
        self._place(process_id, num_processes)
        self._chosen = True
        return self

    def _place(self, process_id: int, num_processes: int) -> None:
        whole_number("the number of processes", num_processes, least=1)
        if whole_number("the process id", process_id, least=0) >= num_processes:
            raise OptionError(
                "PD300",
                "the process id must be smaller than the number of processes",
                value=f"process {process_id} of {num_processes}",
            )
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)

    @without_effect
    def IPUoFConfigFiles(self, files: str | list[str]) -> DistributedOptions:
        """Files that describe the partition of an IPU system.

        Args:
            files: Paths, or a pattern.

        Returns:
            These options.
        """
        paths = [files] if isinstance(files, str) else names("IPUoFConfigFiles", files)
        self.set(ipuof_configs=dict(enumerate(paths)))
        return self

    @property
    def chosen(self) -> bool:
        """Whether the program has set the place, rather than a launcher."""
        return bool(self._chosen)

    @property
    def processId(self) -> int:
        """Index of this process."""
        return int(self("distributed_process_id"))

    @property
    def numProcesses(self) -> int:
        """Number of processes."""
        return int(self("num_distributed_processes"))


def _number(variable: str, *, default: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise OptionError(
            "PD300",
            f"environment variable {variable} does not hold a number",
            value=text,
            accepted="a whole number",
        )
    return int(text)
