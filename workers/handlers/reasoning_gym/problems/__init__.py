"""Puzzles that ship with the task, made by `reasoning-gym` 0.1.25."""
