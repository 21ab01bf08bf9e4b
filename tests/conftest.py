"""How hypothesis runs here: no deadlines, and the same examples every time on CI."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("default")
