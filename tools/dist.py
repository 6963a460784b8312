"""`make dist`: the sdist and the wheels in dist/, checked, and the wheel installed in a fresh environment and run.

Nothing is downloaded: build tools and dependencies are those of the environment that runs this. On Linux the wheel with
kernels gets its manylinux tag from auditwheel; the pure one is for platforms without a wheel of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PROBE = """
import bedl, torch, pathlib, sys
from bedl import _kernels
assert pathlib.Path(bedl.__file__).is_relative_to(sys.prefix), bedl.__file__
assert _kernels.is_built() == (sys.argv[1] == "True"), "kernels"
model = bedl.BEDLRegressor(method="evidence", epochs=3, random_state=0, device="cpu")
X = torch.linspace(-1, 1, 60)[:, None].numpy()
mean, std = model.fit(X, X[:, 0]).predict(X, return_std=True)
assert mean.shape == (60,) and (std > 0).all()
from importlib.resources import files
assert (files("bedl.deploy") / "serve.html").is_file()
"""


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        build(ROOT, stage, "--sdist")
        sdist = one(stage, "*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(stage / "source", filter="data")
        source = one(stage / "source", "*")
        build(source, stage / "native", "--wheel")  # from the sdist, as pip would
        build(source, stage / "pure", "--wheel", BEDL_PURE="1")
        native, pure = one(stage / "native", "*.whl"), one(stage / "pure", "*.whl")
        DIST.mkdir()
        found = [Path(shutil.copy(path, DIST)) for path in (sdist, pure)]
        if native.name != pure.name:
            found.append(tagged(native))
        for wheel in found[1:]:
            check(wheel)
    for path in found:
        print(f"{path.stat().st_size / 2**10:8.0f} kB  {path.relative_to(ROOT)}")


def build(source: Path, out: Path, *options: str, **environment: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), *options, str(source)]
    run(command, env={**os.environ, "PIP_NO_INDEX": "1", **environment})


def run(command: list[str], **options: object) -> None:
    done = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")


def one(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def tagged(wheel: Path) -> Path:
    """On Linux with the tag of the oldest systems that it runs on; elsewhere as it is."""
    if sys.platform != "linux":
        return Path(shutil.copy(wheel, DIST))
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        run([sys.executable, "-m", "auditwheel", "repair", "-w", folder, str(wheel)], env=environment)
        repaired = one(Path(folder), "*.whl")
        if "manylinux" not in repaired.name and "musllinux" not in repaired.name:
            sys.exit(f"{repaired.name} has no tag that an index takes")
        return Path(shutil.copy(repaired, DIST))


def check(wheel: Path) -> None:
    """Install it in a fresh environment, beside the dependencies of this one, and fit a model there."""
    with zipfile.ZipFile(wheel) as archive:
        kernels = any(name.endswith(".so") for name in archive.namelist())
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / ("Scripts" if os.name == "nt" else "bin") / "python")
        run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", str(wheel)])
        packages = Path(sysconfig.get_paths(vars={"base": folder, "platbase": folder})["purelib"])
        # a path of packages, whose own .pth files (the editable bedl) are not read
        (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        run([python, "-I", "-c", PROBE, str(kernels)], cwd=folder, env=clean)


if __name__ == "__main__":
    main()
