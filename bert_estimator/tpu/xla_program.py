"""A TF1 step as one XLA program per core: from graph code to StableHLO to something that runs.

The step is built in a FuncGraph inside the session's graph. Its variables are therefore the
session's own, with their names, initializers and collections, while its operations are apart, and
see the variables as captured handles. The part of it that matters is imported into a function
which TensorFlow's own bridge lowers to StableHLO; jax compiles and runs that through PJRT.
"""

import contextlib
import dataclasses
import re

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.eager import context

from bert_estimator.tpu import devices, replica


class StepGraph:
    """The graph of one core's step, inside the current graph.

    Args:
      num_replicas: cores that run it.

    Attributes:
      inputs: placeholders made with `placeholder`, in order.
    """

    def __init__(self, num_replicas):
        self.num_replicas = num_replicas
        self.inputs = []
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
            this.entered(),
        ):
            yield

    def placeholder(self, dtype, shape):
        with self._graph.as_default():
            self.inputs.append(tf.placeholder(dtype, shape))
        return self.inputs[-1]

    def _replica(self):
        with self._graph.as_default():
            replica_id = tf.reshape(self._replica_id, [])

        def cross_replica_sum(tensor):
            if self.num_replicas == 1:
                return tensor
            return gen_xla_ops.xla_all_reduce(
                tensor,
                tf.constant([list(range(self.num_replicas))], tf.int32),
                reduce_op="Add",
                mode="CrossReplicaAndPartition",
            )

        return replica.Replica(self.num_replicas, replica_id, cross_replica_sum)

    def lower(self, outputs, after):
        """Lowers the step.

        Args:
          outputs: list of tensors of this graph.
          after: operations of this graph that run in every step, or None.

        Returns:
          A `LoweredStep`.

        Raises:
          RuntimeError: an operation has no XLA kernel; the text names it.
        """
        variable_of = {v.handle.ref(): v for v in self._outer.get_collection("variables")}
        variable_of |= {v.handle.ref(): v for v in self._outer.get_collection("local_variables")}
        with self._graph.as_default():
            outputs = [tf.identity(tensor) for tensor in outputs]  # one may be an input itself
        results = [tensor.op.name for tensor in outputs]
        operations = [op.name for op in tf.nest.flatten(after)] if after is not None else []
        graph_def = tf2.compat.v1.graph_util.extract_sub_graph(
            self._graph.as_graph_def(), results + operations
        )
        present = {node.name for node in graph_def.node}
        variables, handles = [], []
        for outer, inner in self._graph.captures:
            if inner.op.name in present:
                if outer.ref() not in variable_of:
                    raise RuntimeError(
                        f"model_fn uses {outer.name}, a tensor from outside of the step: with a "
                        "TPU, what a step needs must come through its features and variables"
                    )
                variables.append(variable_of[outer.ref()])
                handles.append(inner.op.name)
        inputs = [self._replica_id, *self.inputs]
        replaced = {*handles, *(tensor.op.name for tensor in inputs)}
        kept = [node for node in graph_def.node if node.name not in replaced]
        for node in kept:
            # Inputs are there before any operation: nothing has to wait for them.
            needed = [name for name in node.input if name[0] != "^" or name[1:] not in replaced]
            node.input[:] = needed
            # Optimizers colocate updates with variables, which are not in this graph.
            node.attr.pop("_class", None)
        used = {name.split(":")[0] for node in kept for name in node.input}
        del graph_def.node[:]
        graph_def.node.extend(kept)
        signature = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
        with context.eager_mode():
            # Stand-ins: only their shapes and dtypes get into the program.
            stand_ins = [
                tf2.Variable(np.zeros(v.shape.as_list(), v.dtype.as_numpy_dtype))
                for v in variables
            ]

            def step(*values):
                graph = tf.get_default_graph()
                mapped = {
                    tensor.op.name: value
                    for tensor, value in zip(inputs, values, strict=True)
                    if tensor.op.name in used
                }
                for handle, stand_in in zip(handles, stand_ins, strict=True):
                    if handle in used:
                        mapped[handle] = graph.capture(stand_in.handle)
                found = tf.graph_util.import_graph_def(
                    graph_def,
                    input_map=mapped,
                    return_elements=[tensor.name for tensor in outputs] + operations,
                    name="",
                )
                with tf.control_dependencies(found[len(outputs) :]):
                    returned = [tf.identity(tensor) for tensor in found[: len(outputs)]]
                    return returned + [stand_in.read_value() for stand_in in stand_ins]

            function = tf2.function(step, jit_compile=True, autograph=False)
            captured = function.get_concrete_function(*signature).captured_inputs
            text = _stablehlo(function, signature)
            number_of = {id(v.handle): number for number, v in enumerate(stand_ins)}
            order = [number_of[id(handle)] for handle in captured]
        return LoweredStep(text, len(inputs), len(outputs), variables, order)


