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


def test_programs_of_containers_are_shown_without_credentials(tmp_path: Path) -> None:
    """Images for containers have tool managers, and so their credentials, below `/usr/local`."""
    credentials = {
        "usr/local/cargo/credentials.toml": "",
        "usr/local/cargo/config.toml": '[registries.own]\ntoken = "secret"\n',
        "usr/local/bundle/config": 'BUNDLE_GEMS__EXAMPLE: "user:secret"\n',
        "usr/local/pip.conf": "",
        "usr/local/etc/my.cnf": "password=secret\n",
        "usr/local/share/nvm/versions/node/v20/etc/npmrc": "",
        "usr/local/lib/R/etc/Renviron.site": "",
        "usr/share/maven/conf/settings.xml": "",
        "opt/conda/envs/work/conda-meta/state": "",
    }
    programs = (
        *(
            "usr/bin/git",
            "usr/local/bin/pip",
            "usr/local/cargo/bin/cargo",
            "usr/local/bundle/bin/a",
        ),
        *("usr/local/etc/fonts.conf", "usr/local/share/nvm/versions/node/v20/bin/node"),
        *("usr/local/lib/R/bin/R", "usr/share/maven/bin/mvn", "opt/conda/envs/work/bin/python"),
    )
    for name in (*credentials, *programs):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(credentials.get(name, ""))
    (tmp_path / "usr/local/share/nvm/current").symlink_to("versions/node/v20")
    (tmp_path / "usr/local/node").symlink_to("share/nvm")
    shown = program_folders(f"{tmp_path}/")

    def is_shown(name: str) -> bool:
        return any(
            f"{(tmp_path / name).resolve()}/".startswith(f"{Path(path).resolve()}/")
            for path in shown
        )

    assert [name for name in credentials if is_shown(name)] == []
    assert [name for name in programs if not is_shown(name)] == []
