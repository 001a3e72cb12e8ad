"""What each target computes in its own way. The target is chosen here, and nowhere else.

A graph is built for one of three targets, each a module with the same functions:

    session    a session on this machine: on large tensors, several operations are one compiled
               pass, with gradients of their own
    program    one XLA program for each core, which XLA compiles as a whole
    portable   TensorFlow's own operations and gradients alone, for exports (`primitives.portable`)

Attention is defined in `modeling.self_attention`, of `heads`, `products`, `masked_logits`,
`softmax` and `means`; `SCALES_QUERY` says whether the query is scaled instead of the scores.

`means` takes `scores`, `logits`, `probs` and `mask` for its gradient alone. In program, it adds the
term that the gradient of `softmax` lacks, so that neither is right without the other.

The functions are `bias_add`, `cross_entropy`, `draw_mask`, `first_token`, `gather`, `gelu`,
`gelu_erf`, `heads`, `layer_norm`, `look_up_types`, `mask_and_scale`, `masked_logits`, `means`,
`products`, `softmax` and `used_rows`. session.py or formulas.py describes them, and modeling.py the
letters of their shapes.
"""

from types import ModuleType

from bert_estimator.graph.graph_walk import in_xla_program
from bert_estimator.layers import primitives
from bert_estimator.layers.kernels import portable, program, session


def of_graph() -> ModuleType:
    """Returns the module of the target that the current graph is built for."""
    if primitives.is_portable():
        return portable
    return program if in_xla_program() else session
