"""Tests what protobuf, NumPy and `collections` accept for TF1 scripts, and what is written."""

import sys

import legacy_script
import numpy as np
import pytest
from fixtures import needs_tensorflow_1

SCRIPT = """
import collections
import google.protobuf
import numpy as np
import tensorflow as tf

assert tf.TensorShape([None, 784 / 2]).as_list() == [None, 392]
assert tf.get_variable("w", [np.float64(6.0), 2]).shape.as_list() == [6, 2]
assert isinstance(tf.get_variable("resource", [2], use_resource=True), tf.Variable)
assert isinstance(tf.get_variable("reference", [2], use_resource=False), tf.Variable)
assert not isinstance(tf.zeros([2]), tf.Variable)

numbers = tf.train.Int64List(value=[True, np.bool_(False), 3])
numbers.value.append(np.bool_(True))
numbers.value.extend(word == "a" for word in "ab")
numbers.value[0] = False
numbers.value.insert(0, True)
assert list(numbers.value) == [1, 0, 0, 3, 1, 1, 0]
numbers.value[1:] = [True, np.bool_(True)]
assert list(numbers.value) == [1, 1, 1]
assert list(tf.train.Int64List(value=np.array([True, False])).value) == [1, 0]
assert list(tf.train.FloatList(value=[True, np.bool_(False)]).value) == [1.0, 0.0]
assert not tf.train.Int64List().value

if not google.protobuf.__version__.startswith("3.2"):  # 3.20 is stricter than 3.11 was
    assert list(tf.train.Int64List(value=[np.array(3), np.array([True]), 4]).value) == [3, 1, 4]
    floats = tf.train.FloatList(value=[np.zeros([]), np.float32(2.5), np.ones([1, 1])])
    floats.value.append(np.array([0.5]))
    floats.value[0] = np.array(4.0)
    assert list(floats.value) == [4.0, 2.5, 1.0, 0.5]
    assert list(tf.train.FloatList(value=np.ones([2, 1])).value) == [1.0, 1.0]

feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[True]))
example = tf.train.Example(features=tf.train.Features(feature={"is_real": feature}))
example.features.feature["next"].int64_list.value.append(False)
with tf.python_io.TFRecordWriter("records") as writer:
    writer.write(example.SerializeToString())
(record,) = tf.python_io.tf_record_iterator("records")
assert isinstance(feature.int64_list, tf.train.Int64List)
assert list(tf.train.Example.FromString(record).features.feature["is_real"].int64_list.value) == [1]
text = tf.train.BytesList(value=[b"a"])

def refused(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except TypeError:
        return True

assert refused(text.value.append, True) and refused(text.value.extend, [True])
assert refused(tf.train.BytesList, value=[True])
for wrong in (["a"], [1.5], 3, [None], [np.array(1.5)], [np.zeros([2], int)], [np.zeros([0], int)]):
    assert refused(tf.train.Int64List, value=wrong), wrong

a = np.zeros([2], np.float)
assert a.dtype == np.float_ and np.array([1], np.int).dtype == np.int64
assert np.array(["a"], np.object)[0] == "a" and isinstance("a", np.str)
assert np.array([1], np.bool).dtype == bool and np.array([1], np.long).dtype == np.int64
assert np.isnan(np.NaN) and np.PINF == np.Inf == -np.NINF
assert np.product([2, 3]) == 6 and np.alltrue([True]) and np.asscalar(np.array([2])) == 2
assert np.array(a, copy=False).size == np.random.randint(17, 80, 2).size == 2
assert np.in1d([[1, 2]], [2]).tolist() == [False, True]
assert np.fromstring(b"\\x01\\x02", dtype=np.uint8).tolist() == [1, 2]
assert np.fromstring(np.array([1.5]).tobytes())[0] == 1.5
assert np.fromstring("1 2", dtype=np.int64, sep=" ").tolist() == [1, 2]
assert issubclass(dict, collections.Mapping)

CORES = ""  # In TensorFlow 1 no master has the name of a core here.
if hasattr(tf.Session.reset, "__wrapped__"):
    CORES = "rehearse:2"
tf.Session.reset(CORES)
tf.Session.reset(CORES, ["a container"])
for session in (tf.Session(CORES), tf.Session(target=CORES)):
    assert session.run(tf.constant(3)) == 3
with tf.Graph().as_default():
    three = tf.constant(3)
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(master=CORES)) as session:
        assert session.run(three) == 3
assert refused(tf.Session, 3)

from tensorflow.contrib import framework
with tf.Graph().as_default():
    local = framework.local_variable(1.0, name="local")
    assert local in tf.local_variables() and local not in tf.trainable_variables()
print("all")
"""

