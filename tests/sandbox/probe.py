"""A place to attack a sandbox from."""

from __future__ import annotations

from pathlib import Path

import msgspec

from retinue.domain.grant import Network
from retinue.domain.reach import Reach
from retinue.domain.scope import NOWHERE, Groups
from retinue.ports.sandbox import CommandResult, Sandbox


class SandboxProbe(msgspec.Struct, frozen=True):
    """A sandbox, a workspace in it, and a folder outside that nothing in it may touch."""

    sandbox: Sandbox
    root: Path
    outside: Path

    @property
    def full(self) -> bool:
        return self.sandbox.tier == "full"

    async def run(
        self,
        command: str,
        *,
        write: Groups = NOWHERE,
        network: Network = Network.NONE,
        timeout_s: float = 60,
        max_output_bytes: int = 20_000,
    ) -> CommandResult:
        return await self.sandbox.run(
            command,
            reach=Reach(root=str(self.root), write_scope=write, network=network),
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
        )

    async def python(
        self,
        code: str,
        *,
        write: Groups = NOWHERE,
        network: Network = Network.NONE,
        timeout_s: float = 60,
    ) -> CommandResult:
        """Run a program that lies in the workspace."""
        (self.root / "attack.py").write_text(code)
        return await self.run(
            "python3 attack.py", write=write, network=network, timeout_s=timeout_s
        )
