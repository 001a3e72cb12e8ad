"""Which layers of an ALBERT share weights: other projects compute it with rounded fractions.

For most numbers of layers and groups, the outcome is the same as here.
"""

from bert_estimator.bert_config import BertConfig

GOOGLE, TRANSFORMERS = "google-research/albert", "transformers"

# The group of layer i, of L layers with G groups.
_GROUP_OF = {
    GOOGLE: lambda i, L, G: int(i / L * G),
    TRANSFORMERS: lambda i, L, G: int(i / (L / G)),
}


def check(config: BertConfig, project: str, path: str) -> None:
    """Checks that each layer of an ALBERT has the same weights here and in another project.

    Args:
      config: the network.
      project: GOOGLE or TRANSFORMERS.
      path: the place of the network, for errors.

    Raises:
      ValueError: a layer has other weights there.
    """
    layers, groups = config.num_hidden_layers, config.num_own_layers()
    for layer in range(layers):
        ours, theirs = config.group_of(layer), _GROUP_OF[project](layer, layers, groups)
        if ours != theirs:
            raise ValueError(
                f"{path}: num_hidden_layers={layers} with num_hidden_groups={groups} cannot be "
                f"exchanged with {project}: layer {layer} has the weights of group {ours} here, "
                f"and of group {theirs} there, where fractions are rounded (both count from 0). "
                "Train a network with another number of groups, such as 1"
            )