_NO_KERNEL = re.compile(r"(\w+) \(No registered .*?\{\{node ([^}]+)\}\}")


def _stablehlo(function, signature):
    try:
        return function.experimental_get_compiler_ir(*signature)(stage="stablehlo")
    except (ValueError, tf.errors.OpError) as error:
        operations = dict.fromkeys(f"{n} ({t})" for t, n in _NO_KERNEL.findall(str(error)))
        if not operations:
            raise RuntimeError(f"The step of model_fn cannot be lowered to XLA: {error}") from error
        raise RuntimeError(
            f"model_fn uses operations that XLA has no kernel for: {', '.join(operations)}. On a "
            "TPU, Python code, strings and files belong into input_fn, host_call or eval_metrics"
        ) from error


@dataclasses.dataclass(frozen=True)
class LoweredStep:
    """A step as StableHLO text.

    Attributes:
      text: the module; its inputs are the step's inputs (the replica's number first), then the
        variables in `order`; its outputs the step's outputs, then all variables as they stand.
      variables: the session's variables, in the order of the outputs.
    """

    text: str
    num_inputs: int
    num_outputs: int
    variables: list
    order: list

    def compile(self, cores):
        """Compiles the step for some devices.

        Returns:
          A function (state, inputs) -> (outputs, new state). Inputs and outputs are arrays whose
          first axis is the cores' one after the other; state is a list of arrays, one a variable,
          the same on every core, which the function consumes.
        """
        jax = devices.import_jax()
        exported = _exported(self.text)
        mesh = jax.sharding.Mesh(np.array(cores), ("core",))
        split, whole = jax.sharding.PartitionSpec("core"), jax.sharding.PartitionSpec()
        num_variables = len(self.variables)

        def one_core(state, inputs):
            results = exported.call(*inputs, *(state[number] for number in self.order))
            last = self.num_outputs + num_variables
            return list(results[: self.num_outputs]), list(results[self.num_outputs : last])

        step = jax.shard_map(
            one_core, mesh=mesh, in_specs=(whole, split), out_specs=(split, whole), check_vma=False
        )
        step = jax.jit(step, donate_argnums=0)
        replica_ids = np.arange(len(cores), dtype=np.int32)
        with jax.enable_x64(True):
            placed_ids = jax.device_put(replica_ids, jax.sharding.NamedSharding(mesh, split))

        def run(state, inputs):
            with jax.enable_x64(True):
                return step(state, [placed_ids, *inputs])

        return run


def _exported(text):
    """Returns StableHLO text as a `jax.export.Exported`, which jax can call."""
    jax = devices.import_jax()
    from jax import export
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        _walk(module.operation, _mend)
        main = next(
            op for op in module.body.operations if ir.StringAttr(op.attributes["sym_name"]).value
            == "main"
        )
        in_avals = tuple(_aval(jax, t) for t in main.type.inputs)
        out_avals = tuple(_aval(jax, t) for t in main.type.results)
        artifact = stablehlo.serialize_portable_artifact_str(
            str(module), stablehlo.get_current_version()
        )
    template = export.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct((), np.float32))
    tree = jax.tree_util.tree_structure
    changes = dict(
        fun_name="step",
        in_tree=tree((in_avals, {})),
        in_avals=in_avals,
        out_tree=tree(out_avals),
        out_avals=out_avals,
        in_shardings_hlo=(None,) * len(in_avals),
        out_shardings_hlo=(None,) * len(out_avals),
        mlir_module_serialized=artifact,
        module_kept_var_idx=tuple(range(len(in_avals))),
    )
    for name, avals in (("_in_named_shardings", in_avals), ("_out_named_shardings", out_avals)):
        if hasattr(template, name):
            changes[name] = (None,) * len(avals)
    return dataclasses.replace(template, **changes)


def _walk(operation, visit):
    for region in operation.regions:
        for block in region.blocks:
            for child in list(block.operations):
                _walk(child.operation, visit)
                visit(child.operation)


def _mend(operation):
    """Brings what TensorFlow's bridge writes into the form that other consumers read."""
    from jaxlib.mlir import ir

    if operation.name == "mhlo.copy":
        operation.result.replace_all_uses_with(operation.operands[0])
        operation.erase()
    elif operation.name == "stablehlo.all_reduce":
        # Without it the compiler rejects groups that span partitions.
        operation.attributes["use_global_device_ids"] = ir.UnitAttr.get()


_DTYPES = {
    "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "ui8": "uint8", "ui16": "uint16", "ui32": "uint32", "ui64": "uint64",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
}  # fmt: skip


def _aval(jax, tensor_type):
    from jaxlib.mlir import ir

    ranked = ir.RankedTensorType(tensor_type)
    dtype = jax.numpy.dtype(_DTYPES[str(ranked.element_type)])
    return jax.core.ShapedArray(tuple(ranked.shape), dtype)
