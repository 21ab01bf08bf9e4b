"""A program that matches lines, started by `search`; it imports the standard library only.

`re` holds the interpreter lock while it matches, and some patterns match for years. A process can
be killed.

Standard input: a line of JSON (the pattern), then for each file a line of JSON (its size) and its
bytes. Standard output: a line of JSON for each hit, [index of the file, line number]; or
{"error": …} if the pattern is invalid.
"""

from __future__ import annotations

import json
import re
import sys
from typing import BinaryIO

MAX_LINE_CHARS = 2_000


def main(stdin: BinaryIO, stdout: BinaryIO) -> None:
    try:
        pattern = re.compile(json.loads(stdin.readline()))
    except (re.error, OverflowError, RecursionError) as error:
        stdout.write(json.dumps({"error": str(error)}).encode() + b"\n")
        return
    index = 0
    while header := stdin.readline():
        text = stdin.read(json.loads(header)).decode("utf-8", "replace")
        for number, line in enumerate(text.split("\n"), 1):
            if pattern.search(line[:MAX_LINE_CHARS].rstrip("\r")):
                stdout.write(b"[%d,%d]\n" % (index, number))
                stdout.flush()
        index += 1


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
