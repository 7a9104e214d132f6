#!/usr/bin/env python3
"""Writes a wheel file of a Python package's folder, with a program `gpumem`: pack_wheel.py PACKAGE FOLDER VERSION

Follows the binary distribution format of Python's packaging documentation. Needs no package and no network. Symbolic
links are left out, which wheels cannot hold.
"""
import base64
import hashlib
import pathlib
import platform
import sys
import zipfile

METADATA = """Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: Simulated CUDA cards: what memory a program needs, and on which card it fits, without a GPU
License: Apache-2.0
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
"""
WHEEL = """Wheel-Version: 1.0
Generator: gpumem
Root-Is-Purelib: false
Tag: {tag}
"""
ENTRY_POINTS = """[console_scripts]
gpumem = {module}:_run
"""


def add(archive, name, content, mode):
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same files make the same wheel
    entry.external_attr = (0o100000 | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def main(package, folder, version):
    package = pathlib.Path(package)
    module = package.name
    tag = f"py3-none-manylinux_2_34_{platform.machine()}"
    made = pathlib.Path(folder) / f"{module}-{version}-{tag}.whl"
    made.unlink(missing_ok=True)
    information = f"{module}-{version}.dist-info"
    texts = {"METADATA": METADATA.format(name=module.replace("_", "-"), version=version), "WHEEL": WHEEL.format(tag=tag),
             "entry_points.txt": ENTRY_POINTS.format(module=module)}
    with zipfile.ZipFile(made, "w") as archive:
        record = ""
        for file in sorted(package.rglob("*")):
            if file.is_file() and not file.is_symlink():
                mode = 0o755 if file.stat().st_mode & 0o100 else 0o644
                record += add(archive, str(file.relative_to(package.parent)), file.read_bytes(), mode)
        for name, text in texts.items():
            record += add(archive, f"{information}/{name}", text.encode(), 0o644)
        add(archive, f"{information}/RECORD", f"{record}{information}/RECORD,,\n".encode(), 0o644)
    print(f"wheel: {made}, {made.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
