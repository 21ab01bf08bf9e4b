"""`retinue audit`: checks that a run's journal is unchanged."""

from __future__ import annotations

import click
import msgspec

from retinue.domain.plural import plural
from retinue.errors import ChainBroken
from retinue.interfaces.cli.chosen_run import chosen_run
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import directory_option, json_flag, optional_run_argument
from retinue.interfaces.cli.terminal.output import print_json, print_line, print_text
from retinue.project import open_run
from retinue.runtime.history.audit import audit as audit_run


@click.command()
@optional_run_argument
@directory_option
@json_flag("Print the outcome as one JSON object.")
@async_command
async def audit(run: str | None, directory: str, as_json: bool) -> int:
    """Verify the hash chain of RUN's journal. Exits with 1 if an event was changed.

    Without RUN, verify the last run. RUN may also be a file that `retinue export` has written.

    Example: retinue audit k3f9
    """
    if run is None:  # The row of a named run is part of what is verified.
        run, _ = await chosen_run(directory, None)
    async with open_run(directory, run) as (store, run_id):
        try:
            found = await audit_run(store, run_id)
        except ChainBroken as broken:
            if as_json:
                print_json({"ok": False, "seq": broken.seq, "error": str(broken)})
            else:
                print_text(f"BROKEN at event {broken.seq}: {broken}")
            return 1
    if as_json:
        print_json({"ok": True, **msgspec.structs.asdict(found)})
    elif found.pruned:
        print_line(
            f"ok: the outcome of run {found.run_id} and the hashes of"
            f" {plural(found.agents, 'contract')} are unchanged;"
            f" {found.pruned:,} events were cleaned away (head {found.head_hash[:12]})"
        )
    else:
        print_line(
            f"ok: {found.events} events and {plural(found.agents, 'contract')} of run"
            f" {found.run_id} are unchanged (head {found.head_hash[:12]})"
            + (f"; so is the event of run {found.origin} that it forks" if found.origin else "")
        )
    return 0
