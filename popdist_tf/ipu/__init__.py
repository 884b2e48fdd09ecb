"""The published module tree of the IPU's TensorFlow: a path in a guide is a path here.

`popdist_tf.ipu.tree` holds the table of all modules and names. Modules are made from it when they
are imported, and a name is loaded from where it is defined when it is first used.
"""

from typing import TYPE_CHECKING, Any

from popdist_tf.ipu import tree

if TYPE_CHECKING:  # the stubs are in wheels alone

    def __getattr__(name: str) -> Any: ...


tree.plant(globals())
