"""Functions of programs, rewritten by AutoGraph where the code that is built now is.

AutoGraph rewrites every function that a program's step calls, in 20 to 300 ms each. This package
has no branches and loops on tensors that AutoGraph would have to find, so its functions are left as
they are, like those of TensorFlow and Keras. Functions of the program that they call are rewritten
as if the program called them.
"""

from __future__ import annotations

from typing import Any

from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.core import config as autograph_config
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.eager import def_function


def _spare_package() -> None:
    rules = autograph_config.CONVERSION_RULES
    autograph_config.CONVERSION_RULES = (autograph_config.DoNotConvert("popdist_tf"), *rules)


_spare_package()


def program_code(function: Any, *, by_default: bool = False) -> Any:
    """A function of the program, rewritten by AutoGraph where the code that is built now is.

    Args:
        function: The function.
        by_default: Whether to rewrite it where neither the program nor TensorFlow has decided.

    Returns:
        The function to call instead, in any thread.
    """
    if isinstance(function, def_function.Function):
        return function
    status = ag_ctx.control_status_ctx()
    if by_default and status.status is ag_ctx.Status.UNSPECIFIED:
        status = ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED)
    rewritten = autograph.tf_convert(function, status, convert_by_default=False)

    def called(*args: Any, **kwargs: Any) -> Any:
        with status:  # threads of local replicas know nothing of it
            return rewritten(*args, **kwargs)

    return called
