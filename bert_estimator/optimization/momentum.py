"""Momentum as a piece of an optimizer (You et al., 2020, algorithm 1)."""


class Momentum:
    """Replaces updates by their exponential average: m = beta * m + (1 - beta) * u.

    The average is the float32 slot `<variable>/momentum`.
    """

    def __init__(self, beta):
        """Sets the decay rate.

        Args:
            beta: Python float, 0 <= beta < 1.

        Raises:
            ValueError: beta is out of range.
        """
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"beta={beta}: must be at least 0 and below 1.")
        self._beta = beta

    def __call__(self, update, parameter):
        """float32 update of the variable's shape -> float32 update of the same shape."""
        m = self._beta * parameter.slot("momentum") + (1.0 - self._beta) * update
        parameter.set_slot("momentum", m)
        return m
