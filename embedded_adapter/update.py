"""Takes a newly trained adapter into the package, and describes it in the manifest beside it.

python embedded_adapter/update.py FILE SCORES
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from retinue.embedded.adapter import FILE, MANIFEST, PACKAGE, PROMPT_FORMAT
from retinue.embedded.weights import WEIGHTS

content, scores = Path(sys.argv[1]).read_bytes(), sys.argv[2]
folder = Path(__file__).parent / "src" / PACKAGE
(folder / FILE).write_bytes(content)
manifest = {
    "sha256": hashlib.sha256(content).hexdigest(),
    "base_sha256": WEIGHTS.file_sha256,
    "prompt_format": PROMPT_FORMAT,
    "scores": scores,
}
(folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
