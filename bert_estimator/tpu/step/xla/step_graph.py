"""Builds a TF1 step for one core, and lowers it from a graph to StableHLO.

The step is built in a FuncGraph inside the session's graph. So its variables belong to the session,
with their names, initializers and collections, and its operations are in a graph of their own,
which captures the variables' handles. The operations that the outputs depend on are imported into a
function, and TensorFlow's own bridge to XLA lowers the function to StableHLO: a `LoweredStep`.
"""

import contextlib
from collections.abc import Iterator

import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2
from tensorflow.python.framework import tensor_util

from bert_estimator.graph import graph_walk
from bert_estimator.tpu.program.lowered_step import LoweredStep, StateVariable
from bert_estimator.tpu.replicas import meshes, replica, replica_operations
from bert_estimator.tpu.step import initial_values, outside_compilation, variable_versions
from bert_estimator.tpu.step.xla import (
    graph_lowering,
    random_operations,
    session_tensors,
    update_shards,
)

# The first version whose bridge gives StableHLO. 2.16 and 2.18 only give XLA's older text (tried).
_OLDEST_TENSORFLOW = (2, 19)


def check_tensorflow() -> None:
    """Raises RuntimeError if this TensorFlow is too old to lower a step."""
    if tuple(map(int, tf.__version__.split(".")[:2])) < _OLDEST_TENSORFLOW:
        raise RuntimeError(
            f"The XLA runtime needs TensorFlow {'.'.join(map(str, _OLDEST_TENSORFLOW))} or newer; "
            f"this is {tf.__version__}. Install a newer version, or run without a TPU's name, on "
            "the session runtime"
        )


