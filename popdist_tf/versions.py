"""What differs between the versions of Keras that TensorFlow comes with: 2.15, and 3."""

from __future__ import annotations

import functools
import inspect
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.core import config as autograph_config
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.eager import def_function

from popdist_tf.errors import EstimatorGoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


_MARK = "_popdist_corrects_steps"
_CHECK = "_popdist_checks_before_training"
_CALLBACKS = "_popdist_callbacks"
_CLIPS = "_popdist_clips_sums"
_BUILD = "_maybe_symbolic_build"
_FIRST = "_popdist_before_first_batch"
_FITS = "_popdist_begins_to_fit"
_COUNT = re.compile(r"_\d+(?=_|$)")


def keras_is_3() -> bool:
    """Whether ``tf.keras`` is Keras 3.

    Returns:
        False for Keras 2, which TensorFlow had up to 2.15 (and has with ``TF_USE_LEGACY_KERAS``).
    """
    # By what it can do: not all of these modules state a version.
    return hasattr(tf.keras.optimizers.Optimizer, "apply")


def update_method() -> str:
    """The method of optimizers that every update goes through, with gradients not yet clipped.

    Returns:
        Its name.
    """
    return "apply" if keras_is_3() else "apply_gradients"


def optimizer_kinds() -> tuple[Any, ...]:
    """The base classes of Keras' optimizers.

    Returns:
        One, or with Keras 2 two: it still has the optimizers that it had until 2.10.
    """
    kinds = tf.keras.optimizers
    if keras_is_3():
        return (kinds.Optimizer,)
    # Under the SDK's names, `Optimizer` is the old kind.
    return (kinds.experimental.Optimizer, kinds.legacy.Optimizer)


