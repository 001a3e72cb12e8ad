"""Named training plans as data: values of flags, the command, the cost and the expected result."""
