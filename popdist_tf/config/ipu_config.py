"""`IPUConfig`: what a program wants of its devices, and the checks before it takes effect."""

from __future__ import annotations

from popdist_tf.config.nested import Category
from popdist_tf.config.tables import ATTRIBUTES
from popdist_tf.errors import ConfigConflictError, ConfigError


class IPUConfig(Category):
    """The configuration of the system.

    Attributes are set by assignment, nested ones through their categories, as in
    ``config.matmuls.clear_pass_type = True``. What concerns an IPU alone is kept and has no effect
    on a host; `docs/tensorflow.md` lists what acts.
    """

    def __init__(self) -> None:
        super().__init__(ATTRIBUTES, "IPUConfig")

    def num_devices(self) -> int:
        """How many devices the configuration takes: those of all replicas of this process.

        Returns:
            The count; 1 where the configuration selects none.
        """
        if isinstance(self.auto_select_ipus, int):
            return self.auto_select_ipus
        if self.auto_select_ipus:
            return sum(self.auto_select_ipus)
        return 1 if isinstance(self.select_ipus, int) else max(1, len(self.select_ipus))

    def check(self) -> None:
        """Checks attributes against each other, as the original does when it converts them.

        Raises:
            ConfigConflictError: Both selectors are set.
            ConfigError: Devices are selected twice, or the process index is not one of the count.
        """
        selected = self.select_ipus
        if selected not in ([], ()) and self.auto_select_ipus not in ([], ()):
            raise ConfigConflictError(
                "PD401",
                "both auto_select_ipus and select_ipus are set",
                value=f"auto_select_ipus={self.auto_select_ipus!r} select_ipus={selected!r}",
                accepted="one of the two",
            )
        if not isinstance(selected, int) and len(set(selected)) != len(selected):
            raise ConfigError("PD401", "select_ipus names a device twice", value=selected)
        distribution = self.experimental.multi_replica_distribution
        count, index = distribution.process_count, distribution.process_index
        if count and not 0 <= index < count:
            raise ConfigError(
                "PD401",
                "process_index is not one of the job's processes",
                value=index,
                accepted=f"0 to {count - 1}, for process_count {count}",
            )

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Makes TensorFlow use the devices that the configuration selects.

        Args:
            device: Accepted as published.

        Raises:
            ConfigConflictError: The attributes contradict each other.
            TooLateError: TensorFlow has started with other devices.
        """
        from popdist_tf.config.system import configure_ipu_system

        configure_ipu_system(self, device)