def is_legacy(optimizer: Any) -> bool:
    """Whether an optimizer is of the kind that Keras had until 2.10.

    Args:
        optimizer: An optimizer of Keras.
    """
    return isinstance(optimizer, optimizer_kinds()[1:])


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Creates the slots of an optimizer, where they do not exist.

    Args:
        optimizer: An optimizer of Keras.
        variables: What it is to update.
    """
    if is_legacy(optimizer):
        optimizer._create_all_weights(list(variables))
    elif hasattr(optimizer, "build"):  # one of TensorFlow 1 creates them when it is applied
        optimizer.build(list(variables))


def optimizer_variables(optimizer: Any) -> list[Any]:
    """The slots and counters of an optimizer.

    Args:
        optimizer: An optimizer of Keras.
    """
    held = optimizer.variables
    return list(held() if callable(held) and not isinstance(held, (list, tuple)) else held)


def tensorflow_variable(variable: Any) -> Any:
    """The variable of TensorFlow inside one of Keras.

    Args:
        variable: A variable of Keras 3, or of TensorFlow.

    Returns:
        The variable of TensorFlow.
    """
    return variable.value if keras_is_3() and not isinstance(variable, tf.Variable) else variable


def variable_name(variable: Any) -> str:
    """What a variable is called, with its layer.

    Args:
        variable: A variable of Keras 3, or of TensorFlow.

    Returns:
        Its name.
    """
    # A distributed variable is read, if it is asked for an attribute that it lacks.
    is_plain = isinstance(variable, tf.Variable)
    return str(variable.name if is_plain else getattr(variable, "path", variable.name))


def describe(variables: Iterable[Any]) -> str:
    """Variables in words, the same on every instance.

    Numbers that Keras counts up in names (``dense_1``) differ as soon as one instance builds a
    model more than the others, and are left out.

    Args:
        variables: Variables of Keras or of TensorFlow.

    Returns:
        The last part of each name, and the shape.
    """
    names = (
        (_COUNT.sub("", variable_name(one).split("/")[-1]), tuple(one.shape)) for one in variables
    )
    return ", ".join(f"{name}{shape}" for name, shape in names)


def correct_epoch_steps(corrected: Callable[[int], int]) -> None:
    """Makes Keras correct the number of steps that it infers for an epoch; safe to call again.

    A number of steps that the user states is kept.

    Args:
        corrected: From the number of batches in the data to the number of steps.
    """
    if keras_is_3():
        iterator: Any = import_module("keras.src.backend.tensorflow.trainer").TFEpochIterator
        if not hasattr(iterator, _MARK):
            for method in ("__init__", "reset"):
                setattr(iterator, method, _then_correct(getattr(iterator, method), corrected))
            setattr(iterator, _MARK, True)
        return
    handler: Any = import_module("keras.src.engine.data_adapter").DataHandler
    if not hasattr(handler, _MARK):
        handler._infer_steps = _corrected_answer(handler._infer_steps, corrected)
        setattr(handler, _MARK, True)


def support_loss_scaling() -> None:
    """Makes Keras scale losses under strategies that say they support it; safe to call again.

    Keras 2 knows TensorFlow's own strategies alone. It needs one copy of each variable for each
    replica, which mirrored strategies have. Keras 3 asks no strategy.
    """
    if keras_is_3():
        return
    module: Any = import_module("keras.src.mixed_precision.loss_scale_optimizer")
    known = module.strategy_supports_loss_scaling

    @functools.wraps(known)
    def supports_loss_scaling() -> bool:
        strategy = tf.distribute.get_strategy()
        return bool(getattr(strategy, "supports_loss_scaling", False) or known())

    if not hasattr(known, "__wrapped__"):
        module.strategy_supports_loss_scaling = supports_loss_scaling


def clip_sums_where(reduces: Callable[[], bool]) -> None:
    """Makes Keras 3 clip the sums of gradients over replicas; safe to call again.

    Keras 2 sums first. Keras 3 would clip each replica's own gradients, whose sum is another update
    than that of one process with all rows; and its loss scaling would ask the first replica alone
    whether the gradients are finite.

    Args:
        reduces: Whether the current strategy's replicas are to be treated like one process.
    """
    if not keras_is_3():
        return
    optimizer: Any = import_module("keras.src.backend.tensorflow.optimizer").TFOptimizer
    if hasattr(optimizer, _CLIPS):
        return
    setattr(optimizer, _CLIPS, True)
    clipped, updated = optimizer._clip_gradients, optimizer._backend_update_step

    @functools.wraps(clipped)
    def clip_later(self: Any, grads: list[Any]) -> list[Any]:
        return grads if reduces() else clipped(self, grads)

    @functools.wraps(updated)
    def sum_and_clip(self: Any, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        if not reduces():
            updated(self, grads, trainable_variables, learning_rate)
            return
        held = [tensorflow_variable(variable) for variable in trainable_variables]
        sums = self._all_reduce_sum_gradients(list(zip(grads, held, strict=True)))
        both = list(zip(clipped(self, [total for total, _ in sums]), held, strict=True))
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._distributed_tf_update_step, self._distribution_strategy, both, learning_rate
        )

    optimizer._clip_gradients, optimizer._backend_update_step = clip_later, sum_and_clip

    scaling: Any = tf.keras.mixed_precision.LossScaleOptimizer
    finite = scaling.check_finite

    @functools.wraps(finite)
    def check_all(self: Any, grads: Any) -> Any:
        own = finite(self, grads)
        context = tf.distribute.get_replica_context()
        if context is None or not reduces():
            return own
        other = tf.cast(tf.logical_not(own), tf.float32)
        return tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, other), 0)

    scaling.check_finite = check_all


def compile_where(compiles: Callable[[], bool]) -> None:
    """Makes ``tf.function`` ask before XLA compiles it; safe to call again.

    Programs of the SDK compile their loops for the device by ``jit_compile=True``. XLA on a host
    can compile neither queues nor exchanges.

    Args:
        compiles: Whether functions that are called now are compiled, as the program asks.
    """
    kind: Any = def_function.Function
    if hasattr(kind, "_jit_compile"):
        return

    def asked(self: Any) -> Any:
        held = vars(self)["_jit_compile"]
        return held if not held or compiles() else None

    def hold(self: Any, value: Any) -> None:
        vars(self)["_jit_compile"] = value

    kind._jit_compile = property(asked, hold)


def divide_losses_where(divides: Callable[[], bool]) -> None:
    """Makes Keras ask before it divides a loss by the number of replicas; safe to call again.

    Args:
        divides: Whether the gradients of the current strategy's replicas are summed.
    """
    name = "keras.src.losses.loss" if keras_is_3() else "keras.src.utils.losses_utils"
    module: Any = import_module(name)
    for method in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
        known = getattr(module, method, None)
        if known is not None and not hasattr(known, _MARK):
            setattr(module, method, _asked(known, divides))


def _asked(method: Callable[[Any], Any], divides: Callable[[], bool]) -> Any:
    @functools.wraps(method)
    def wrapped(value: Any) -> Any:
        return method(value) if divides() else value

    setattr(wrapped, _MARK, True)
    return wrapped


def before_training(name: str, check: Callable[[Any], None]) -> None:
    """Makes Keras call a function with each model that is about to be trained; safe to call again.

    Args:
        name: A later function of the same name replaces an earlier one.
        check: Called by ``fit`` and ``train_on_batch``.
    """
    _before("make_train_function", name, lambda model, _: check(model))


def before_batches(name: str, check: Callable[[Any, Any], None]) -> None:
    """Makes Keras call a function with each model whose ``train_on_batch`` is called; as above.

    Args:
        name: A later function of the same name replaces an earlier one.
        check: Called before each batch, with the model and the batch's inputs.
    """
    _before("train_on_batch", name, lambda model, given: check(model, given.get("x")))


def before_evaluations(name: str, check: Callable[[Any, str], None]) -> None:
    """Makes Keras call a function with each model that is evaluated or predicts; as above.

    Args:
        name: A later function of the same name replaces an earlier one.
        check: Called with the model and ``"evaluate"`` or ``"predict"``.
    """
    _before("make_test_function", name, lambda model, _: check(model, "evaluate"))
    _before("make_predict_function", name, lambda model, _: check(model, "predict"))


def before_first_batch(check: Callable[[Any, str], None]) -> None:
    """Makes Keras 3 call a function before it takes a batch to build a model from; safe to repeat.

    ``fit`` and ``evaluate`` do that under a strategy, before they make their functions and call
    callbacks. Their data, or the batch's mean, may wait for the other instances.

    Args:
        check: Called with the model, and what begins in words: how many steps an epoch of ``fit``
            has, or that the model is evaluated.
    """
    model: Any = tf.keras.Model
    owner: Any = next((one for one in model.__mro__ if _BUILD in vars(one)), None)
    if owner is None:  # Keras 2, which takes no batch
        return
    if not hasattr(owner, _FIRST):
        # The iterator of `fit` is the first that is built from after `fit` begins.
        owner.fit = _noted_fit(owner.fit)
        setattr(owner, _BUILD, _checked_build(getattr(owner, _BUILD)))
    setattr(owner, _FIRST, staticmethod(check))


def _noted_fit(method: Callable[..., Any]) -> Any:
    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        vars(self)[_FITS] = True
        try:
            return method(self, *args, **kwargs)
        finally:
            vars(self).pop(_FITS, None)

    return wrapped


def _checked_build(method: Callable[..., Any]) -> Any:
    @functools.wraps(method)
    def wrapped(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        if iterator is not None:
            fits = vars(self).pop(_FITS, False)
            steps = f"an epoch of {iterator.num_batches} steps"
            getattr(self, _FIRST)(self, steps if fits else "evaluate of a model")
        return method(self, iterator, data_batch)

    return wrapped


def _before(method: str, name: str, check: Callable[[Any, Mapping[str, Any]], None]) -> None:
    owner = _owner(method)
    checks = f"{_CHECK}_{method}"
    if not hasattr(owner, checks):
        setattr(owner, method, _checked(getattr(owner, method), checks))
        setattr(owner, checks, {})
    getattr(owner, checks)[name] = check


def before_updates(name: str, check: Callable[[Any, list[Any], list[Any]], None]) -> None:
    """Makes Keras call a function before each update that an optimizer builds or runs.

    Args:
        name: A later function of the same name replaces an earlier one.
        check: Called with the optimizer, the variables and the gradients. An update whose
            gradients the program says are summed already (``skip_gradients_aggregation``) is not
            checked.
    """
    method = update_method()
    for kind in optimizer_kinds():
        owner: Any = next(one for one in kind.__mro__ if method in vars(one))
        if not hasattr(owner, _CHECK):
            setattr(owner, method, _checked_update(getattr(owner, method)))
            setattr(owner, _CHECK, {})
        getattr(owner, _CHECK)[name] = check


def _checked_update(method: Callable[..., Any]) -> Any:
    @functools.wraps(method)
    def wrapped(self: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(given)
        gradients, variables, reduced = gradients_and_variables(pairs, args, kwargs)
        if not reduced:
            for check in getattr(self, _CHECK).values():
                check(self, variables, gradients)
        return method(self, pairs, *args, **kwargs)

    return wrapped


def gradients_and_variables(
    given: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], list[Any], bool]:
    """What an update is given: gradients, variables, and whether they are summed already.

    Args:
        given: The first argument of the method that `update_method` names.
        args: The other arguments.
        kwargs: The keyword arguments.
    """
    # Keras 3 has the variables beside the gradients, Keras 2 has pairs.
    held = list(given)
    reduced = kwargs.get("skip_gradients_aggregation", False) or not kwargs.get(
        "experimental_aggregate_gradients", True
    )
    if keras_is_3():
        second = args[0] if args else kwargs.get("trainable_variables")
        return held, list(second or ()), reduced
    return [pair[0] for pair in held], [pair[1] for pair in held], reduced


def _owner(method: str) -> Any:
    """The class of Keras' models that defines a method."""
    model: Any = tf.keras.Model
    return next(one for one in model.__mro__ if method in vars(one))


