"""Episodes that ship with the task `gym`."""
