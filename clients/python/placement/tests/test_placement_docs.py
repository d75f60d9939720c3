"""The README does what it says, and the package is what it should be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import kazahana
import kazahana_placement as placement
from harness import PACKAGE, REPOSITORY, Daemon

HERE = PACKAGE / "placement"
README = (HERE / "README.md").read_text("utf-8")


def test_readme(placing: Daemon, tmp_path: Path) -> None:
    program = "\n".join(re.findall(r"```python\n(.*?)```", README, re.S))
    path = os.pathsep.join([str(PACKAGE / "src"), str(HERE / "src")])
    environment = {**os.environ, "KAZAHANA_SOCKET": placing.socket, "PYTHONPATH": path}
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "127.0.0.1:7001 True " in run.stdout and "activated passivated" in run.stdout


def test_readme_lists_every_error() -> None:
    kinds = [kind for kind in vars(placement).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) == 6
    for kind in kinds:
        assert (
            issubclass(kind, kazahana.KazahanaError) and f"`{kind.__name__}`" in README and f"`{kind.code}`" in README
        )


def test_links_work_on_the_package_index() -> None:
    links = re.findall(r"\]\(([^)]*)\)", README)
    here = "https://github.com/kazahana/kazahana/blob/main/"
    for link in links:
        assert link.startswith(here) and (REPOSITORY / link[len(here) :]).exists(), link


def test_it_needs_the_client_of_its_version() -> None:
    project = (HERE / "pyproject.toml").read_text("utf-8")
    version = kazahana.__version__
    assert f'version = "{version}"' in project and f'"kazahana=={version}"' in project


def test_wheel_holds_what_it_must(tmp_path: Path) -> None:
    pytest.importorskip("build")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), str(HERE)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "kazahana_placement/py.typed" in names and any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"kazahana_placement"}
    assert not [name for name in names if "test_" in name or name.endswith(".pyc")]
