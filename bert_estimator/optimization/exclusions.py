"""Exclusions: variables that a piece of an optimizer leaves alone, chosen by name."""

import re

# LayerNorm's gamma and beta, and every bias, of google-research/bert's and of slim's names.
LAYER_NORM_AND_BIAS = ("LayerNorm", "layer_norm", "bias")


class Exclusions:
    """A list of regular expressions, searched for anywhere in a variable's name.

    The name has no ":0" at its end, so that "kernel$" means what it says.
    """

    def __init__(self, patterns, argument):
        """Compiles the patterns.

        Args:
            patterns: list or tuple of regular expressions; empty excludes nothing.
            argument: the name of the argument they came from, for errors.

        Raises:
            ValueError: `patterns` is a single string, or one is no regular expression.
        """
        if isinstance(patterns, str):
            raise ValueError(
                f"{argument}={patterns!r}: must be a list of regular expressions; write "
                f"[{patterns!r}]."
            )
        self._patterns = []
        for pattern in patterns:
            try:
                self._patterns.append(re.compile(pattern))
            except re.error as error:
                raise ValueError(
                    f"{argument}: {pattern!r} is no regular expression ({error})."
                ) from error

    def __contains__(self, name):
        return any(pattern.search(name) for pattern in self._patterns)
