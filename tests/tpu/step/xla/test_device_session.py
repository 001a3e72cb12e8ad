"""Which values move between a session and the devices, and when."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.tpu.step.xla.device_session import DeviceSession


class Devices:
    """Stands for devices that hold arrays, and notes what is moved to and from them."""

    def __init__(self):
        self.put_values, self.read = [], []

    def put(self, values):
        self.put_values.append([np.asarray(value).tolist() for value in values.values()])
        return {number: Array(value, self) for number, value in values.items()}


class Array:
    is_fully_addressable = True  # each core holds all of it

    def __init__(self, value, devices):
        self._value, self._devices = np.asarray(value), devices

    def __array__(self, dtype=None, copy=None):
        self._devices.read.append(self._value.tolist())
        return self._value


class World:
    """Holds a session with the variables a, b and step, and a loop that sets them to values."""

    def __init__(self):
        with tf.variable_scope("", use_resource=True):
            self.a = tf.get_variable("a", initializer=[1.0])
            self.b = tf.get_variable("b", initializer=[2.0])
            self.step = tf.train.create_global_step()
        self.total = self.a + self.b
        self.add_to_b = self.b.assign_add([10.0])
        self.raw = tf.Session()
        self.raw.run(tf.global_variables_initializer())
        self.devices = Devices()
        self.session = DeviceSession(self.raw, [self.a, self.b, self.step])

    def loop(self, a, b, step):
        """Returns the values the loop found on the devices."""
        with self.session.on_devices(self.devices.put) as state:
            found = [array._value.tolist() for array in state]
            new = (np.float32([a]), np.float32([b]), np.int64(step))
            state[:] = [Array(value, self.devices) for value in new]
        return found


@pytest.fixture
def world():
    with tf.Graph().as_default():
        yield World()


def test_the_first_loop_takes_every_variable(world):
    assert world.loop(3, 4, 1) == [[1.0], [2.0], 0]
    assert world.devices.put_values == [[[1.0], [2.0], 0]]


def test_nothing_moves_that_nobody_asks_for(world):
    for step in range(3):
        world.loop(step, step, step)
    assert world.devices.read == []
    assert world.devices.put_values[1:] == [[], []]


def test_a_run_brings_what_it_depends_on_and_once(world):
    world.loop(3, 4, 1)
    assert world.session.run(world.step) == 1
    assert world.devices.read == [1]
    assert world.session.run(world.a).tolist() == [3.0]
    assert world.session.run({"x": [world.total.name, world.a], object(): world.step})["x"][0] == [
        7.0
    ]
    assert world.devices.read == [1, [3.0], [4.0]]
    world.loop(5, 6, 2)
    assert world.session.run(world.total).tolist() == [11.0]
    assert world.devices.put_values[1:] == [[]]


def test_variables_that_share_a_tensor_as_their_initial_value():
    with tf.Graph().as_default():
        shared = tf.fill([1], 5.0)
        variables = [
            tf.get_variable(name, initializer=initial, use_resource=True)
            for name, initial in (("a", shared), ("b", shared), ("c", [6.0]))
        ]
        assert variables[0].initializer.inputs[1] is variables[1].initializer.inputs[1]
        raw = tf.Session()
        raw.run(tf.global_variables_initializer())
        session = DeviceSession(raw, variables)
        with session.on_devices(lambda values: values) as state:
            assert [value.tolist() for value in state] == [[5.0], [5.0], [6.0]]
            state[:] = [Array(np.float32([number]), Devices()) for number in range(3)]
        assert [value.tolist() for value in session.run(variables)] == [[0.0], [1.0], [2.0]]


def test_what_a_run_writes_goes_to_the_devices(world):
    world.loop(3, 4, 1)
    world.session.run(world.add_to_b)
    assert world.loop(5, 6, 2) == [[3.0], [14.0], 1]
    assert world.devices.put_values[1:] == [[[14.0]]]
    world.session.run(world.a.initializer, {world.a.initializer.inputs[1]: [7.0]})
    with world.session.as_default():
        assert world.a.eval().tolist() == [7.0]
    assert world.loop(0, 0, 3) == [[7.0], [6.0], 2]


def test_a_write_that_fails_halfway_is_a_write(world):
    with tf.control_dependencies([world.add_to_b]):
        fails = tf.debugging.Assert(False, ["failed"])
    world.loop(3, 4, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="failed"):
        world.session.run(fails)
    assert world.loop(0, 0, 2) == [[3.0], [14.0], 1]


@pytest.mark.parametrize("v2", [True, False])
def test_a_write_within_control_flow(world, v2):
    with world.raw.graph.as_default():
        (tf.enable_control_flow_v2 if v2 else tf.disable_control_flow_v2)()
        try:
            write = tf.cond(
                tf.constant(True), lambda: world.b.assign([8.0]) + 0, lambda: tf.zeros([1])
            )
        finally:
            tf.enable_control_flow_v2()
    world.loop(3, 4, 1)
    world.session.run(write)
    assert world.loop(0, 0, 2) == [[3.0], [8.0], 1]


def test_a_callable_does_as_a_run(world):
    holder = tf.placeholder(tf.float32, [1])
    set_a = world.session.make_callable(world.a.assign(holder), feed_list=[holder])
    world.loop(3, 4, 1)
    set_a([9.0])
    assert world.loop(0, 0, 2) == [[9.0], [4.0], 1]


def test_a_saver_saves_what_is_on_the_devices(world, tmp_path):
    saver = tf.train.Saver()
    world.loop(3, 4, 1)
    saver.save(world.session, str(tmp_path / "model"))
    assert tf.train.load_variable(str(tmp_path / "model"), "a").tolist() == [3.0]
    saver.restore(world.session, str(tmp_path / "model"))
    assert world.loop(0, 0, 2) == [[3.0], [4.0], 1]


def test_the_state_after_an_error_in_a_loop_is_the_devices_own(world):
    def loop():
        with world.session.on_devices(world.devices.put) as state:
            state[:] = [Array(v, world.devices) for v in (np.float32([8]), np.float32([9]), 7)]
            raise LookupError

    with pytest.raises(LookupError):
        loop()
    assert world.session.run(world.total).tolist() == [17.0]


def test_another_thread_waits_for_the_loop_s_end_where_it_needs_variables(world):
    seen = []
    constant = tf.constant(5)

    def run(fetch):
        thread = threading.Thread(target=lambda: seen.append(world.session.run(fetch).tolist()))
        thread.start()
        return thread

    with world.session.on_devices(world.devices.put) as state:
        run(constant).join()
        waiting = run(world.total)
        state[:] = [Array(v, world.devices) for v in (np.float32([3]), np.float32([4]), 1)]
        assert seen == [5]
    waiting.join()
    assert seen == [5, [7.0]]


def test_the_rest_is_the_session_s_own(world):
    assert world.session.graph is world.raw.graph
    assert world.session.sess_str == world.raw.sess_str
    assert len(world.session.list_devices()) == len(world.raw.list_devices())
    with pytest.raises(NotImplementedError):
        world.session.partial_run_setup([world.a])
