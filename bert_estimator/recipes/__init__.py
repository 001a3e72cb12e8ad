"""Named training plans as data: flags' values, with the command, the cost and what to expect."""
