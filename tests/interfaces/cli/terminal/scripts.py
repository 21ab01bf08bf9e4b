"""Scripts of models for several tests of the terminal."""

from __future__ import annotations

# The children answer when the day is over.
LEAD = """
rules:
  - match: You are a coding agent
    steps:
      - say: I will ask some children.
        calls: [{call: list_dir}]
      - calls:
          - call: spawn_agent
            args: {role: tester, task: "Write tests for auth.ts", max_turns: 10}
          - {call: spawn_agent, args: {role: researcher, task: "Break it"}}
          - {call: spawn_agent, args: {role: researcher, task: "Find it"}}
          - {call: spawn_agent, args: {role: reviewer, task: "Wait for a place"}}
      - say: never
  - match: Break
    steps: [{fail: refused, message: The server said no.}]
  - match: Find
    steps: [{say: "It is here.\\nAnd there."}]
  - match: ""
    steps:
      - {call: list_dir}
      - {call: read_file, args: {path: script.yaml}}
      - {say: never, delay_s: 3000}
"""

ASK = """
rules:
  - match: You are a coding agent
    steps:
      - calls:
          - {call: spawn_agent, args: {role: researcher, task: "Look", background: true}}
          - {call: write_file, args: {path: a.txt, content: "hi"}}
          - {call: write_file, args: {path: b.txt, content: "hi"}}
      - {call: spawn_await, args: {job_ids: "*"}}
      - say: Done.
  - match: ""
    steps: [{say: Looked.}]
"""
