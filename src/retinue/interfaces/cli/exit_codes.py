"""What the exit codes mean."""

from __future__ import annotations

EXIT_CODES = {
    0: "done",
    1: "failed",
    2: "the command line or a setting is wrong; nothing was started",
    3: "a budget or a timeout ended it; what there was is printed",
    4: "something needed an approval, and nobody was there to give it",
    130: "interrupted or cancelled; every agent was closed",
}
