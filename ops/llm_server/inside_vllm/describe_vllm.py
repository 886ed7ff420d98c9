"""Describes the vLLM of the interpreter that runs this file, as one JSON line on standard output.

    {"version": "0.32.0", "device": "cpu", "flags": ["--api-key", ...], "module": ["vllm.entrypoints.cli.main", "serve"]}

`module` is what starts the server after `python -m`. The command `vllm serve` looks its own version up under the distribution's name
`vllm`, which builds for the CPU do not have; there the server's own module is the one that works. Flags come from the parser that the
server itself builds, so the answer is that of this very version. Its module has moved between versions; where none of the known ones is
there, the help text is read instead.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import re
import sys

PARSER_MODULES = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
"""Where `make_arg_parser` lives: since 0.31, and before."""
SERVER_MODULES = ("vllm.entrypoints.launchers.api_server.entry", "vllm.entrypoints.openai.api_server")
"""The server as a program of its own: since 0.31, and before."""
NOT_INSTALLED = 3
"""Exit code when there is no vLLM here."""


def main() -> int:
    """Print the description; everything else that vLLM prints on import goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        import vllm.version
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "vllm":
            raise
        return NOT_INSTALLED
    out.write(
        json.dumps(
            {
                "version": str(vllm.version.__version__),
                "device": _device(),
                "flags": sorted(_flags()),
                "module": _module(),
            }
        )
        + "\n"
    )
    out.flush()
    return 0


def _module() -> list[str]:
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return [next(name for name in SERVER_MODULES if _is_there(name))]
    return ["vllm.entrypoints.cli.main", "serve"]


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _device() -> str:
    """What vLLM would run on here; empty when it found nothing."""
    from vllm.platforms import current_platform

    return str(getattr(current_platform, "device_type", "") or "")


def _flags() -> set[str]:
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ModuleNotFoundError:  # until 0.11
        from vllm.utils import FlexibleArgumentParser

    for name in PARSER_MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        parser = module.make_arg_parser(FlexibleArgumentParser())
        return {option for action in parser._actions for option in action.option_strings if option.startswith("--")}
    return _flags_in_help()


def _flags_in_help() -> set[str]:
    from vllm.entrypoints.cli.main import main as command

    text = io.StringIO()
    sys.argv = ["vllm", "serve", "--help=all"]
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        command()
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text.getvalue()))


if __name__ == "__main__":
    sys.exit(main())
