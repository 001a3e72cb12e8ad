"""The error of a library function's argument, which scripts report as the error of a flag."""


class ArgumentError(ValueError):
    """The value of an argument cannot work.

    Its text begins with the argument's name and says what is allowed and what to do. Arguments and
    flags have the same names, so `command_line.console` reports it as the error of a flag.

    Args:
      argument: name of the argument.
      rule: what is wrong, what is allowed, and what to do.
      value: the value, or None if the rule says it.
    """

    def __init__(self, argument: str, rule: str, value: object = None):
        super().__init__(f"{argument}: {rule}" if value is None else f"{argument}={value}: {rule}")
