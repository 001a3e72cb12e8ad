"""Checks of the constants of schedules and pieces, which raise ValueError."""

import math


def check_positive(name: str, value: float, hint: str = "") -> None:
    if not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"{name}={value}: must be a finite number > 0{hint}.")


def check_not_negative(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0.0):
        raise ValueError(f"{name}={value}: must be a finite number >= 0.")


def check_decay_rate(name: str, beta: float) -> None:
    if not 0.0 <= beta < 1.0:
        raise ValueError(f"{name}={beta}: must be at least 0 and below 1.")
