#!/usr/bin/env python3
"""Packs a program and its stand-ins for the CUDA libraries into a wheel (scripts/make_wheel.sh).

    build_wheel.py --program FOLDER [--out FOLDER]

FOLDER has vlmtrain, vlmtrain-core, the plug-ins and vgpu/, as scripts/make_portable.sh makes it. Prints the wheel's path. The same files give the same
wheel, byte for byte.
"""

import argparse
import base64
import hashlib
import re
import subprocess
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Debian packages with something in the program or its plug-ins, statically linked or as headers.
LINKED = ("libyaml-cpp-dev", "libfmt-dev", "libspdlog-dev", "nlohmann-json3-dev", "libcli11-dev", "libpcre2-dev", "libutf8proc-dev",
          "libjpeg62-turbo-dev", "libpng-dev", "zlib1g-dev", "libwebp-dev", "libtiff-dev", "libzstd-dev",
          "liblzma-dev", "libdeflate-dev", "libavcodec-dev", "libcurl4-openssl-dev", "libssl-dev")
PYTHON = ">=3.10"  # as torch's wheels


def read_version(name: str, text: str) -> str:
    return re.search(rf"^{name} ([\d.]+)$", text, re.MULTILINE)[1]


def licences() -> str:
    parts = ["vlmtrain's program contains these libraries, as Debian packages them. Their copyright notices follow.",
             "FFmpeg (libavcodec) is built without what is under the GPL, so it is under the GNU Lesser General Public License 2.1 or "
             "later, whose text is in LGPL-2.1. Its source is that of Debian's source package ffmpeg of the version below; "
             "scripts/make_ffmpeg.sh of vlmtrain's source builds it, changed or not, and scripts/make_wheel.sh the program with it.",
             "The plug-in libvlmtrain_curl.so contains libcurl (libcurl4-openssl) and OpenSSL (libssl). OpenSSL is under the Apache "
             "License 2.0, whose text is in Apache-2.0."]
    for package in LINKED:
        version = subprocess.run(["dpkg-query", "-W", "-f=${Version}", package], check=True, capture_output=True, text=True).stdout
        notice = Path("/usr/share/doc", package, "copyright").read_text(encoding="utf-8", errors="replace")
        parts.append(f"{'=' * 100}\n{package} {version}\n{'=' * 100}\n{notice}")
    return "\n\n".join(parts)


def contents(program: Path) -> dict[str, bytes]:
    """Every file of the wheel but its RECORD."""
    version = re.search(r"project\(vlmtrain VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
    torch = (ROOT / "cmake/libtorch.version").read_text().split()[0]
    glibc = read_version("GLIBC", (ROOT / "cmake/portable/oldest_host.versions").read_text())
    metadata = f"""\
Metadata-Version: 2.1
Name: vlmtrain
Version: {version}
Summary: Fine-tunes vision-language models and plans their memory
License: MIT
Requires-Python: {PYTHON}
Requires-Dist: torch=={torch}
Provides-Extra: quickstart
Requires-Dist: pillow; extra == "quickstart"
Requires-Dist: numpy; extra == "quickstart"
Description-Content-Type: text/markdown

"""
    wheel = f"""\
Wheel-Version: 1.0
Generator: vlmtrain packaging/build_wheel.py
Root-Is-Purelib: false
Tag: py3-none-manylinux_{glibc.replace(".", "_")}_x86_64
"""
    built_for = f'GLIBC = ({glibc.replace(".", ", ")})\nTORCH = "{torch}"\n'
    info = f"vlmtrain-{version}.dist-info"
    files = {
        f"{info}/METADATA": metadata.encode() + (ROOT / "packaging/README.md").read_bytes(),
        f"{info}/WHEEL": wheel.encode(),
        f"{info}/entry_points.txt": b"[console_scripts]\nvlmtrain = vlmtrain.__main__:main\n",
        f"{info}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
        f"{info}/licenses/THIRD_PARTY": licences().encode(),
        f"{info}/licenses/LGPL-2.1": Path("/usr/share/common-licenses/LGPL-2.1").read_bytes(),
        f"{info}/licenses/Apache-2.0": Path("/usr/share/common-licenses/Apache-2.0").read_bytes(),
        "vlmtrain/built_for.py": built_for.encode(),
        "vlmtrain/vlmtrain": (program / "vlmtrain").read_bytes(),
        "vlmtrain/vlmtrain-core": (program / "vlmtrain-core").read_bytes(),
    }
    for path in (ROOT / "packaging/vlmtrain").rglob("*.py"):
        files[f"vlmtrain/{path.relative_to(ROOT / 'packaging/vlmtrain')}"] = path.read_bytes()
    for path in ("scripts/train_shapes.sh", "scripts/make_shapes.py", "scripts/draw_answers.py", "configs/quickstart.yaml"):
        files[f"vlmtrain/shapes/{Path(path).name}"] = (ROOT / path).read_bytes()
    for path in (ROOT / "scripts/slurm").glob("*.sbatch"):
        files[f"vlmtrain/slurm/{path.name}"] = path.read_bytes()
    for plugin in ("libvlmtrain_nccl.so", "libvlmtrain_curl.so", "libvlmtrain_kernels.so"):
        if (program / plugin).exists():  # kernels: where CUDA's compiler was at hand
            files[f"vlmtrain/{plugin}"] = (program / plugin).read_bytes()
    for path in (program / "vgpu").glob("lib*"):
        if not path.is_symlink():
            files[f"vlmtrain/vgpu/{path.name}"] = path.read_bytes()
    return files


def pack(files: dict[str, bytes], folder: Path) -> Path:
    info = next(name for name in files if name.endswith("/WHEEL")).removesuffix("/WHEEL")
    tag = re.search(r"^Tag: (.+)$", files[f"{info}/WHEEL"].decode(), re.MULTILINE)[1]
    record = ""
    for name, data in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        record += f"{name},sha256={digest},{len(data)}\n"
    record += f"{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{info.removesuffix('.dist-info')}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        # The packaging standard asks for the dist-info folder at the archive's end.
        for name, data in sorted({**files, f"{info}/RECORD": record.encode()}.items(), key=lambda item: (info in item[0], item[0])):
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            is_program = data.startswith((b"\x7fELF", b"#!"))
            entry.external_attr = (0o100755 if is_program else 0o100644) << 16
            archive.writestr(entry, data)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("dist"))
    arguments = parser.parse_args()
    path = pack(contents(arguments.program), arguments.out)
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
