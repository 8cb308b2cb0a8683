"""What produced a result: package versions, platform and source commit."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("icrl", "ray", "torch", "metaworld", "mujoco", "gymnasium", "numpy", "pyarrow", "scipy")


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change a result."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def source_commit() -> str | None:
    """Commit of the checkout this package runs from, marked ``+changes`` if edited; None outside a git checkout."""
    folder = Path(__file__).resolve().parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return f"{commit}+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    finished = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return finished.stdout.strip()
