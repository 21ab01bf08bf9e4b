"""Downloads the packages of `packages.txt` and turns each into a small project.

`python -m training.corpus FOLDER` writes corpus.jsonl.xz and evaluation.jsonl.xz there. pip and npm
fetch the packages by name and version, with the settings that they have. Only packages whose
metadata names a permissive licence are trained on.
"""

from __future__ import annotations

import email
import json
import lzma
import random
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = Path(__file__).with_name("packages.txt")
EVALUATION_PACKAGES = PACKAGES.parent / "evaluation" / "packages.txt"
PERMISSIVE = re.compile(r"\b(MIT|BSD|Apache|ISC|Python|PSF|Unlicense|0BSD|Zlib)\b", re.I)
MAX_FILE_BYTES = 30_000
MIN_FILE_BYTES = 60
MAX_FILES = 160
ENDINGS = (
    ".py", ".js", ".ts", ".mjs", ".cjs", ".md", ".rst", ".txt", ".toml", ".cfg", ".ini", ".json",
    ".yml", ".yaml", ".sh", ".css", ".html", ".go", ".rs", ".c", ".h",
)  # fmt: skip


def fetch(listing: Path, packages: Path, tarballs: Path, *pip_options: str) -> None:
    """Download the packages of a listing: sources from PyPI, if no options for pip are given."""
    wanted: dict[str, list[str]] = {"pypi": [], "npm": []}
    for line in listing.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            index, package = line.split()[:2]
            wanted[index].append(package)
    for folder in (packages, tarballs):
        folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(packages)]
    # Only these: pip would also compile the tools that their metadata needs, for half an hour.
    sources = ["--no-binary", ",".join(name.partition("==")[0] for name in wanted["pypi"])]
    subprocess.run([*pip, *(pip_options or sources), *wanted["pypi"]], check=True)
    names = [package.replace("==", "@") for package in wanted["npm"]]
    npm = ["npm", "pack", "--silent", "--ignore-scripts", *names]
    subprocess.run(npm, check=True, cwd=tarballs, stdout=subprocess.DEVNULL)


def projects(folder: Path) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Name and version, licence and files of each downloaded package."""
    for path in sorted((folder / "pypi").glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            yield from _python_project(wheel)
    for path in sorted((folder / "npm").glob("*.tgz")):
        with tarfile.open(path) as tarball:
            yield from _npm_project(tarball)


def _python_project(wheel: zipfile.ZipFile) -> Iterator[tuple[str, str, dict[str, str]]]:
    names = wheel.namelist()
    about = next((n for n in names if n.endswith(".dist-info/METADATA")), None)
    if about is None:
        return
    metadata = email.message_from_string(wheel.read(about).decode("utf-8", "replace"))
    said = [metadata.get("License-Expression"), metadata.get("License")]
    said += [c for c in metadata.get_all("Classifier", []) if c.startswith("License")]
    licence = next((" ".join(s.split())[:60] for s in said if s and PERMISSIVE.search(s)), "")
    name, version = metadata["Name"], metadata["Version"]
    draw = random.Random(name)
    files = {}
    prefix = draw.choice(["", "", "src/"])
    for entry in names:
        if ".dist-info/" not in entry and (text := _text(entry, wheel.read(entry))) is not None:
            files[prefix + entry] = text
    body = str(metadata.get_payload()) or (metadata.get("Description") or "")
    summary = " ".join((metadata.get("Summary") or "").split())
    readme = _plain_readme(body)
    if readme:
        ending = "rst" if "rst" in (metadata.get("Description-Content-Type") or "") else "md"
        files[f"README.{ending}"] = readme
        files |= _docs(readme, draw)
    requires = [r.split(";")[0].strip() for r in metadata.get_all("Requires-Dist", [])][:5]
    files["pyproject.toml"] = _pyproject(name, version, summary, requires)
    files |= _extras(name, prefix, draw)
    yield f"pypi {name}=={version}", licence, _sample(files, draw)


def _npm_project(tarball: tarfile.TarFile) -> Iterator[tuple[str, str, dict[str, str]]]:
    files = {}
    for member in tarball.getmembers():
        entry = member.name.partition("/")[2]
        if member.isfile() and member.size <= MAX_FILE_BYTES and ".min." not in entry:
            data = tarball.extractfile(member)
            if data is not None and (text := _text(entry, data.read())) is not None:
                files[entry] = text
    try:
        about = json.loads(files["package.json"])
    except (KeyError, ValueError):
        return
    draw = random.Random(about["name"])
    readme = next((n for n in files if n.lower() in ("readme.md", "readme.markdown")), None)
    if readme is not None:
        text = _plain_readme(files.pop(readme))
        files |= {"README.md": text} | _docs(text, draw)
    licence = str(about.get("license", ""))
    found = PERMISSIVE.search(licence)
    yield f"npm {about['name']}=={about['version']}", licence if found else "", _sample(files, draw)


def source_projects(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Name and files of source packages, as their authors laid them out: for the evaluation."""
    for path in sorted([*folder.glob("*.tar.gz"), *folder.glob("*.tgz")]):
        files = {}
        with tarfile.open(path) as tarball:
            for member in tarball.getmembers():
                entry = member.name.partition("/")[2]
                if not member.isfile() or member.size > MAX_FILE_BYTES or "egg-info" in entry:
                    continue
                data = tarball.extractfile(member)
                if data is not None and (text := _text(entry, data.read())) is not None:
                    files[entry] = text
        if len(files) > 4:
            name = path.name.removesuffix(".tar.gz").removesuffix(".tgz")
            yield name, _sample(files, random.Random(name))


