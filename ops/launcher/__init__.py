"""What `ops/launch` does once it has found a Python: the environment, the demo, the checks.

Standard library only, on a bare Python 3.11 or newer: nothing of this project is installed yet when it runs.

- `commands`: the command line
- `environment`: `.venv`, complete or completed under a lock
- `bootstrap_pip`, `package_index`: pip on a Python that came without it, from the index that pip is configured for
- `make_bundle`, `bundled`: one file for machines without a network; `bundle_file`, `bundle_target`, `bundle_wheels`: parts of it
- `installs`: pip at work, shown while it runs and explained when it fails
- `servers`: the Redis and Valkey binaries that tests run on
- `checks`: the steps of `ops/launch test`
- `child`: a child process that never outlives us
"""

__all__: list[str] = []
