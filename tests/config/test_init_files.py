"""The settings template parses, names every setting, and shows the real defaults."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import asdict

from retinue.config.init_files import EXAMPLES_HEADING, USER_ONLY_HEADING, settings_template
from retinue.config.settings import RUN_BUDGET, MergedSettings, Settings, SubAgentSettings
from retinue.config.settings_file import read_settings
from retinue.domain.role import BOOTSTRAP_FILES

DEFAULTS, _, REST = settings_template().partition(EXAMPLES_HEADING)
EXAMPLE, _, OWN_FILE = REST.partition(USER_ONLY_HEADING)


def _written(part: str, path: Path) -> tuple[Settings, set[str]]:
    """The settings of a part once its lines are uncommented, and the names at its top."""
    code = [line[2:] for line in part.splitlines() if line.startswith("# ")]
    lines = [line for line in code if line.startswith("[") or " = " in line]
    (path / "retinue.toml").write_text("\n".join(lines))
    tables = {line.strip("[]").partition(".")[0] for line in lines if line.startswith("[")}
    keys = {line.partition(" = ")[0] for line in lines if not line.startswith("[")}
    return read_settings(path / "retinue.toml"), tables | keys & set(Settings.__struct_fields__)


def test_template_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "retinue.toml").write_text(settings_template())
    assert read_settings(tmp_path / "retinue.toml") == Settings()


def test_defaults_in_the_template_are_real(tmp_path: Path) -> None:
    settings, names = _written(DEFAULTS, tmp_path)
    assert len(names) == 19
    for name in names - {"budget", "sub_agents"}:
        assert getattr(settings, name) == getattr(MergedSettings(), name), name
    assert settings.sub_agents == SubAgentSettings(bootstrap_files=BOOTSTRAP_FILES)
    budget = settings.budget.given()
    assert budget == {name: getattr(RUN_BUDGET, name) for name in budget}
    unlimited = {f for f in RUN_BUDGET.__struct_fields__ if getattr(RUN_BUDGET, f) is None}
    assert set(budget) | unlimited == set(RUN_BUDGET.__struct_fields__)


def test_user_only_settings_show_their_defaults(tmp_path: Path) -> None:
    settings, names = _written(OWN_FILE, tmp_path)
    values = {"allow", "endpoints", "report_path", "notify_after_s", "theme", "keep_journals_days"}
    for name in values:
        assert getattr(settings, name) == getattr(Settings(), name)
    examples = {"store", "web_hosts", "web_private_hosts", "web_search"}
    tables = {"cluster", "models", "pools", "sampling", "servers", "prices"}
    assert names == {*values, *examples, *tables}


def test_template_has_every_setting(tmp_path: Path) -> None:
    parts = [_written(part, tmp_path)[1] for part in (DEFAULTS, EXAMPLE, OWN_FILE)]
    assert set().union(*parts) == set(Settings.__struct_fields__)


def test_merging_fills_in_only_what_is_not_set() -> None:
    defaults, merged = asdict(Settings()), asdict(MergedSettings())
    assert {name for name in merged if merged[name] != defaults[name]} == {
        name
        for name, value in defaults.items()
        if value is None and name not in ("model", "store", "web_search")
    }
