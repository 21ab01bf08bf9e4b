"""Cuts a journal off, as a killed process leaves it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def cut(path: Path, seq: int) -> None:
    """Make the journal what it was when that event was its last."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        kept = triggers.fetchall()
        for name, _ in kept:
            db.execute(f"DROP TRIGGER {name}")
        db.execute("DELETE FROM events WHERE seq > ?", (seq,))
        db.execute(
            "DELETE FROM sub_agents WHERE id NOT IN"
            " (SELECT agent_id FROM events WHERE type = 'agent.subagent_created')"
        )
        db.execute(
            "UPDATE sub_agents SET state = coalesce((SELECT CASE type"
            " WHEN 'agent.subagent_started' THEN 'running'"
            " WHEN 'agent.subagent_waiting_for_merge' THEN 'waiting_for_merge'"
            " WHEN 'agent.subagent_completed' THEN 'completed'"
            " WHEN 'agent.subagent_failed' THEN 'failed'"
            " WHEN 'agent.subagent_closed' THEN 'closed' END FROM events"
            " WHERE events.agent_id = sub_agents.id AND type IN"
            " ('agent.subagent_started', 'agent.subagent_waiting_for_merge',"
            " 'agent.subagent_completed', 'agent.subagent_failed', 'agent.subagent_closed')"
            " ORDER BY seq DESC LIMIT 1), 'created')"
        )
        db.execute(
            "UPDATE runs SET status = NULL, finished_at = NULL, (head_seq, head_hash, epoch) ="
            " (SELECT seq, hash, epoch FROM events ORDER BY seq DESC LIMIT 1)"
        )
        for _, sql in kept:
            db.execute(sql)
