"""Refuses sessions of TensorFlow 1 that cannot reach the workers of their strategy.

Under a strategy over gRPC, a session runs on a server of its own worker, which the program starts.
Without one, TensorFlow either does not find the worker's devices, and names an operation that the
program has never heard of; or it waits for the server for ever.
"""

from __future__ import annotations

import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tensorflow.python.client.session import BaseSession

from popdist_tf.errors import StrategyError
from popdist_tf.together.sessions import surround_session

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS = 5.0
_HINT = (
    "start the server of this worker before: config = strategy.update_config_proto("
    "tf.compat.v1.ConfigProto()); server = tf.distribute.Server(resolver.cluster_spec(), "
    "job_name=resolver.task_type, task_index=resolver.task_id, config=config); then "
    "tf.compat.v1.Session(server.target, config=config)"
)


def require_server(strategy: str, own_address: str) -> None:
    """Makes sessions refuse graphs of a cluster that they cannot reach; safe to call again.

    Args:
        strategy: The name of the strategy, for messages.
        own_address: ``host:port`` of this worker.
    """
    checked: WeakSet[Any] = WeakSet()

    def run(known: Any, session: Any, *args: Any, **kwargs: Any) -> Any:
        if session not in checked:
            _require(strategy, session.sess_str, own_address, lambda: _has_workers(session.graph))
            checked.add(session)
        return known(*args, **kwargs)

    surround_session(BaseSession, "_do_run", run, "servers")


def _require(strategy: str, target: Any, own: str, has_workers: Callable[[], bool]) -> None:
    address = (target or b"").decode().removeprefix("grpc://")
    if not address and has_workers():
        raise StrategyError(
            "PD412",
            f"a session of TensorFlow 1 under {strategy} is not connected to the cluster",
            value="a session without a target",
            accepted=f"a session whose target is the server of this worker (grpc://{own})",
            hint=_HINT,
        )
    if address == own and not _is_open(own):
        raise StrategyError(
            "PD412",
            f"a session of TensorFlow 1 under {strategy} would wait for ever for the server of "
            "this worker, which is not running",
            value=f"grpc://{address}",
            accepted="the target of a server that this program has started",
            hint=_HINT,
        )


def _has_workers(graph: Any) -> bool:
    return any("/job:" in one.device for one in graph.get_operations())


def _is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with closing(socket.create_connection((host.strip("[]"), int(port)), _SECONDS)):
            return True
    except ConnectionRefusedError:
        return False
    except (OSError, ValueError):
        return True  # TensorFlow says what is wrong with it
