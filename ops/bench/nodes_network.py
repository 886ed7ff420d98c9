"""Network namespaces on a bridge: "nodes" with an address of their own on one machine.

Everything is named by a random word and goes when the context is left. Nothing outside of this machine is reached: the bridge has no way
out.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass, field

TOOLS = ("ip", "nsenter")


class NoNamespaces(Exception):
    """Network namespaces cannot be made here; says why."""


@dataclass(slots=True)
class NodeNetwork:
    """A bridge and some namespaces, numbered from 1.

    Raises:
        NoNamespaces: on entering, when this user or this machine cannot; nothing is left then.
    """

    size: int
    word: str = field(default_factory=lambda: secrets.token_hex(2))

    def __enter__(self) -> NodeNetwork:
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if os.geteuid() != 0 or missing:
            raise NoNamespaces(f"network namespaces need root and {' and '.join(missing or TOOLS)}")
        try:
            self._make()
        except NoNamespaces:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    @property
    def here(self) -> str:
        """Address of this machine, as nodes reach it."""
        return f"{self._net}.1"

    def address(self, number: int) -> str:
        """Of a node."""
        return f"{self._net}.{10 + number}"

    def name(self, number: int) -> str:
        """Of a node's namespace."""
        return f"rsn{self.word}-{number}"

    def command_on(self, number: int, command: list[str]) -> list[str]:
        """What runs a command there; the process that is started is the command in the end."""
        return ["nsenter", f"--net=/run/netns/{self.name(number)}", "--", *command]

    def cut(self, number: int) -> None:
        """Takes a node off the network; what runs there goes on."""
        ip("link", "set", self._outer(number), "down")

    def join(self, number: int) -> None:
        """Brings it back."""
        ip("link", "set", self._outer(number), "up")

    def _make(self) -> None:
        ip("link", "add", self._bridge, "type", "bridge")
        ip("addr", "add", f"{self.here}/24", "dev", self._bridge)
        ip("link", "set", self._bridge, "up")
        for number in range(1, self.size + 1):
            netns, inner, outer = self.name(number), f"i{self.word}{number}", self._outer(number)
            ip("netns", "add", netns)
            ip("link", "add", outer, "type", "veth", "peer", "name", inner)
            ip("link", "set", outer, "master", self._bridge, "up")
            ip("link", "set", inner, "netns", netns)
            ip("-n", netns, "addr", "add", f"{self.address(number)}/24", "dev", inner)
            ip("-n", netns, "link", "set", inner, "up")
            ip("-n", netns, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for words in (*(("netns", "del", self.name(number)) for number in range(1, self.size + 1)), ("link", "del", self._bridge)):
            subprocess.run(["ip", *words], capture_output=True, check=False)

    @property
    def _net(self) -> str:
        return f"10.78.{int(self.word[:2], 16)}"

    @property
    def _bridge(self) -> str:
        return f"rsn{self.word}"

    def _outer(self, number: int) -> str:
        return f"o{self.word}{number}"


def ip(*words: str) -> None:
    """`ip WORDS`.

    Raises:
        NoNamespaces
    """
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoNamespaces(f"ip {' '.join(words)}: {done.stderr.strip()}")
