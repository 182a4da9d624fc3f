"""The tracked files of a checkout, for tests that read all of them."""
import pathlib
import subprocess
import sys


def tracked_files(root: pathlib.Path) -> list[str]:
    """Returns the names of the tracked files that exist, relative to root. Without git, exits with 77, which ctest counts as skipped."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode != 0:
        print(f"{pathlib.Path(sys.argv[0]).name}: skipped, {root} is not a git checkout")
        sys.exit(77)
    return [name for name in listed.stdout.split("\0") if name and (root / name).is_file()]
