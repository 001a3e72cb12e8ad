"""A TF1 step as one XLA program per core: from graph code to StableHLO to something that runs.

The step is built in a FuncGraph inside the session's graph. Its variables are therefore the
session's own, with their names, initializers and collections, while its operations are apart, and
see the variables as captured handles. The part of it that matters is imported into a function
which TensorFlow's own bridge lowers to StableHLO: a `LoweredStep`.
"""

import contextlib

import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.eager import context
from tensorflow.python.ops import control_flow_ops

from bert_estimator.tpu import graph_walk, replica
from bert_estimator.tpu.program.lowered_step import LoweredStep, StateVariable
from bert_estimator.tpu.step import lowering_error, variable_versions

# The first whose bridge gives StableHLO: 2.16 and 2.18 give XLA's older text alone (tried).
_OLDEST_TENSORFLOW = (2, 19)


def check_tensorflow():
    """Raises RuntimeError where this TensorFlow is too old to lower a step."""
    if tuple(map(int, tf.__version__.split(".")[:2])) < _OLDEST_TENSORFLOW:
        raise RuntimeError(
            f"The XLA runtime needs TensorFlow {'.'.join(map(str, _OLDEST_TENSORFLOW))} or newer; "
            f"this is {tf.__version__}. Install a newer one, or run without a TPU's name, on the "
            "session runtime"
        )


