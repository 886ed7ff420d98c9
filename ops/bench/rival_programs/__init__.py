"""What the rivals run: each a program by itself, started by path in an environment that has the rival and nothing of ours."""
