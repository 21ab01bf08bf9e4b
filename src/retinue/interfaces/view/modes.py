"""Names and explanations of the modes, for people."""

from __future__ import annotations

from retinue.domain.grant import Mode

MODES = {
    Mode.PLAN: "agents only read",
    Mode.NORMAL: "agents ask before they change files or run commands",
    Mode.AUTO: "agents change files and run commands without asking",
    Mode.DANGEROUS: "agents never ask",
}
