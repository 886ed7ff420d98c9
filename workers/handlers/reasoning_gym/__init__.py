"""Puzzles of `reasoning-gym`: made and scored by that package, with its fractional scores."""
