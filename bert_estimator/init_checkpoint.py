"""Starting from another model's weights (`--init_checkpoint`), and saying exactly what happened."""

import tensorflow.compat.v1 as tf

from bert_estimator.flags import FlagError

# What a checkpoint holds besides weights: optimizer slots under the names of the BERT code bases.
_NO_WEIGHTS = ("adam_m", "adam_v", "lamb_m", "lamb_v", "LAMB", "LAMB_1", "accum")


def scaffold_fn(checkpoint, log=tf.logging.info):
    """Returns a `scaffold_fn` that initializes the graph's trainable variables from a checkpoint.

    Only weights are read: the global step and the optimizer's slots start anew. The estimator calls
    the function once the graph's variables are there. A checkpoint in its own directory outranks
    these initial values.

    Args:
      checkpoint: path prefix, or None.
      log: function (format, text) that gets the table of what is initialized from where.

    Returns:
      None where `checkpoint` is None.
    """
    if checkpoint is None:
        return None

    def initialize():
        variables = {v.op.name: v for v in tf.trainable_variables()}
        matched, report = match(checkpoint, variables)
        tf.train.init_from_checkpoint(checkpoint, {name: variables[name] for name in matched})
        log("%s", report)
        return tf.train.Scaffold()

    return initialize


def match(checkpoint, variables):
    """Compares a checkpoint with a model.

    Args:
      checkpoint: path prefix.
      variables: dict of name -> trainable variable.

    Returns:
      (names of the variables to initialize, report): the report is a table of what is initialized
      from the checkpoint, newly made, and unused in the checkpoint.

    Raises:
      FlagError: a variable has another shape in the checkpoint, or no variable is in it.
    """
    shapes = tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map()
    matched = sorted(set(variables) & set(shapes))
    new = sorted(set(variables) - set(shapes))
    unused = sorted(
        name
        for name in set(shapes) - set(variables)
        if name != tf.GraphKeys.GLOBAL_STEP and name.rsplit("/", 1)[-1] not in _NO_WEIGHTS
    )
    wrong = [
        f"{name}: {variables[name].shape.as_list()} in the model, {shapes[name]} in the checkpoint"
        for name in matched
        if variables[name].shape.as_list() != shapes[name]
    ]
    if wrong:
        raise FlagError(
            f"--init_checkpoint={checkpoint} does not fit --bert_config_file:\n  "
            + "\n  ".join(wrong)
        )
    if not matched:
        raise FlagError(
            f"--init_checkpoint={checkpoint} holds none of the model's {len(variables)} variables. "
            f"The model's begin with {sorted(variables)[:3]}, the checkpoint's with {unused[:3]}"
        )
    lines = [f"Initial weights from {checkpoint}:"]
    for title, names in (
        ("initialized from it", matched),
        ("newly initialized", new),
        ("in it, but unused", unused),
    ):
        lines.append(f"  {len(names):4d} {title}" + (": " + _shortened(names) if names else ""))
    return matched, "\n".join(lines)


def _shortened(names, most=4):
    rest = f", ... ({len(names) - most} more)" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
