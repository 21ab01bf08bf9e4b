"""The folders of programs that every command sees have no credentials in them."""

from __future__ import annotations

from pathlib import Path

from retinue.sandbox.system_paths import program_folders


def test_programs_are_shown_without_tokens_beside_them(tmp_path: Path) -> None:
    """Images for containers keep npm's and conda's tokens in the folders of programs."""
    names = (
        *("usr/bin/git", "usr/lib/node/npm", "usr/local/bin/npm", "usr/local/etc/npmrc"),
        *("usr/local/etc/fonts.conf", "opt/conda/.condarc", "opt/conda/bin/python"),
        *("opt/conda/pkgs/urls.txt", "opt/conda/conda-meta/history", "opt/tool/bin/tool"),
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "bin").symlink_to("usr/bin")
    found = [path.removeprefix(f"{tmp_path}/") for path in program_folders(f"{tmp_path}/")]
    assert found == [
        *("usr/bin", "usr/lib", "usr/local/bin", "usr/local/etc/fonts.conf", "bin"),
        *("opt/conda/bin", "opt/conda/conda-meta", "opt/tool"),
    ]
    (tmp_path / "usr" / "local" / "etc" / "npmrc").unlink()
    program_folders.cache_clear()
    assert program_folders(f"{tmp_path}/")[0] == f"{tmp_path}/usr"
