"""The XLA runtime: the same step as one program per core, fed and drained by the same threads.

It differs from `session_runtime.FedStep` in three things only: the model is built apart, for one
core's share of the batch; a step is a call of the compiled program, whose state stays on the
devices; and at a loop's end the session's variables get that state, for hooks and checkpoints.
"""

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.tpu import devices
from bert_estimator.tpu.session_runtime import FedStep
from bert_estimator.tpu.spec import EstimatorSpec
from bert_estimator.tpu.xla_program import StepGraph


class XlaStep(FedStep):
    """A step on the cores that the job's master names."""

    def _build_model(self):
        self._graph = StepGraph(self._job.num_replicas)
        features, labels = self._inputs.replaced(
            lambda tensor: self._graph.placeholder(tensor.dtype, self._core_shape(tensor))
        )
        self._placeholders = self._graph.inputs
        with self._graph.building():
            spec = self._job.call_model_fn(features, labels)
            # A vector of one, so that the cores' losses can be put side by side.
            self._core_loss = tf.reshape(tf.cast(spec.loss, tf.float32), [1])
            self._train_op = spec.train_op
        return spec

    def _host_spec(self, spec):
        """The step's tensors are out of the session's reach: a placeholder stands for the loss."""
        spec = super()._host_spec(spec)
        self._loss_holder = tf.placeholder_with_default(np.float32(0), [], "loss")
        return EstimatorSpec(
            spec.mode,
            loss=self._loss_holder,
            train_op=tf.no_op() if spec.train_op is not None else None,
            scaffold=spec.scaffold,
            training_hooks=spec.training_hooks,
            evaluation_hooks=spec.evaluation_hooks,
        )

    def _open(self, session):
        sent = [function.tensors for function, _ in self._functions]
        self._sent_structure = [len(tensors) for tensors in sent]
        outputs = [self._core_loss, *self._scalars.values()]
        with self._graph.building():
            outputs = [tf.reshape(t, [1]) for t in outputs] + [t for each in sent for t in each]
        lowered = self._graph.lower(outputs, self._train_op)
        self._program = lowered.compile(devices.find(self._job.master))
        self._variables = lowered.variables
        self._state = session.run(self._variables)

    def _run_step(self, batch):
        outputs, self._state = self._program(self._state, batch)
        outputs = [np.asarray(value) for value in outputs]
        loss = float(np.mean(outputs[0], dtype=np.float64))
        count = 1 + len(self._scalars)
        scalars = {
            name: value[0] for name, value in zip(self._scalars, outputs[1:count], strict=True)
        }
        rest = iter(outputs[count:])
        return loss, scalars, [[next(rest) for _ in range(n)] for n in self._sent_structure]

    def _run_last_step(self, batch, hook_run, due):
        loss, scalars, sent = self._run_step(batch)
        summary = None
        if due:
            summary = self._session.run(self._summary_op, {self._loss_holder: loss})
        return loss, scalars, sent, summary

    def _end_loop(self):
        """Gives the session's variables the state of the devices."""
        self._session.run(
            [variable.initializer for variable in self._variables],
            {
                variable.initializer.inputs[1]: np.asarray(value)
                for variable, value in zip(self._variables, self._state, strict=True)
            },
        )

    def _core_shape(self, tensor):
        """One core's share of a batch: its rows."""
        shape = tensor.shape.as_list()
        cores = self._job.num_replicas
        if not shape or shape[0] % cores:
            raise ValueError(
                f"{tensor.name} has shape {tensor.shape}: its first dimension must be the batch, "
                f"divisible by the {cores} cores"
            )
        return [shape[0] // cores, *shape[1:]]