class StepGraph:
    """The graph of one core's step, inside the current graph.

    Args:
      num_replicas: replicas that share a batch.
      cores_per_replica: cores that share the model of a replica.

    Attributes:
      inputs: placeholders made with `placeholder`, in order.
      has_sums: whether what was built so far sums anything over the replicas.
      variables: once lowered, the session's variables that are the step's state, in its order.

    Raises:
      RuntimeError: this TensorFlow is too old to lower it.
    """

    def __init__(self, num_replicas, cores_per_replica=1):
        check_tensorflow()
        self.num_replicas = num_replicas
        self._cores_per_replica = cores_per_replica
        self.inputs = []
        self.has_sums = False
        self.variables = None
        self._outer = tf.get_default_graph()
        self._graph = tf2.__internal__.FuncGraph("step")
        # Variables' own seeds go by the graph's: the same weights as in the session runtime.
        self._graph.seed = self._outer.seed
        with self._graph.as_default():
            self._replica_id = tf.placeholder(tf.int32, [1], "replica_id")

    @contextlib.contextmanager
    def building(self):
        """Builds in this graph, with variables as resources, as one of the replicas."""
        this = self._replica()
        with (
            self._graph.as_default(),
            tf.variable_scope(
                tf.get_variable_scope(), use_resource=True, auxiliary_name_scope=False
            ),
            # A cached read, as of tf.scan and recurrent networks, would lie outside of the step.
            tf.variable_creator_scope(_without_caching_device),
            this.entered(),
            _xla_context(),
        ):
            yield
        self._share_variables()

    def _share_variables(self):
        """Has the session's graph see which variables are in collections: a scaffold_fn may ask."""
        for name in self._graph.get_all_collection_keys():
            known = {id(each) for each in self._outer.get_collection(name)}
            for each in self._graph.get_collection(name):
                if isinstance(each, tf2.Variable) and id(each) not in known:
                    self._outer.add_to_collection(name, each)

    def placeholder(self, dtype, shape):
        with self._graph.as_default():
            self.inputs.append(tf.placeholder(dtype, shape))
        return self.inputs[-1]

    def summaries(self):
        """Returns what the v1 summaries' operations of this graph give."""
        found = self._graph.get_collection(tf.GraphKeys.SUMMARIES)
        return [tensor for tensor in found if tensor.graph is self._graph]

    def own_element(self, name_or_element):
        """Returns the tensor or operation of this graph alone that is meant, or None."""
        try:
            self._outer.as_graph_element(name_or_element)
        except (KeyError, ValueError):
            with contextlib.suppress(KeyError, ValueError):
                return self._graph.as_graph_element(name_or_element)
        return None

    def _replica(self):
        with self._graph.as_default():
            replica_id = tf.reshape(self._replica_id, [])

        def cross_replica_sum(tensor):
            self.has_sums = True
            if self.num_replicas == 1:
                return tensor
            return gen_xla_ops.xla_all_reduce(
                tensor,
                tf.constant(self._groups(), tf.int32),
                reduce_op="Add",
                mode="CrossReplicaAndPartition",
            )

        return replica.Replica(self.num_replicas, replica_id, cross_replica_sum)

    def _groups(self):
        """Which cores sum with each other: those of the same place in their replica. The cores of
        a replica are numbered one after the other, as in `LoweredStep.compile`'s mesh."""
        cores = self._cores_per_replica
        return [list(range(place, self.num_replicas * cores, cores)) for place in range(cores)]

    def lower(self, outputs, after):
        """Lowers the step.

        Args:
          outputs: list of tensors of this graph.
          after: operations and tensors of this graph that are computed in every step, or None.

        Returns:
          A `LoweredStep`.

        Raises:
          RuntimeError: an operation has no XLA kernel; the text names it.
        """
        with self._graph.as_default():
            outputs = [tf.identity(tensor) for tensor in outputs]  # one may be an input itself
        after = tf.nest.flatten(after) if after is not None else []
        after = [getattr(each, "op", each) for each in after]
        results = [tensor.op for tensor in outputs]
        present = {each.name for each in graph_walk.all_before(results + after)}
        variable_of = self._variables_in(present)
        inputs = [self._replica_id, *self.inputs]
        graph_def, handles = self._with_open_ends(present, inputs, variable_of)
        try:
            text, order = _lowered(graph_def, inputs, outputs, after, variable_of, handles)
        except (ValueError, tf.errors.OpError) as error:
            raise lowering_error.explained(error, self._graph) from error
        operations = [each.name for each in self._graph.get_operations() if each.name in present]
        lowering_error.check_static(text, self._graph, operations)
        self.variables = list(variable_of.values())
        state = [
            StateVariable(v.op.name, tuple(v.shape.as_list()), v.dtype.base_dtype.name, v.trainable)
            for v in self.variables
        ]
        return LoweredStep(text, len(inputs), len(outputs), state, order)

    def _variables_in(self, present):
        """Returns a dict, name of a placeholder for a variable's handle -> the session's variable,
        of those among the names of operations."""
        variables = [
            *self._outer.get_collection(tf.GraphKeys.GLOBAL_VARIABLES),
            *self._outer.get_collection(tf.GraphKeys.LOCAL_VARIABLES),
        ]
        variable_of = {v.handle.ref(): v for v in variables if hasattr(v, "handle")}
        found = {}
        for outer, inner in self._graph.captures:
            if inner.op.name in present:
                if outer.ref() not in variable_of:
                    raise _from_outside(outer, inner, present)
                found[inner.op.name] = variable_of[outer.ref()]
        return found

    def _with_open_ends(self, present, inputs, variable_of):
        """Returns the operations of some names but for inputs and variables' handles: a GraphDef in
        which each operation sees the values of variables that it has to, and a dict of its handles,
        name -> name of the variable's handle in `variable_of`."""
        replaced = {*variable_of, *(tensor.op.name for tensor in inputs)}
        graph_def = self._graph.as_graph_def()
        kept = [node for node in graph_def.node if node.name in present - replaced]
        for node in kept:
            # Gradients and updates are colocated with variables, which are not in this graph.
            node.attr.pop("_class", None)
            # Inputs are there before any operation: nothing has to wait for them.
            needed = [name for name in node.input if name[0] != "^" or name[1:] not in replaced]
            node.input[:] = needed
        library = variable_versions.Library(graph_def.library)
        dtypes = {name: v.dtype.base_dtype.as_datatype_enum for name, v in variable_of.items()}
        nodes, copies = variable_versions.separate(kept, dtypes, library)
        del graph_def.node[:]
        graph_def.node.extend(nodes)
        graph_def.library.function.extend(library.rewritten.values())
        return graph_def, {**{name: name for name in variable_of}, **copies}