def _checked(method: Callable[..., Any], checks: str) -> Any:
    names = list(inspect.signature(method).parameters)[1:]

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        for check in getattr(self, checks).values():
            check(self, dict(zip(names, args, strict=False)) | kwargs)
        return method(self, *args, **kwargs)

    return wrapped


def extend_models(methods: dict[str, Any]) -> None:
    """Gives Keras' models more methods; safe to call again.

    Args:
        methods: Functions by their names.
    """
    model: Any = tf.keras.Model
    for name, method in methods.items():
        setattr(model, name, method)


def add_callbacks(
    name: str,
    callbacks: Callable[[Any, Mapping[str, Any]], tuple[Sequence[Any], Sequence[Any]]],
) -> None:
    """Gives ``fit`` of Keras' models more callbacks; safe to call again.

    Args:
        name: A later function of the same name replaces an earlier one.
        callbacks: From a model and the arguments of its ``fit`` (the user's callbacks as a list)
            to callbacks that are called before the user's, and to those that are called after.
    """
    owner = _owner("fit")
    if not hasattr(owner, _CALLBACKS):
        owner.fit = _with_callbacks(owner.fit)
        setattr(owner, _CALLBACKS, {})
    getattr(owner, _CALLBACKS)[name] = callbacks


def _with_callbacks(method: Callable[..., Any]) -> Any:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = signature.bind(self, *args, **kwargs)
        given = call.arguments.get("callbacks")
        held = getattr(given, "callbacks", given) or []
        held = list(held) if isinstance(held, (list, tuple)) else [held]
        arguments = {**call.arguments, "callbacks": held}
        found = [make(self, arguments) for make in getattr(self, _CALLBACKS).values()]
        before = [one for first, _ in found for one in first]
        after = [one for _, last in found for one in last]
        if not (before or after):
            return method(self, *args, **kwargs)
        call.arguments["callbacks"] = [*before, *held, *after]
        return method(*call.args, **call.kwargs)

    return wrapped