def _text(entry: str, data: bytes) -> str | None:
    if not entry.endswith(tuple(ENDINGS)) or not MIN_FILE_BYTES <= len(data) <= MAX_FILE_BYTES:
        return None
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError:
        return None


def _sample(files: dict[str, str], draw: random.Random) -> dict[str, str]:
    names = sorted(files)
    kept = [n for n in names if "/" not in n]
    deep = [n for n in names if "/" in n]
    draw.shuffle(deep)
    return {n: files[n] for n in sorted([*kept, *deep[:MAX_FILES]])}


def _plain_readme(text: str) -> str:
    """Without badges, pictures and HTML."""
    text = re.sub(r"\[!\[.*?\]\(.*?\)\]\(.*?\)|!\[.*?\]\(.*?\)|<[^>\n]+>", "", text)
    text = re.sub(r"^\.\. (image|\|[^|]+\| image)::.*(\n +.*)*", "", text, flags=re.M)
    return (
        re.sub(r"\n{3,}", "\n\n", text.replace("\r\n", "\n")).strip() + "\n" if text.strip() else ""
    )


def _docs(readme: str, draw: random.Random) -> dict[str, str]:
    """Sections of the README as pages of a folder."""
    parts = re.split(r"^## +(.+)$", readme, flags=re.M)[1:]
    pages: dict[str, str] = {}
    folder = draw.choice(["docs", "docs", "doc", "docs/guide", "documentation"])
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:24]
        if slug and len(body.strip()) > 80 and len(pages) < 7:
            pages[f"{folder}/{slug}.md"] = f"# {title.strip()}\n\n{body.strip()}\n"
    return pages


def _pyproject(name: str, version: str, summary: str, requires: list[str]) -> str:
    lines = ["[project]", f'name = "{name}"', f'version = "{version}"']
    lines += [f"description = {json.dumps(summary)}", 'requires-python = ">=3.9"']
    lines += ["dependencies = ["] + [f'    "{r}",' for r in requires] + ["]"]
    return "\n".join(lines) + "\n"


def _extras(name: str, prefix: str, draw: random.Random) -> dict[str, str]:
    """Files that repositories have and wheels lack."""
    port, workers, retries = draw.randint(1000, 9999), draw.randint(1, 16), draw.randint(1, 9)
    timeout, level = draw.choice([5, 10, 15, 30, 60]), draw.choice(["debug", "info", "warning"])
    log, folder = draw.choice(["json", "text"]), draw.choice(["config", "conf", "settings", "etc"])
    several = {
        ".github/workflows/ci.yml": (
            f"name: ci\non: [push]\njobs:\n  test:\n    runs-on: ubuntu-latest\n"
            f"    timeout-minutes: {timeout}\n    steps:\n      - uses: actions/checkout@v4\n"
            f"      - run: pip install -e .\n      - run: pytest -n {workers}\n"
        ),
        f"{folder}/server.toml": (
            f'[server]\nhost = "127.0.0.1"\nport = {port}\nworkers = {workers}\n\n[client]\n'
            f"timeout = {timeout}\nmax_retries = {retries}\n"
        ),
        f"{folder}/logging.yaml": (
            f"level: {level}\nformat: {log}\nrotate: true\nkeep_days: {retries}\n"
        ),
        "scripts/build.sh": (
            f"#!/bin/sh\n# Builds {name} and checks the package.\nset -e\nTARGET=dist\n"
            f"JOBS={workers}\npython -m build --outdir $TARGET\n"
        ),
        "scripts/release.sh": (
            f"#!/bin/sh\n# Tags a release of {name} and uploads it.\nset -e\nREMOTE=origin\n"
            'git tag "$1"\ngit push $REMOTE "$1"\n'
        ),
        "Makefile": f"JOBS = {workers}\n\ntest:\n\tpytest -n $(JOBS)\n\nlint:\n\truff check .\n",
        ".gitignore": "__pycache__/\n*.pyc\ndist/\nbuild/\n",
        "setup.cfg": f"[flake8]\nmax-line-length = {draw.choice([79, 88, 100, 120])}\n",
        "CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n- Nothing yet.\n",
        f"{prefix}{re.sub(r'[^a-z0-9]+', '_', name.lower())}_settings.py": (
            f'"""Settings of {name}."""\n\nDEBUG = False\nDEFAULT_TIMEOUT = {timeout}\n'
            f'MAX_RETRIES = {retries}\nLOG_LEVEL = "{level}"\nPORT = {port}\n'
        ),
    }
    return {path: text for path, text in several.items() if draw.random() < 0.5}


def main(folder: Path) -> None:
    platforms = ("any", "manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")
    wheels = ["--only-binary", ":all:", "--python-version", "3.12"]
    wheels += [option for name in platforms for option in ("--platform", name)]
    fetch(PACKAGES, folder / "pypi", folder / "npm", *wheels)
    sources = folder / "evaluation"
    fetch(EVALUATION_PACKAGES, sources, sources)
    with lzma.open(folder / "evaluation.jsonl.xz", "wt", encoding="utf-8") as out:
        for name, files in source_projects(sources):
            out.write(json.dumps({"name": name, "files": files}) + "\n")
    with lzma.open(folder / "corpus.jsonl.xz", "wt", encoding="utf-8") as out:
        for name, licence, files in projects(folder):
            if licence and len(files) > 4:
                out.write(json.dumps({"name": name, "files": files}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
