"""Reduces the checkout and prepares the calls of a GPU machine, which accepts 64 MiB per call."""

import json
import subprocess

import carried
import packages
from harness import inputs
from state import current_commit, git

STAGE = inputs.ROOT / "build" / "gpu-queue"
LIMIT_BYTES = 64 * 2 ** 20
MARGIN_BYTES = 2 ** 20  # names, folders and queue.json
# Paths of the checkout that the queue reads: scripts, presets, the peers.
CHECKOUT = ["/*", "!/src/", "!/include/", "!/docs/", "!/packaging/", "!/tests/", "/tests/parity/reference/", "/tests/real_weights/"]
# Paths that gpu_tests read: cases of models, without the tensors that only parity tests compare.
GPU_TESTS = ["/tests/gpu/", "/tests/parity/data/*/", "!/tests/parity/data/*/expected.safetensors", "!/tests/parity/data/lora/",
             "!/tests/parity/data/muon/", "!/tests/parity/data/sam/", "!/tests/parity/data/tiny_vit/", "!/tests/parity/data/volume_tower/"]


class PackFailed(Exception):
    pass


def measure_size(paths):
    return sum(path.stat().st_size for path in paths)


def checkout_bytes():
    """Returns the size of the files that are copied: tracked or not ignored."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").stdout.split("\0")
    return measure_size([inputs.ROOT / name for name in set(listed) if name and (inputs.ROOT / name).is_file()])


def reduce_checkout(names):
    """Removes the files that the entries with these folders do not read from the working tree. `restore_checkout` restores them."""
    ended = git("sparse-checkout", "set", "--no-cone", *CHECKOUT, *(GPU_TESTS if "gpu_tests" in names else []))
    if ended.returncode != 0:
        raise PackFailed(f"git sparse-checkout: {ended.stderr.strip()}")


def restore_checkout():
    ended = git("sparse-checkout", "disable")
    if ended.returncode != 0:
        raise PackFailed(f"git sparse-checkout disable: {ended.stderr.strip()}")


def build_portable(folder):
    """Builds the portable programs and the two that measure kernels; gpu_tests have a separate folder."""
    build = inputs.ROOT / "build" / "portable"
    subprocess.run(["scripts/make_portable.sh", folder], cwd=inputs.ROOT, check=True)
    subprocess.run(["cmake", "--build", build, "--target", "kernel_speed", "kernel_times"], cwd=inputs.ROOT, check=True)
    for name in ("kernel_speed", "libvlmtrain_kernel_times.so"):
        subprocess.run(["strip", "--strip-unneeded", "-o", folder / name, build / name], check=True)
    (folder / "commit").write_text(current_commit())
    tests = folder.with_name("gpu_tests")
    tests.mkdir(exist_ok=True)
    (folder / "gpu_tests").replace(tests / "gpu_tests")


def find_folders(entries):
    """Returns the carried folders that the entries need, in order, without repetition."""
    return list(dict.fromkeys(name for entry in entries for name in entry.carry))


BUILDERS = {"portable": build_portable, "python": packages.build, "smollm2": packages.download_smollm2}


# The sources of the programs.
PROGRAM_PATHS = ("src", "include", "cmake", "CMakeLists.txt", "bench/kernel_speed.cpp", "bench/kernel_times.cpp", "tests/gpu", "tests/parity")


def check_portable():
    """Raises PackFailed unless build/gpu-queue/portable was built from the current sources."""
    path = STAGE / "portable" / "commit"
    if not path.exists():
        raise PackFailed("build/gpu-queue/portable: does not exist or does not name its commit; run pack without --no-build")
    commit = path.read_text()
    diff = git("diff", "--name-only", commit.partition("+")[0], "--", *PROGRAM_PATHS)
    if commit != current_commit() and ("+" in commit or diff.returncode != 0 or diff.stdout):
        raise PackFailed(f"build/gpu-queue/portable: was built from {commit}, whose sources differ from these; run pack without --no-build")


def build(names, again=True):
    """Builds the folders in STAGE. Without `again`, only those that are missing."""
    STAGE.mkdir(parents=True, exist_ok=True)
    if not again and "portable" in names:
        check_portable()
    for name in names:
        if name in BUILDERS and (again or not (STAGE / name).exists()):
            BUILDERS[name](STAGE / name)
        if not (STAGE / name).exists():
            raise PackFailed(f"build/gpu-queue/{name}: does not exist; it is built together with portable")
        carried.compress(STAGE / name, STAGE / f"{name}.tar.xz")


def write_calls(names, queue, folder=carried.CALLS):
    """Writes gpu-queue/call-N. Returns the lines that `pack` prints."""
    checkout = checkout_bytes()
    room = LIMIT_BYTES - checkout - MARGIN_BYTES
    if room <= 0:
        raise PackFailed(f"the checkout has {checkout / 2 ** 20:.1f} MiB, and a call {LIMIT_BYTES // 2 ** 20}; remove files that git does not ignore")
    archives = [STAGE / f"{name}.tar.xz" for name in names]
    calls = carried.write_calls(archives, room, folder)
    lines = [f"checkout {checkout / 2 ** 20:.1f} MiB"]
    lines += [f"{name} {archive.stat().st_size / 2 ** 20:.1f} MiB, compressed" for name, archive in zip(names, archives)]
    for call in calls:
        (call / "queue.json").write_text(json.dumps(queue.to_pack(), indent=1) + "\n")
        total = checkout + measure_size(call.iterdir())
        command = "keep" if call != calls[-1] else "--seconds 540 --archive $OUT/results.tar.gz"
        lines.append(f"{call.name}: {total / 2 ** 20:.1f} of {LIMIT_BYTES // 2 ** 20} MiB; carry gpu-queue/{call.name}; scripts/gpu_queue.sh {command}")
    return lines
