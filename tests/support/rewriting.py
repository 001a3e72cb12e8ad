"""TensorFlow's rewriting of graphs, switched off in this process and in its copies.

In a session that runs a few small steps, most of the time would go into it.
"""

import os

import tensorflow.compat.v1 as tf
from tensorflow.python.client import session as tf_session

_VARIABLE = "GRAPHS_ARE_NOT_REWRITTEN"  # for copies of this process, which `forked` makes
_NEW_SESSION = tf_session.BaseSession.__init__


def _without_rewriting(self, target="", graph=None, config=None):
    own = tf.ConfigProto()
    if config is not None:
        own.CopyFrom(config)
    own.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    own.graph_options.rewrite_options.disable_meta_optimizer = True
    _NEW_SESSION(self, target, graph, own)


def switch_off(patched) -> None:
    """Switches the rewriting off in new sessions until a `pytest.MonkeyPatch` is undone."""
    patched.setattr(tf_session.BaseSession, "__init__", _without_rewriting)
    patched.setenv(_VARIABLE, "1")


def switch_on(patched) -> None:
    """Undoes `switch_off` until a `pytest.MonkeyPatch` is undone."""
    patched.setattr(tf_session.BaseSession, "__init__", _NEW_SESSION)
    patched.delenv(_VARIABLE, raising=False)


def do_as_original() -> None:
    """Switches it off in a copy of a process that had switched it off."""
    if _VARIABLE in os.environ:
        tf_session.BaseSession.__init__ = _without_rewriting