def support_backups(callbacks: Sequence[Any], strategy: Any) -> None:
    """Lets Keras 2's ``BackupAndRestore`` work under a strategy of which Keras does not know.

    Args:
        callbacks: Of ``fit``.
        strategy: The model's; its first worker writes, and all read what that one wrote.
    """
    for one in callbacks:
        known = getattr(one, "_supported_strategies", None)
        if known is not None and not isinstance(strategy, known):
            one._supported_strategies = (*known, type(strategy))


def tag_made(attribute: str, tag: Callable[[], Any]) -> None:
    """Makes Keras tag each layer, and each call of a layer in a model; safe to call again.

    Args:
        attribute: The name of the tag on the layer, and on the call's node.
        tag: The tag of what is made now; None for no tag.
    """
    home = "keras.src.ops.node" if keras_is_3() else "keras.src.engine.node"
    for kind in (import_module(home).Node, tf.keras.layers.Layer):
        if hasattr(kind.__new__, _MARK):
            continue
        kind.__new__ = staticmethod(_tagging(kind.__new__, attribute, tag))


def _tagging(made: Any, attribute: str, tag: Callable[[], Any]) -> Any:
    @functools.wraps(made)
    def wrapped(kind: Any, *args: Any, **kwargs: Any) -> Any:
        one = made(kind) if made is object.__new__ else made(kind, *args, **kwargs)
        if tag() is not None:
            vars(one)[attribute] = tag()
        return one

    setattr(wrapped, _MARK, True)
    return wrapped


