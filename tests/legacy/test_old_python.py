"""What Python 3.7 had, and what NumPy did then, under the runner."""

import legacy_script
from fixtures import needs_tensorflow_1

SCRIPT = """
import base64, configparser, fractions, html.parser, imp, inspect, io, json, locale, os, pipes
import random, threading, time, unittest
from distutils.util import strtobool
from distutils.version import LooseVersion
import xml.etree.cElementTree as tree
import numpy as np
import tensorflow as tf

def function(a, b=2, *others, **named):
    pass

spec = inspect.getargspec(function)
assert spec.args == ["a", "b"] and spec.defaults == (2,)
assert (spec.varargs, spec.keywords) == ("others", "named") and spec[0] == ["a", "b"]
assert inspect.formatargspec(*spec) == "(a, b=2, *others, **named)"
assert pipes.quote("a b") == "'a b'" and strtobool("yes") and LooseVersion("1.15") > "1.9"
assert time.clock() <= time.clock() and fractions.gcd(12, 18) == 6
assert base64.decodestring(base64.encodestring(b"text")) == b"text"
assert locale.format("%d", 12) == "12"
thread = threading.Thread(target=len, args=[[]])
assert not thread.isAlive()
parser = configparser.SafeConfigParser()
parser.readfp(io.StringIO(u"[a]\\nb = c\\n"))
assert parser.get("a", "b") == "c"
assert html.parser.HTMLParser().unescape("&lt;") == "<"
assert tree.fromstring("<a><b/></a>").find("b").tag == "b"
with open("own.py", "w") as file:
    file.write("value = 3")
assert imp.load_source("own", "own.py").value == 3
import own
assert imp.reload(own).value == 3 and imp.new_module("new").__name__ == "new"
assert json.loads("[1]", encoding="utf-8") == json.load(io.StringIO("[1]"), encoding="utf-8") == [1]
assert sorted(random.sample({1, 2, 3}, 3)) == [1, 2, 3]
assert len(random.Random(0).sample(frozenset("ab"), 1)) == 1
shares, values, others = [0.9, 0.0, 0.5], [*"abcd"], [*"abcd"]
random.shuffle(values, iter(shares).__next__)
random.Random(1).shuffle(others, iter(shares).__next__)
assert values == others == ["c", "b", "a", "d"], values
random.seed(2)
random.shuffle(values)
assert sorted(values) == [*"abcd"]
assert np.sum(x for x in [1, 2, 3]) == 6 and np.sum([[1, 2], [3, 4]], axis=0).tolist() == [4, 6]

class Test(tf.test.TestCase):
    def test(self):
        self.assertEquals(1, 1)
        self.assertNotEquals(1, 2)
        self.assertAlmostEquals(1.0, 1.0)
        self.assertRaisesRegexp(ValueError, "invalid", int, "a")
        self.assertRegexpMatches("abc", "b")
        self.assert_(True)

    def test_parts(self):
        self.assertDictContainsSubset({"a": 1}, {"a": 1, "b": 2})
        with self.assertRaises(AssertionError):
            self.assertDictContainsSubset({"a": 2}, {"a": 1, "b": 2})

result = unittest.TestResult()
unittest.makeSuite(Test).run(result)
assert result.testsRun == 3  # tf.test.TestCase has a test of its own
assert result.wasSuccessful(), result.errors
print("all")
"""


def test_a_script_finds_it(tmp_path):
    assert legacy_script.run(tmp_path, SCRIPT).stdout == "all\n"


@needs_tensorflow_1
def test_the_script_runs_on_tensorflow_1(tmp_path):
    assert legacy_script.run_on_tensorflow_1(tmp_path, SCRIPT).stdout == "all\n"