class StepGraph:
    """Holds the graph of one core's step, inside the current graph; `num_shards` replicas, one
    after the other, may share the update of the weights."""

    def __init__(self, num_replicas: int, cores_per_replica: int = 1, num_shards: int = 1):
        check_tensorflow()
        self.num_replicas = num_replicas
        self._num_shards = num_shards
        self._cores_per_replica = cores_per_replica
        self.inputs = []  # the placeholders that `placeholder` made
        self.has_sums = False  # whether an operation sums over the replicas
        self.variables = None  # once lowered: the session's variables of the step's state, in order
        self._on_host = []  # the operations of outside compilations
        self._per_core = {}  # name of the placeholder of a handle -> `PerCoreVariable`
        self._outer = tf.get_default_graph()
        self._graph = tf2.__internal__.FuncGraph("step")
        # A variable's seed depends on its graph's seed. With the session's seed, the weights start
        # as they do in the session runtime.
        self._graph.seed = self._outer.seed
        with self._graph.as_default():
            self._replica_id = tf.placeholder(tf.int32, [1], "replica_id")
        self._context = meshes.Context(self._per_core_handle)
        self._draws = random_operations.RandomOperations(self._graph, self._outer, self._replica_id)
        self._shards = None
        if num_shards > 1:
            self._shards = update_shards.UpdateShards(
                self._graph, num_replicas, num_shards, self._replica_id
            )

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Surrounds code that builds one replica's model in this graph, with resource variables."""
        this = self._replica()
        with (
            self._graph.as_default(),
            tf.variable_scope(
                tf.get_variable_scope(), use_resource=True, auxiliary_name_scope=False
            ),
            tf.variable_creator_scope(self._with_cached_read),
            initial_values.copied_to_session(
                self._graph, self._outer, [*self.inputs, self._replica_id], self._draws.replaced
            ),
            this.entered(),
            replica_operations.replaced(self._draws.meanings),
            self._context,
            meshes.outside_rewrites(self._outer),
        ):
            yield
        # A scaffold_fn may read the variables in the session graph's collections.
        for name in self._graph.get_all_collection_keys():
            known = {id(each) for each in self._outer.get_collection(name)}
            for each in self._graph.get_collection(name):
                if isinstance(each, tf2.Variable) and id(each) not in known:
                    self._outer.add_to_collection(name, each)

    def _with_cached_read(self, next_creator, **given):
        """Creates a variable; a variable with a caching device is read once, before all updates."""
        # tf.scan, tf.map_fn and recurrent networks cache reads. TensorFlow's own cached read would
        # be outside of the step.
        variable = next_creator(**{**given, "caching_device": None})
        if given.get("caching_device") is not None:
            with self._graph.as_default(), tf.control_dependencies(None):
                variable._cached_value = variable.read_value()
        return variable

    def placeholder(self, dtype, shape) -> tf.Tensor:
        with self._graph.as_default():
            self.inputs.append(tf.placeholder(dtype, shape))
        return self.inputs[-1]

    def _per_core_handle(self, name, variables):
        """Returns the handle of a variable that is another variable of the session on each core."""
        for placeholder, known in self._per_core.items():
            if known.variables[0] is variables[0]:
                return self._graph.get_operation_by_name(placeholder).outputs[0]
        if len(variables) != self.num_replicas or self._cores_per_replica > 1:
            raise ValueError(
                f"{name} has {len(variables)} slices, but the model runs on {self.num_replicas} "
                f"replicas of {self._cores_per_replica} cores: a mesh needs one slice for each "
                "core, and num_cores_per_replica=1"
            )
        with self._outer.as_default(), tf.control_dependencies(None):
            variable = session_tensors.PerCoreVariable(name, variables)
        with self._graph.as_default():
            handle = session_tensors.handle(name, variable.slice_shape, variable.dtype)
        self._per_core[handle.op.name] = variable
        return handle

    @property
    def counters(self) -> list[tf.Variable]:
        """Returns the variables that each session starts at 0: nothing else initializes them."""
        return [self._draws.turn] if self._draws.turn is not None else []

    @property
    def is_mesh(self) -> bool:
        """Returns whether the cores have slices of weights, as in mesh-tensorflow."""
        return bool(self._per_core)

    def summaries(self) -> list[tf.Tensor]:
        """Returns the output tensors of this graph's v1 summary operations."""
        found = self._graph.get_collection(tf.GraphKeys.SUMMARIES)
        return [tensor for tensor in found if tensor.graph is self._graph]

    def own_element(self, name_or_element) -> tf.Tensor | tf.Operation | None:
        """Returns the tensor or operation that a name or an element means, if it is only in this
        graph and not in the session's; else None."""
        try:
            self._outer.as_graph_element(name_or_element)
        except (KeyError, ValueError):
            with contextlib.suppress(KeyError, ValueError):
                return self._graph.as_graph_element(name_or_element)
        return None

    def _replica(self):
        with self._graph.as_default():
            replica_id = tf.reshape(self._replica_id, [])

        exchanges = update_shards.Collectives(self.num_replicas, self._cores_per_replica)

        def cross_replica_sum(tensor, groups=None):
            self.has_sums = True
            return tensor if self.num_replicas == 1 else exchanges.sum(tensor, groups)

        return replica.Replica(
            self.num_replicas,
            replica_id,
            cross_replica_sum,
            self._on_host.extend,
            self._shards,
            exchanges,
        )

    def host_computations(
        self, results, num_runs: int
    ) -> list[outside_compilation.HostComputation]:
        """Returns what the host runs, and adds it to the current graph: outside compilations of
        `num_runs` cores, and writers of summaries that `results` wait for."""
        on_host = [operation for operation in self._on_host if operation.graph is self._graph]
        results = [o for o in graph_walk.operations_of(results) if o.graph is self._graph]
        known = set(on_host)
        writes = outside_compilation.summary_writes(self._graph, results)
        writes = [operation for operation in writes if operation not in known]
        computations = []
        for operations, runs in ((on_host, num_runs), (writes, 1)):
            if outside_compilation.effects(operations):
                outside_compilation.without_host(operations)
                computations.append(
                    outside_compilation.HostComputation(self._graph, operations, runs)
                )
        self._on_host += writes
        return computations

    def lower(self, outputs: list[tf.Tensor], after, updates_first: bool = False) -> LoweredStep:
        """Lowers the step, with these `outputs`, and with what is computed in every step (`after`,
        or None); if `updates_first`, it does not train, see `variable_uses`."""
        with self._graph.as_default():
            outputs = [tf.identity(tensor) for tensor in outputs]  # An output may be an input.
        after = tf.nest.flatten(after) if after is not None else []
        after = [getattr(each, "op", each) for each in after]
        # The host's operations are not in the step, but what they wait for is.
        after = outside_compilation.apart_from(set(self._on_host), after)
        results = [tensor.op for tensor in outputs]
        if self._shards is not None:
            # This adds operations, so what is present is only known below.
            after += self._shards.complete(graph_walk.all_before(results + after))
        if self._draws.are_in(set(graph_walk.all_before(results + after))):
            after.append(self._draws.next_turn(after))
        present = {each.name for each in graph_walk.all_before(results + after)}
        handles = [v.handle for v in self._session_variables()]
        # Copied operations are present, too, and what they replace is not any more.
        if session_tensors.computed_in_step(self._graph, handles, present):
            present = {each.name for each in graph_walk.all_before(results + after)}
        variable_of, shapes, split_axes = self._variables_in(present)
        inputs = [self._replica_id, *self.inputs]
        graph_def, handles = self._with_open_ends(present, inputs, variable_of, updates_first)
        given = (graph_def, inputs, outputs, after, variable_of, shapes, handles)
        try:
            text, order = graph_lowering.lowered(*given)
        except (ValueError, tf.errors.OpError) as error:
            raise graph_lowering.explained(error, self._graph) from error
        operations = [each.name for each in self._graph.get_operations() if each.name in present]
        graph_lowering.check_static(text, self._graph, operations)
        self.variables = [v.deref() for v in split_axes]
        state = [
            StateVariable(
                v.name.split(":")[0],
                tuple(v.shape.as_list()),
                v.dtype.base_dtype.name,
                v.trainable,
                split_axes[v.ref()],
                isinstance(v, session_tensors.PerCoreVariable),
            )
            for v in self.variables
        ]
        return LoweredStep(text, len(inputs), len(outputs), state, order, self._num_shards)

    def _variables_in(self, present):
        """Returns three dicts: name of a placeholder of a handle (a variable's or a part's) -> the
        variable; the same names -> shape; and variables' references -> the axis of the part, or
        None."""
        variable_of = {v.handle.ref(): v for v in self._session_variables()}
        held = self._shards.held if self._shards is not None else {}
        found, shapes, split_axes = {}, {}, {}
        for outer, inner in self._graph.captures:
            variable, name = variable_of.get(outer.ref()), inner.op.name
            part = held.get(name)
            # The part comes first: the handle that comes first has the variable's value at the
            # step's end. A variable that is also used whole has its whole handle after it.
            if part is not None and part.handle.op.name in present:
                found[part.handle.op.name] = variable
                shapes[part.handle.op.name] = part.shape.as_list()
                split_axes[variable.ref()] = part.axis
            if name in present:
                if variable is not None:
                    if not variable.shape.is_fully_defined():
                        raise ValueError(
                            f"The variable {variable.op.name} of model_fn has the shape "
                            f"{variable.shape}. On a TPU all shapes must be static: give its "
                            "initial value one with tf.ensure_shape or tf.reshape"
                        )
                    found[name] = variable
                    shapes[name] = variable.shape.as_list()
                    split_axes.setdefault(variable.ref())
                elif _default_of(outer) is None:
                    raise _from_outside(outer, inner, present)
        for name, variable in self._per_core.items():
            if name in present:
                found[name] = variable
                shapes[name] = variable.slice_shape.as_list()
                split_axes[variable.ref()] = None
        return found, shapes, split_axes

    def taken_from_session(self) -> list[tf.Tensor]:
        """Returns the tensors of the session's graph that the step uses, handles included."""
        return [outer for outer, _ in self._graph.captures]

    def _session_variables(self):
        """Returns the session's resource variables that steps may use."""
        variables = [
            *self._outer.get_collection(tf.GraphKeys.GLOBAL_VARIABLES),
            *self._outer.get_collection(tf.GraphKeys.LOCAL_VARIABLES),
            *self.counters,
        ]
        # A core's slice is reached by the handle of the `PerCoreVariable` only.
        slices = {id(part) for each in self._per_core.values() for part in each.variables}
        return [v for v in variables if hasattr(v, "handle") and id(v) not in slices]

    def _with_open_ends(self, present, inputs, variable_of, updates_first):
        """Returns a GraphDef of the operations that are `present`, without inputs and variables'
        handles, and a dict of its handles -> their names in `variable_of`."""
        replaced = {*variable_of, *(tensor.op.name for tensor in inputs)}
        graph_def = self._graph.as_graph_def()
        kept = [node for node in graph_def.node if node.name in present - replaced]
        for node in kept:
            # Gradients and updates are colocated with variables, which are not in this graph.
            node.attr.pop("_class", None)
            # Inputs are known before any operation runs, so operations need not wait for them.
            needed = [name for name in node.input if name[0] != "^" or name[1:] not in replaced]
            node.input[:] = needed
        self._fill_in_defaults(kept)
        del graph_def.node[:]
        graph_def.node.extend(kept)
        replica_operations.check(graph_def)
        graph_lowering.read_before_gathering(graph_def)
        graph_lowering.call_gradients(graph_def)
        kept = list(graph_def.node)
        library = variable_versions.Library(graph_def.library)
        dtypes = {name: v.dtype.base_dtype.as_datatype_enum for name, v in variable_of.items()}
        nodes, copies = variable_versions.separate(kept, dtypes, library, updates_first)
        del graph_def.node[:]
        graph_def.node.extend(nodes)
        graph_def.library.function.extend(library.rewritten.values())
        # Names by contents come last, when nothing changes any more.
        graph_lowering.name_by_contents(graph_def)
        random_operations.warn_of_unseeded(graph_def)
        return graph_def, {**{name: name for name in variable_of}, **copies}

    def _fill_in_defaults(self, nodes):
        """Makes the session's placeholders that have a default, such as Keras's learning phase,
        constants of the step: nothing is fed on a core."""
        default_of = {inner.op.name: _default_of(outer) for outer, inner in self._graph.captures}
        for node in nodes:
            value = default_of.get(node.name)
            if value is not None:
                attr = {"value": tf.AttrValue(tensor=value), "dtype": node.attr["dtype"]}
                node.CopyFrom(tf.NodeDef(name=node.name, op="Const", attr=attr))


def _default_of(tensor):
    """Returns a placeholder's default as a TensorProto; None if it has none, or no constant."""
    if tensor.op.type != "PlaceholderWithDefault":
        return None
    value = tensor_util.constant_value(tensor.op.inputs[0])
    return None if value is None else tf.make_tensor_proto(value, tensor.dtype)


def _from_outside(outer, inner, present):
    """Returns the error for a tensor of the session's graph that the step uses."""
    user = next(op for op in inner.consumers() if op.name in present)
    where = f"model_fn uses {outer.name} in {graph_lowering.line_of(user)}"
    kinds = {operation.type for operation in [outer.op, *(t.op for t in outer.op.inputs)]}
    if kinds & {"Variable", "VariableV2"}:
        return RuntimeError(
            f"{where}, a variable of the old kind: on a TPU make it with use_resource=True"
        )
    if outer.op.type == "SummaryWriter":
        return RuntimeError(
            f"{where}, the writer of a summary, whose result the step uses: the host writes after "
            "the step, so only a control dependency may wait for it"
        )
    return RuntimeError(
        f"{where}, a tensor from outside of the step: on a TPU what a step needs must come through "
        "its features and variables. A table of tf.lookup belongs into input_fn"
    )