def input_shapes(model: Any) -> Any:
    """The shapes that a model with a ``call`` of its own was built for; None before, or in Keras 3.

    Args:
        model: The model.

    Returns:
        A structure of `tf.TensorShape`.
    """
    shapes = getattr(model, "_build_input_shape", None)
    if shapes is None or keras_is_3():
        return None
    return import_module("keras.src.utils.tf_utils").convert_shapes(shapes, to_tuples=False)


def calls_of_function(function: Callable[[Any], Any], shapes: Any) -> dict[int, list[Any]]:
    """The calls of layers in a function, by their distance from its results, in Keras 2.

    Args:
        function: Called with symbolic inputs.
        shapes: Their shapes, a structure of `tf.TensorShape`.

    Returns:
        The nodes of each distance.
    """
    inputs = tf.nest.map_structure(
        lambda shape: tf.keras.Input(batch_size=shape[0], shape=shape[1:]), shapes
    )
    outputs = function(inputs)
    network = import_module("keras.src.engine.functional")._map_graph_network
    found: dict[int, list[Any]] = network(tf.nest.flatten(inputs), tf.nest.flatten(outputs))[1]
    return found


def strategy_of(model: Any) -> Any:
    """The strategy in whose scope a model was created.

    Args:
        model: A model of Keras.

    Returns:
        The strategy; None for a model that was created outside of all scopes.
    """
    held = getattr(model, "_distribution_strategy", None)  # Keras 2
    return held or getattr(model, "_distribute_strategy", None)


def _then_correct(method: Callable[..., None], corrected: Callable[[int], int]) -> Any:
    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        method(self, *args, **kwargs)
        if self._num_batches is not None:
            with self._distribute_strategy.scope():
                self._num_batches = corrected(self._num_batches)

    return wrapped


def _corrected_answer(method: Callable[..., Any], corrected: Callable[[int], int]) -> Any:
    @functools.wraps(method)
    def wrapped(self: Any, steps: int | None, dataset: Any) -> Any:
        inferred = method(self, steps, dataset)
        return inferred if steps is not None or inferred is None else corrected(inferred)

    return wrapped


# AutoGraph rewrites every function that a program's step calls, in 20 to 300 ms each. This package
# has no branches and loops on tensors that AutoGraph would have to find, so its functions are left
# as they are, like those of TensorFlow and Keras. Functions of the program that they call are
# rewritten as if the program called them.


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


# TensorFlow's estimators, where this TensorFlow still has them.


def estimator_api() -> Any:
    """The module ``tf.estimator``.

    Returns:
        The module.

    Raises:
        EstimatorGoneError: This TensorFlow (2.16 and later) has no estimators.
    """
    try:
        return tf.compat.v1.estimator
    except AttributeError:
        raise EstimatorGoneError(
            "PD420",
            f"TensorFlow {tf.__version__} has no estimators: they ended with 2.15",
            accepted="tensorflow 2.15 and tensorflow-estimator 2.15, on Python 3.11 or before",
            hint="install the default set (constraints/default.txt), or train with Keras under "
            "PopDistStrategy, which works with every TensorFlow",
        ) from None
