"""The files of the project: what git knows or would add; without git, all outside build folders."""
import subprocess
from pathlib import Path

SKIPPED_FOLDERS = {"build", "target", "__pycache__", ".venv"}


def project_files(root):
    """Paths relative to root, sorted."""
    root = Path(root).resolve()
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        names = [Path(name) for name in listed.stdout.split("\0") if name]
    else:
        names = [f.relative_to(root) for f in root.rglob("*")]
        names = [name for name in names if not SKIPPED_FOLDERS & set(name.parts)]
    return sorted(name for name in names if (root / name).is_file())