def _lowered(graph_def, inputs, outputs, after, variable_of, handles):
    """Returns (a step as StableHLO text, for each variable among its inputs the variable's number).

    Args:
      graph_def, handles: what `_with_open_ends` returned.
      inputs, outputs: tensors of the step.
      after: operations of it that run in every step.
      variable_of: dict, name of a handle -> variable, in the order of the state.
    """
    used = {name.split(":")[0] for node in graph_def.node for name in node.input}
    names = [each.name for each in [*outputs, *after]]
    signature = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    with context.eager_mode():
        # Stand-ins: only their shapes and dtypes get into the program. Memory that nobody writes to
        # is never really taken, so a network's size does not matter here.
        stand_ins = {
            handle: tf2.Variable(tf.raw_ops.Empty(shape=v.shape.as_list(), dtype=v.dtype))
            for handle, v in ((handle, variable_of[name]) for handle, name in handles.items())
        }

        def step(*values):
            graph = tf.get_default_graph()
            given = zip(inputs, values, strict=True)
            mapped = {tensor.op.name: value for tensor, value in given}
            mapped.update({name: graph.capture(v.handle) for name, v in stand_ins.items()})
            found = tf.graph_util.import_graph_def(
                graph_def,
                input_map={name: value for name, value in mapped.items() if name in used},
                return_elements=names,
                name="",
            )
            with tf.control_dependencies(found[len(outputs) :]):
                returned = [tf.identity(tensor) for tensor in found[: len(outputs)]]
                return returned + [stand_ins[name].read_value() for name in variable_of]

        function = tf2.function(step, jit_compile=True, autograph=False)
        captured = function.get_concrete_function(*signature).captured_inputs
        with _registered(graph_def.library.function):
            text = function.experimental_get_compiler_ir(*signature)(stage="stablehlo")
        number_of = {name: number for number, name in enumerate(variable_of)}
        numbers = {id(v.handle): number_of[handles[name]] for name, v in stand_ins.items()}
    return text, [numbers[id(handle)] for handle in captured]


@contextlib.contextmanager
def _registered(functions):
    """Has the compiler know functions that are in a graph alone."""
    eager = context.context()
    new = [each for each in functions if not eager.has_function(each.signature.name)]
    for function in new:
        eager.add_function_def(function)
    try:
        yield
    finally:
        for function in new:
            eager.remove_function(function.signature.name)


def _without_caching_device(next_creator, **given):
    return next_creator(**{**given, "caching_device": None})


@contextlib.contextmanager
def _xla_context():
    """Has TensorFlow build gradients of conditions and loops from operations that XLA knows."""
    xla_context = control_flow_ops.XLAControlFlowContext()
    xla_context.Enter()
    try:
        yield
    finally:
        xla_context.Exit()


def _from_outside(outer, inner, present):
    """Returns the error for a tensor of the session's graph that the step uses."""
    user = next(op for op in inner.consumers() if op.name in present)
    where = f"model_fn uses {outer.name} in {lowering_error.line_of(user)}"
    kinds = {operation.type for operation in [outer.op, *(t.op for t in outer.op.inputs)]}
    if kinds & {"Variable", "VariableV2"}:
        return RuntimeError(
            f"{where}, a variable of the old kind: on a TPU make it with use_resource=True"
        )
    if outer.op.type == "SummaryWriter":
        return RuntimeError(
            f"{where}, the writer of a summary, which no core can write: on a TPU write it in "
            "host_call, or make it with tf.compat.v1.summary"
        )
    return RuntimeError(
        f"{where}, a tensor from outside of the step: on a TPU what a step needs must come through "
        "its features and variables. A table of tf.lookup belongs into input_fn"
    )
