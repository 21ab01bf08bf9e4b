"""The files of `deploy/` are read as their programs read them, and the commands in them exist."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parent.parent / "deploy"


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_the_job_runs_a_command_on_its_cluster() -> None:
    cluster, job = documents("kuberay.yaml")
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    program, *arguments = shlex.split(job["spec"]["entrypoint"])
    assert program == "retinue"
    asked = [sys.executable, "-m", "retinue", *arguments, "--help"]
    answered = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert (answered.returncode, answered.stderr) == (0, "")
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    (mounted,) = head["containers"][0]["volumeMounts"]
    assert arguments[arguments.index("-C") + 1] == mounted["mountPath"]


def test_only_the_head_has_the_password_of_the_journal() -> None:
    (compose,) = documents("compose.yaml")
    services = compose["services"]
    having = {name for name, one in services.items() if "PASSWORD" in str(one.get("environment"))}
    assert having == {"postgres", "head"}
    assert services["node"]["image"] == services["head"]["image"]
    assert services["node"]["deploy"] == {"replicas": 2}
