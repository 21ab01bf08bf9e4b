"""The adapter of the embedded model: small extra weights with which it calls tools.

It comes as a package of its own, with a manifest beside it. Without it the model has no tools.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import msgspec

from retinue.embedded.weights import WEIGHTS, WeightsPackage, has_sha256

PACKAGE = "retinue_embedded_adapter"
FILE = "adapter.gguf"
MANIFEST = "adapter.json"
# Raised with each change of `prompt.py`, because that needs a new training.
PROMPT_FORMAT = 1


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """An installed adapter, as its manifest describes it."""

    path: Path
    sha256: str = ""
    base_sha256: str = ""
    """Hash of the weights that it was trained for."""
    prompt_format: int = 0
    scores: str = ""
    """The share of tasks that it solved in measurements, as a part of a sentence."""

    def problem(self, weights: WeightsPackage = WEIGHTS) -> str:
        """One sentence and the way out if it cannot be used with `weights`; else ""."""
        if not has_sha256(self.path, self.sha256):
            return (
                f"The adapter of the embedded model in {self.path} is damaged. Install it again:"
                " pip install --force-reinstall --no-deps retinue-embedded-adapter."
            )
        if (self.base_sha256, self.prompt_format) != (weights.file_sha256, PROMPT_FORMAT):
            return (
                f"The adapter of the embedded model in {self.path} belongs to another version of"
                " retinue. Install the one of this version:"
                " pip install --upgrade 'retinue[embedded]'."
            )
        return ""


def installed_adapter() -> Adapter | None:
    """The adapter; None if none is installed. `Adapter.problem` says whether it can be used."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    found = Adapter(path=folder / FILE)
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=_Manifest)
    except (OSError, msgspec.MsgspecError):
        return found
    return msgspec.structs.replace(found, **msgspec.structs.asdict(manifest))


class _Manifest(msgspec.Struct, frozen=True):
    sha256: str
    base_sha256: str
    prompt_format: int
    scores: str = ""
