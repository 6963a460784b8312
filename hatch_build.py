"""Builds the kernels of `bedl._kernels` with the package, if there is a C compiler; if not, PyTorch does their work."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path(__file__).parent / "src" / "bedl" / "_kernels"
SOURCES = sorted(PACKAGE.glob("*.c"))
TEXT = b"".join(path.read_bytes() for path in sorted(PACKAGE.glob("*.[ch]")))
TARGET = PACKAGE / f"kernels-{hashlib.sha256(TEXT).hexdigest()[:12]}.so"  # as bedl._kernels looks for it

# No errno and traps, which nobody asks for, so that loops can be vectorised; NaN and infinity keep their meaning (never
# -ffast-math, which would also change the arithmetic of the whole process). Jump threading would make branches of them.
FLAGS = ["-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fno-thread-jumps"]
# With threads and a copy for each generation of processors where the compiler can do that; else without.
WAYS = [["-fopenmp"], ["-DPORTABLE"]]


def build(compiler: list[str]) -> None:
    """Compile the kernels to `TARGET`; raises an error that says what the compiler said."""
    messages = []
    for way in WAYS:
        with tempfile.TemporaryDirectory(dir=PACKAGE) as folder:
            objects, library = [f"{folder}/{path.stem}.o" for path in SOURCES], Path(folder) / "kernels.so"
            # linked without -fopenmp: the threads are those that PyTorch has loaded, not others besides them
            steps = [
                ["-c", *FLAGS, *way, str(source), "-o", made] for source, made in zip(SOURCES, objects, strict=True)
            ]
            steps += [["-shared", *objects, "-o", str(library)]]
            runs = [subprocess.run(compiler + step, capture_output=True, text=True) for step in steps]
            if all(run.returncode == 0 for run in runs):
                os.replace(library, TARGET)
                for old in set(PACKAGE.glob("kernels-*.so")) - {TARGET}:
                    old.unlink()
                return
            messages += [run.stderr for run in runs]
    raise RuntimeError("\n".join(messages))


class Kernels(BuildHookInterface):
    """Adds the kernels to wheels and editable installations."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or os.name != "posix" or os.environ.get("BEDL_PURE"):
            return
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        try:
            if shutil.which(compiler[0]) is None:
                compiler = ["cc"]
            compiler += shlex.split(os.environ.get("ARCHFLAGS", ""))  # of macOS: which processors to build for
            build(compiler)
        except (OSError, RuntimeError) as error:
            self.app.display_warning(f"bedl: no kernels in C were built, PyTorch does their work. {error}")
            return
        build_data["artifacts"].append(f"/{TARGET.relative_to(Path(__file__).parent)}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
