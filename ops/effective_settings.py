"""The settings that a process started here and now would have, and where each comes from. Nothing shown holds a secret: passwords and keys
are in files, whose paths are settings, and what an address holds of one is taken out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import PydanticUndefined

from pipeline.errors import InvalidRequest
from pipeline.logs import redact_text
from pipeline.settings import TableSettings, read_table

SECRET_NAMES = re.compile(r"(password|token|secret|api_?key|key)$")
"""A setting of such a name that is no path of a file is not shown. None is known; a later one shall not be the first to leak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """One setting."""

    table: str
    name: str
    value: str
    """As text; empty = none."""
    origin: str
    """`default`, `environment ROLLSTREAM_...` or `file PATH`."""


def effective(
    models: Mapping[str, type[TableSettings]], file: Path | None, environ: Mapping[str, str] | None = None
) -> Iterator[Effective]:
    """Every setting of some tables, in their order.

    Args:
        models: by table.
        file: a `rollstream.toml`; None = the one of the working folder, if there is one.

    Raises:
        InvalidRequest: the file is not there, or is none.
    """
    env = os.environ if environ is None else environ
    where = str(file or Path("rollstream.toml").resolve())
    for table, model in models.items():
        said = read_table(file, table)
        unknown = sorted(said.keys() - model.model_fields.keys())
        if unknown:
            known = ", ".join(model.model_fields)
            raise InvalidRequest(f"{where}: [{table}] has no setting {unknown[0]!r}; there are: {known}", field=f"{table}.{unknown[0]}")
        for name, field in model.model_fields.items():
            variable = model.variables + name.upper()
            if env.get(variable):
                value, origin = env[variable], f"environment {variable}"
            elif name in said:
                value, origin = _as_text(said[name]), f"file {where}"
            elif field.default is PydanticUndefined and field.default_factory is None:
                value, origin = "", "required"
            else:
                value, origin = _as_text(field.get_default(call_default_factory=True, validated_data={})), "default"
            yield Effective(table=table, name=name, value=shown(name, value), origin=origin)


def shown(name: str, value: str) -> str:
    """A value without what nobody is to read."""
    if value and SECRET_NAMES.search(name):
        return "***"
    return redact_text(value)


def _as_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return str(value)
