"""Link domains: how instances are divided over them. Pure."""

from __future__ import annotations

from popdist.errors import UsageError


def check_domains(num_ilds: int, num_instances: int) -> None:
    """Checks that instances can be divided over the link domains.

    Args:
        num_ilds: The link domains.
        num_instances: The instances.

    Raises:
        UsageError: They cannot: an instance lies within one domain, and domains are alike.
    """
    if num_instances % num_ilds:
        raise UsageError(
            "PD101",
            "the instances cannot be divided evenly over the link domains",
            value=f"--num-ilds {num_ilds} --num-instances {num_instances}",
            accepted="a multiple of --num-ilds as --num-instances",
            hint=f"--num-instances {num_ilds * -(-num_instances // num_ilds)}",
        )
