"""What is done with every graph and program, and a test of a few small steps can do without.

TensorFlow rewrites a graph, and remembers the calls that made each operation, to name the line in
errors. XLA optimizes the program of a core, which is half of the time to compile it.
"""

import contextlib
import os

import tensorflow.compat.v1 as tf
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.client import session as tf_session
from tensorflow.python.framework import op_def_library
from tensorflow.python.util import tf_stack

# For copies of this process, which `forked` makes.
_NOT_REWRITTEN, _WITHOUT_STACKS = "GRAPHS_ARE_NOT_REWRITTEN", "OPERATIONS_ARE_WITHOUT_STACKS"
_NOT_OPTIMIZED = "PROGRAMS_ARE_NOT_OPTIMIZED"
_NEW_SESSION = tf_session.BaseSession.__init__
_CHECK_TYPE = op_def_library._SatisfiesTypeConstraint


# TensorFlow would write the names of the allowed types for an error that does not come.
def _check_type(dtype, attr_def, param_name):
    if attr_def.HasField("allowed_values") and dtype not in attr_def.allowed_values.list.type:
        _CHECK_TYPE(dtype, attr_def, param_name)


op_def_library._SatisfiesTypeConstraint = _check_type


def _without_rewriting(self, target="", graph=None, config=None):
    own = tf.ConfigProto()
    if config is not None:
        own.CopyFrom(config)
    own.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    own.graph_options.rewrite_options.disable_meta_optimizer = True
    _NEW_SESSION(self, target, graph, own)


def _no_stack(stacklevel=1):
    return None


def _keep_no_stack(operation, stack):
    pass


def switch_rewriting_off(patched) -> None:
    """Switches the rewriting off in new sessions until a `pytest.MonkeyPatch` is undone."""
    patched.setattr(tf_session.BaseSession, "__init__", _without_rewriting)
    patched.setenv(_NOT_REWRITTEN, "1")


def switch_rewriting_on(patched) -> None:
    """Undoes `switch_rewriting_off` until a `pytest.MonkeyPatch` is undone."""
    patched.setattr(tf_session.BaseSession, "__init__", _NEW_SESSION)
    patched.delenv(_NOT_REWRITTEN, raising=False)


def switch_stacks_off(patched) -> None:
    """New operations do not know what made them until a `pytest.MonkeyPatch` is undone."""
    patched.setattr(tf_stack, "extract_stack", _no_stack)
    patched.setattr(pywrap_tf_session, "TF_SetOpStackTrace", _keep_no_stack)
    patched.setenv(_WITHOUT_STACKS, "1")


@contextlib.contextmanager
def little_optimizing():
    """XLA optimizes little in the programs that cores get meanwhile."""
    os.environ[_NOT_OPTIMIZED] = "1"
    _optimize_little(True)
    try:
        yield
    finally:
        del os.environ[_NOT_OPTIMIZED]
        _optimize_little(False)


def _optimize_little(value):
    with contextlib.suppress(ImportError):
        import jax

        jax.config.update("jax_disable_most_optimizations", value)


def do_as_original() -> None:
    """Switches off in a copy of a process what that process had switched off."""
    if _NOT_REWRITTEN in os.environ:
        tf_session.BaseSession.__init__ = _without_rewriting
    if _WITHOUT_STACKS in os.environ:
        tf_stack.extract_stack = _no_stack
        pywrap_tf_session.TF_SetOpStackTrace = _keep_no_stack
    if _NOT_OPTIMIZED in os.environ:
        _optimize_little(True)
