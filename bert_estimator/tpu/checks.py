"""Checks that the estimators' arguments, configs and specs share."""

import functools
import numbers

import tensorflow.compat.v1 as tf


def checked(kind: type) -> type:
    """Has a `NamedTuple` class check its values, in the constructor and in `_replace` alike.

    Args:
      kind: a `NamedTuple` class with a method `_settled(self, replaced)`. The method raises an
        error for values that cannot work, and returns a dict of the fields that become something
        else. `replaced` is the tuple that `_replace` was called on, or None.

    Returns:
      The class.
    """
    new, replace = kind.__new__, kind._replace

    @functools.wraps(new)
    def checked_new(cls, *args, **kwargs):
        given = new(cls, *args, **kwargs)
        return replace(given, **given._settled(None))

    @functools.wraps(replace)
    def checked_replace(self, **kwargs):
        unknown = sorted(set(kwargs) - set(kind._fields))
        if unknown:  # Python's own error is a ValueError, and from 3.13 on a TypeError
            raise ValueError(f"Got unexpected field names: {unknown!r}")
        given = replace(self, **kwargs)
        return replace(given, **given._settled(self))

    kind.__new__ = staticmethod(checked_new)
    kind._replace = checked_replace
    return kind


def positive_int(value, name: str) -> int:
    """Returns a positive integer as an int; NumPy's integers are integers, and bools are not.

    Args:
      name: what the value is, for the message.

    Raises:
      TypeError: it is not an integer.
      ValueError: it is not positive.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be int, and positive, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be positive, not {value!r}")
    return int(value)


def hooks(given, name: str) -> tuple[tf.train.SessionRunHook, ...]:
    """Returns hooks as a tuple.

    Args:
      given: an iterable of `tf.train.SessionRunHook`s, or None.
      name: what they are, for the message.

    Raises:
      TypeError: something in it is not a hook, or it is not an iterable.
    """
    try:
        given = tuple(given or ())
    except TypeError:
        raise TypeError(f"{name} must be a list of hooks, not {given!r}") from None
    for hook in given:
        if not isinstance(hook, tf.train.SessionRunHook):
            raise TypeError(f"All hooks must be SessionRunHook instances, but {name} has {hook!r}")
    return given


def members(kind: type, base: type, allowed: tuple[str, ...]) -> None:
    """Checks that a user's class does not override the members of an estimator.

    Args:
      kind: the class. Our own classes have `_is_ours = True`: they may override what they like.
      base: the `Estimator` class.
      allowed: the names of the members that may be overridden.

    Raises:
      ValueError: it overrides others; the text names them.
    """
    for each in kind.__mro__:
        if vars(each).get("_is_ours"):
            return
        if each.__name__ == "TPUEstimator":
            continue  # a script's own copy of TPUEstimator, which upstream lets override anything
        overridden = [
            name
            for name, value in vars(each).items()
            if hasattr(base, name)
            and not name.startswith("__")
            and name not in allowed
            and value is not getattr(base, name)
        ]
        if overridden:
            raise ValueError(
                "Subclasses of Estimator cannot override members of Estimator: "
                f"{each.__name__} overrides {', '.join(sorted(overridden))}. Allowed are "
                f"{', '.join(allowed)}. Give what differs to the constructor"
            )
