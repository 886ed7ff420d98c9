"""What the user that starts a keeper asks of it; travels as JSON on the keeper's standard input."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.embedded.lines import JsonObject
from pipeline.embedded.server_config import Directive, ServerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperRequest:
    """How to run the server of a data directory."""

    binary: Path
    run_dir: Path
    options: ServerOptions

    def to_json(self) -> str:
        """As it goes to the keeper's standard input."""
        return json.dumps({"binary": str(self.binary), "run_dir": str(self.run_dir), "options": asdict(self.options)})

    @classmethod
    def from_json(cls, text: str) -> KeeperRequest:
        """As it comes from standard input."""
        fields: JsonObject = json.loads(text)
        options: JsonObject = fields["options"]
        extra: list[list[str]] = options.pop("extra")
        directives: tuple[Directive, ...] = tuple(tuple(line) for line in extra)
        return cls(binary=Path(fields["binary"]), run_dir=Path(fields["run_dir"]), options=ServerOptions(**options, extra=directives))
