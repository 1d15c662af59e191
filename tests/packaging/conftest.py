"""The wheel, built once, and an environment that has it and what it requires, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What `pip install fencepost` brings: its requirements and theirs.
REQUIRED = ("psycopg", "click", "rich", "markdown-it-py", "mdurl", "pygments", "typing_extensions")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel; nothing is written into the source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    [found] = folder.glob("fencepost-*.whl")
    return found


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment with the wheel, its requirements and nothing optional; no index is asked."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, timeout=100)
    [site_packages] = folder.glob("lib/python*/site-packages")
    for source in required_packages():
        (site_packages / source.name).symlink_to(source)
    return python.parent


def required_packages() -> Iterator[Path]:
    """The top-level files and folders of what is required, as they are installed here."""
    seen = set()
    for name in REQUIRED:
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and top not in seen:
                seen.add(top)
                yield Path(str(distribution(name).locate_file(top)))