# Up to TensorFlow 1.13, the name of absl.logging's flag was free.
OF_1_13 = """
tf.app.flags.DEFINE_string("log_dir", "logs", "where")
assert tf.app.flags.FLAGS.log_dir == "logs"
"""


# What `python -W error -m bert_estimator.legacy` does after TensorFlow is loaded.
RUNNER = """
import runpy, warnings
warnings.simplefilter("error")
if {is_old}:
    warnings.simplefilter("ignore", DeprecationWarning)
runpy.run_module("bert_estimator.legacy", run_name="__main__", alter_sys=True)
"""


def test_a_script_may_use_what_todays_packages_refuse(tmp_path):
    # NumPy before 2.4 still has old names, and warns of them.
    runner = RUNNER.format(is_old=hasattr(np, "in1d"))
    done = legacy_script.run(tmp_path, SCRIPT + OF_1_13, command=[sys.executable, "-c", runner])
    assert done.stdout == "all\n"


WRITING = """
import collections, csv, pprint, sys, threading
import numpy as np
import tensorflow as tf

half = np.float32(0.5)
result = collections.OrderedDict([("loss", half), ("global_step", np.int64(3))])

def write(where):
    print(where, repr(half), [np.float64(0.1)], (np.int64(3), np.bool_(True)), flush=True)

write("main")
print(result, {"a": [half]}, {half: {half}}, "%s %r" % ([half], half))
print("{0} {0!r} {1}".format(half, [half]), repr(np.complex64(1 + 2j)), repr(np.str_("a")))
pprint.pprint({"a": [half], "b": np.float16(0.1)})
csv.writer(sys.stdout, lineterminator="\\n").writerow([half, np.float64(0.1), np.int64(3), [half]])
print(repr(np.array([half, None])), np.arange(2000), repr(np.zeros([2], np.float32)))
print(repr(np.array([(1, 2 + 3j)], "i4,c8")), np.finfo(np.float32).max)
sys.stdout.flush()
for key in sorted(result.keys()):  # as google-research/bert writes eval_results.txt
    print("%s = %s" % (key, str(result[key])))

def in_another_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()

in_another_thread(lambda: write("thread"))
with tf.Session() as session:
    session.run(tf.py_func(lambda: write("session") or 0, [], tf.int64))
np.set_printoptions(precision=2)
in_another_thread(lambda: print(np.array([1 / 3]), [half]))
"""
# What TensorFlow 1.15.5 and NumPy 1.18 write.
WRITTEN = """\
main 0.5 [0.1] (3, True)
OrderedDict([('loss', 0.5), ('global_step', 3)]) {'a': [0.5]} {0.5: {0.5}} [0.5] 0.5
0.5 0.5 [0.5] (1+2j) 'a'
{'a': [0.5], 'b': 0.1}
0.5,0.1,3,[0.5]
array([0.5, None], dtype=object) [   0    1    2 ... 1997 1998 1999] array([0., 0.], dtype=float32)
array([(1, 2.+3.j)], dtype=[('f0', '<i4'), ('f1', '<c8')]) 3.4028235e+38
global_step = 3
loss = 0.5
thread 0.5 [0.1] (3, True)
session 0.5 [0.1] (3, True)
[0.33] [0.5]
"""


def test_numbers_are_written_as_then(tmp_path):
    done = legacy_script.run(tmp_path, WRITING)
    # `OrderedDict` is written otherwise since Python 3.12.
    dictionary = "OrderedDict({'loss': 0.5, 'global_step': 3})"
    text = done.stdout.replace(dictionary, "OrderedDict([('loss', 0.5), ('global_step', 3)])")
    assert text == WRITTEN


@needs_tensorflow_1
@pytest.mark.parametrize(
    ("script", "written"), [(SCRIPT, "all\n"), (WRITING, WRITTEN)], ids=["accepted", "written"]
)
def test_the_script_runs_on_tensorflow_1(tmp_path, script, written):
    assert legacy_script.run_on_tensorflow_1(tmp_path, script).stdout == written
