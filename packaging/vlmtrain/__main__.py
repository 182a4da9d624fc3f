"""Replaces the Python process by the program of this wheel: `vlmtrain …` and `python -m vlmtrain …`."""

import os
import re
import signal
import sys

from vlmtrain.built_for import GLIBC, TORCH

# realpath, as the loader does: package managers that link files from a store leave LibTorch elsewhere.
PROGRAM = os.path.realpath(os.path.join(os.path.dirname(__file__), "vlmtrain"))
SUGGESTION = f"{sys.executable} -m pip install torch=={TORCH}"


def refuse(problem):
    """Exits with the exit code of the program for an unusable machine."""
    print(f"vlmtrain: error: {problem}", file=sys.stderr)
    sys.exit(5)


def check_host():
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        refuse(f"this wheel is for Linux on x86-64, not {sys.platform} on {os.uname().machine}; build from source there")
    needed = ".".join(map(str, GLIBC))
    try:
        name, version = os.confstr("CS_GNU_LIBC_VERSION").split()
    except (ValueError, AttributeError):
        refuse(f"this wheel needs the C library glibc {needed} or newer, which this Python does not use (musl, as in Alpine?); "
               "take a container image of Debian, Ubuntu or Rocky Linux")
    if tuple(int(part) for part in version.split(".")[:2]) < GLIBC:
        refuse(f"this wheel needs {name} {needed} or newer, as torch does; this machine has {version}: run it in a container "
               "(Apptainer)")


def torch_folder():
    """Returns the folder of torch, and whether it is next to this package. Otherwise Python's import path has it."""
    next_to = os.path.join(os.path.dirname(os.path.dirname(PROGRAM)), "torch")
    if os.path.isfile(os.path.join(next_to, "version.py")):
        return next_to, True
    from importlib.util import find_spec  # without importing torch, which takes seconds

    spec = find_spec("torch")
    return (os.path.dirname(spec.origin), False) if spec and spec.origin else (None, False)


def check_torch(folder):
    if folder is None:
        refuse(f"torch {TORCH} is not installed for this Python: {SUGGESTION}")
    try:
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
            match = re.search(r"^__version__ = ['\"]([^'\"]+)", file.read(), re.MULTILINE)
    except OSError:
        match = None
    if match is None or match[1].split("+")[0] != TORCH:
        refuse(f"{folder} is torch {match[1] if match else 'of an unknown version'}; this wheel was built for {TORCH}: {SUGGESTION}")
    if not os.path.isfile(os.path.join(folder, "lib", "libtorch_cpu.so")):
        refuse(f"{folder} has no lib/libtorch_cpu.so; reinstall it: {SUGGESTION} --force-reinstall")


def library_path(folder):
    """Returns LD_LIBRARY_PATH for LibTorch and its CUDA libraries if they are not in one folder."""
    from importlib.util import find_spec

    nvidia = find_spec("nvidia")
    if nvidia is None and has_cuda(folder):
        refuse(f"{folder} needs CUDA's libraries (the folder nvidia, which pip installs next to it): {SUGGESTION} --force-reinstall")
    libraries = [os.path.join(folder, "lib")]
    for place in nvidia.submodule_search_locations if nvidia else ():
        libraries += (os.path.join(place, name, "lib") for name in sorted(os.listdir(place)))
    return ":".join([*filter(os.path.isdir, libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])


def has_cuda(folder):
    return os.path.exists(os.path.join(folder, "lib", "libtorch_cuda.so"))


def main():
    check_host()
    folder, is_bundled = torch_folder()
    check_torch(folder)
    if not is_bundled or (has_cuda(folder) and not os.path.isdir(os.path.join(folder, "..", "nvidia"))):
        os.environ["LD_LIBRARY_PATH"] = library_path(folder)
    # Python ignores these, and what is ignored stays so.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execv(PROGRAM, ["vlmtrain", *sys.argv[1:]])
    except OSError as error:
        refuse(f"{PROGRAM} cannot be started: {error.strerror}; is it whole, and on a file system that programs may run from?")


if __name__ == "__main__":
    main()
