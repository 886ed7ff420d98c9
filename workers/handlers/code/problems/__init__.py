"""Problems of our own for the task `code`."""
