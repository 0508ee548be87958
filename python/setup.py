"""Builds tutti._C with the CMake project above this folder, against the torch that is installed."""

import os
import re
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent


def torch_cmake_options():
    """Where the installed torch has its CMake files, if beside its modules and not among the system's:
    asked in an interpreter of its own, since pip builds in an environment that hides what is installed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    answer = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.utils.cmake_prefix_path)"],
        env=environment,
        capture_output=True,
        text=True,
    )
    if answer.returncode != 0:
        raise SystemExit(
            "tutti is compiled against the torch it will run with, and this interpreter has none.\n"
            "Install it first: pip install torch --index-url https://download.pytorch.org/whl/cpu\n"
            + answer.stderr.strip()
        )
    folder = Path(answer.stdout.strip()) / "Torch"
    return [f"-DTorch_DIR={folder}"] if folder.is_dir() else []


class CMakeBuild(build_ext):
    def build_extension(self, extension):
        build = Path(self.build_temp).resolve() / "cmake"
        target = Path(self.get_ext_fullpath(extension.name)).resolve().parent
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
        subprocess.check_call(
            ["cmake", "-S", CHECKOUT, "-B", build, "-G", "Ninja"]
            + [f"-D{option}=OFF" for option in
               ("TUTTI_BUILD_TESTS", "TUTTI_BUILD_EXAMPLES", "TUTTI_BUILD_BENCH")]
            + torch_cmake_options()
            + [
                "-DCMAKE_BUILD_TYPE=Release",
                "-DTUTTI_BUILD_PYTHON=ON",
                f"-DPython3_EXECUTABLE={sys.executable}",
            ]
        )
        subprocess.check_call(
            ["cmake", "--build", build, "--target", "tutti_python", "--parallel", jobs]
        )
        target.mkdir(parents=True, exist_ok=True)
        for module in (build / "python" / "tutti").glob("_C*.so"):
            self.copy_file(str(module), str(target / module.name))


def version():
    project = (CHECKOUT / "CMakeLists.txt").read_text()
    return re.search(r"project\(tutti VERSION ([0-9.]+)", project).group(1)


setup(version=version(), ext_modules=[Extension("tutti._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
