"""Repairs of repositories: an issue, a repository, tools to work in it; what is judged is the patch, by tests that the agent never saw."""
