"""A stand-in for the binding ``horovod.tensorflow``: the other instances of a job, in one process.

It stands for ranks that call the same collectives at the same time, each with this rank's floating
point values times a factor of its own. Facts (text and digests, which are integers) they state as
this rank does, unless told otherwise. It notes what it is handed, and refuses the dtypes that the
real one refuses. Waiting, pairing and the network are left to `tests/distributed`.
"""

from typing import NamedTuple

import tensorflow as tf

CARRIED = {"uint8", "int8", "int32", "int64", "float16", "float32", "float64"}


class Call(NamedTuple):
    kind: str
    name: str | None
    dtype: str
    shape: tuple


class Peers:
    Sum = "Sum"

    def __init__(self, factors=(1, 10), rank=0, says=None):
        assert factors[rank] == 1
        self.factors = factors
        self.own = rank
        self.says = says
        self.calls = []

    def size(self):
        return len(self.factors)

    def rank(self):
        return self.own

    def names(self, kind):
        return [call.name for call in self.calls if call.kind == kind]

    def grouped_allreduce(self, tensors, op, name, ignore_name_scope):
        assert (op, ignore_name_scope) == ("Sum", True)
        (value,) = tensors
        self._note("allreduce", value, name)
        return [tf.add_n([self._times(value, factor) for factor in self.factors])]

    def broadcast(self, value, root, name, ignore_name_scope):
        assert ignore_name_scope
        self._note("broadcast", value, name)
        return self._times(value, self.factors[root])

    def allgather(self, value, name, ignore_name_scope):
        assert ignore_name_scope
        self._note("allgather", value, name)
        is_fact = not value.dtype.is_floating
        rows = [value if is_fact else self._times(value, factor) for factor in self.factors]
        if is_fact and self.says is not None:
            rows[1 - self.own] = self.says(value)
        return tf.concat(rows, 0)

    def _note(self, kind, value, name):
        assert value.dtype.name in CARRIED, f"Horovod cannot carry {value.dtype.name}"
        self.calls.append(Call(kind, name, value.dtype.name, tuple(value.shape)))

    @staticmethod
    def _times(value, factor):
        return tf.identity(value) if factor == 1 else value * tf.cast(factor, value.dtype)
