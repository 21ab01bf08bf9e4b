"""Links by their code, kept in one JSON file."""

import json
from pathlib import Path

from snip.codes import new_code


class Links:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.urls: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}

    def add(self, url: str) -> str:
        code = new_code()
        self.urls[code] = url
        self.path.write_text(json.dumps(self.urls))
        return code

    def get(self, code: str) -> str | None:
        return self.urls.get(code)
