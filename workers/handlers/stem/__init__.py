"""Natural science: choices, values with units, terms and formulas; a Python tool to compute with, and a search where the worker has one."""
