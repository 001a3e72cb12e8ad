"""A session whose variables live on devices: it copies their values only when it needs them.

Between two loops of steps, hooks, savers and the estimator run this session like any other. The
graph says which variables a run depends on. If the session does not have their present values, it
copies them from the devices first. Variables that a run may have written to are copied back before
the next loop.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

import tensorflow.compat.v1 as tf
from tensorflow.python.client.session import SessionInterface
from tensorflow.python.framework import stack

from bert_estimator.graph import graph_walk
from bert_estimator.graph.variable_uses import READERS
from bert_estimator.tpu.program.core_mesh import whole_value
from bert_estimator.tpu.step import initial_values
from bert_estimator.tpu.step.xla.session_tensors import PerCoreVariable


class DeviceSession(SessionInterface):
    """Wraps a session for hooks, with variables that live on the devices; while a loop of steps
    runs, a run from another thread that needs them waits for the loop's end."""

    def __init__(self, session: tf.Session, variables: list[tf.Variable]):
        self._session = session
        self._variables = variables
        self._number_of = {
            each.handle.op: number for number, v in enumerate(variables) for each in _each_of(v)
        }
        self._lock = threading.RLock()
        self._state = []  # once they are on the devices: an array for each variable
        # Numbers of the variables whose present value only the session has, or only the devices.
        self._only_here, self._only_there = set(range(len(variables))), set()

    @contextlib.contextmanager
    def on_devices(self, put: Callable[[dict], dict]) -> Iterator[list]:
        """Lends the variables to the devices for a loop, as a list of arrays, whose elements the
        caller replaces when the variables change; `put` copies a dict of number -> value there."""
        with self._lock:
            numbers = sorted(self._only_here)
            self._state = self._state or [None] * len(self._variables)
            # Only what the devices do not have: between most loops, nothing was written.
            values = self._session.run({number: self._variables[number] for number in numbers})
            for number, value in put(values).items():
                self._state[number] = value
            self._only_here = set()
            try:
                yield self._state
            finally:
                # After an error too: the devices may have updated them.
                self._only_there = set(range(len(self._variables)))

    def bring(self, fetches) -> None:
        """Copies the variables that `fetches` depend on from the devices to the session."""
        with self._lock:
            self._bring(self._touched(fetches)[0])

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        with self._brought(fetches):
            return self._session.run(fetches, feed_dict, options, run_metadata)

    def make_callable(self, fetches, *args, **kwargs) -> Callable:
        function = self._session.make_callable(fetches, *args, **kwargs)

        def call(*args, **kwargs):
            with self._brought(fetches):
                return function(*args, **kwargs)

        return call

    def as_default(self):
        return stack.default_session(self)

    @property
    def graph(self) -> tf.Graph:
        return self._session.graph

    @property
    def sess_str(self):
        return self._session.sess_str

    def __getattr__(self, name):  # members that do not run anything
        return getattr(self._session, name)

    @contextlib.contextmanager
    def _brought(self, fetches):
        """Surrounds a run of `fetches`: the session has the variables that the run depends on."""
        read, written = self._touched(fetches)
        if not read:  # A queue's thread, say, must not wait for the loop: the loop may wait for it.
            yield
            return
        with self._lock:
            self._bring(read)
            try:
                yield
            finally:
                self._only_here |= written

    def _bring(self, numbers):
        waiting = []
        for number in sorted(numbers & self._only_there):
            variable, value = self._variables[number], whole_value(self._state[number])
            values = value if isinstance(variable, PerCoreVariable) else [value]
            waiting += zip(_each_of(variable), values, strict=True)
        while waiting:
            # Each value goes where the initial one would. Of variables that share a tensor as their
            # initial value, each run brings one.
            initializer_of = {
                id(variable): initial_values.initializer_of(variable) for variable, _ in waiting
            }
            brought = {
                initializer_of[id(variable)].inputs[1].ref(): (variable, value)
                for variable, value in waiting
            }
            self._session.run(
                [initializer_of[id(variable)] for variable, _ in brought.values()],
                {place.deref(): value for place, (_, value) in brought.items()},
            )
            done = {id(variable) for variable, _ in brought.values()}
            waiting = [pair for pair in waiting if id(pair[0]) not in done]
        self._only_there -= numbers

    def _touched(self, fetches):
        """Returns two sets of variable numbers: which ones a run depends on, and may write to."""
        read, written = set(), set()
        elements = map(self.graph.as_graph_element, _leaves(fetches))
        for operation in graph_walk.all_before(graph_walk.operations_of([*elements])):
            sources = [tensor.op for tensor in operation.inputs]
            own = {self._number_of[source] for source in sources if source in self._number_of}
            read |= own
            if operation.type not in READERS:
                written |= own
        return read, written


def _each_of(variable):
    """Returns the session's variables that a variable of the step is."""
    return variable.variables if isinstance(variable, PerCoreVariable) else [variable]


def _leaves(fetches):
    """Returns the leaves of a structure of fetches; unlike tf.nest, it takes any dict keys."""
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if isinstance(fetches, list | tuple):
        return [leaf for each in fetches for leaf in _leaves(each)]
    return tf.nest.flatten(fetches, expand_composites=True)
