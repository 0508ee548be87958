"""What is carried to a machine with a GPU: the checkout, its programs built against CUDA LibTorch, the
libraries that they need; and packages with which the programs are built there, should they not start."""

import pathlib
import re
import shutil
import subprocess
import sys

from place import ROOT, libraries_of_pytorch

TARGETS = ("tutti_program", "bench_device_step", "bench_device_speed")
PROGRAMS = ("tutti", "bench_device_step", "bench_device_speed", "test_nccl_device")
# What those programs and no bare machine with PyTorch have.
CARRIED = re.compile(r"(\S*/lib(?:fmt|spdlog|jpeg|png16|webp|sharpyuv|zstd)\.so\S*)")
# The same and what else is linked, for a build there.
LINKED = re.compile(r"(\S*/lib(?:fmt|spdlog|jpeg|png16|webp|sharpyuv|zstd|ssl|crypto|z)\.so\S*)")
PACKAGES = ("libfmt-dev", "libspdlog-dev", "nlohmann-json3-dev", "libcli11-dev", "zlib1g-dev", "libprotozero-dev",
            "libssl-dev", "libjpeg62-turbo-dev", "libpng-dev", "libwebp-dev", "libzstd-dev", "libgtest-dev",
            "libgmock-dev")


def call(*command, **options):
    print("==", *command, flush=True)
    done = subprocess.run([str(word) for word in command], check=False, **options)
    if done.returncode != 0:
        sys.exit(f"gpu_check: {command[0]} failed: see above")
    return done


def configure_and_build(build, *settings):
    call("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
         "-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON", "-DTUTTI_BUILD_EXAMPLES=OFF", *settings)
    listed = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], capture_output=True, text=True, check=True)
    nccl = ("test_nccl_device",) if "\ntest_nccl_device:" in listed.stdout else ()
    call("cmake", "--build", build, "--target", *TARGETS, *nccl)


def libraries_of(program, pattern):
    return sorted(set(pattern.findall(subprocess.run(["ldd", program], capture_output=True, text=True,
                                                     check=True).stdout)))


def pack(folder):
    """Exit code. Builds in build/gpu, with the LibTorch that CMake finds: Torch_DIR chooses it."""
    if folder.exists():
        print(f"gpu_check: {folder} exists: name a folder that this may make", file=sys.stderr)
        return 2
    build = ROOT / "build/gpu"
    configure_and_build(build)
    if not cuda_of(build):
        print("gpu_check: that LibTorch has no CUDA: set Torch_DIR to a CUDA build, or run tools/setup --cuda-build",
              file=sys.stderr)
        return 2
    there = folder / "build"
    for part in ("bin", "lib", "packages"):
        (there / part).mkdir(parents=True)
    call("git", "-C", ROOT, "archive", "-o", there / "source.tar", "HEAD")
    call("tar", "-x", "-C", folder, "-f", there / "source.tar")
    (there / "source.tar").unlink()
    for name in PROGRAMS:
        if (build / "bin" / name).exists():
            call("strip", "-o", there / "bin" / name, build / "bin" / name)
    program = build / "bin/tutti"
    for library in libraries_of(program, CARRIED):
        shutil.copy(library, there / "lib")
    for library in map(pathlib.Path, libraries_of(program, LINKED)):
        for name in {library.name, library.resolve().name}:  # programs know one, CMake's files the other
            shutil.copy(library, there / "packages" / name)
    if subprocess.run(["apt-get", "download", *PACKAGES], cwd=there / "packages", check=False).returncode != 0:
        print("gpu_check: no packages: --rebuild will need those of tools/packages.txt", file=sys.stderr)
    described = call("git", "-C", ROOT, "describe", "--always", "--dirty", capture_output=True, text=True)
    (there / "commit").write_text(described.stdout)
    print(f"carry {folder}, then there: tools/gpu_check")
    return 0


def cuda_of(build):
    cache = (build / "CMakeCache.txt").read_text()
    cmake = re.search(r"^Torch_DIR:\w+=(.*)$", cache, re.MULTILINE)[1]
    return (pathlib.Path(cmake) / "../../../lib/libtorch_cuda.so").exists()


def rebuild(build, python):
    """Exit code. Builds the programs of a packed folder where it stands, with that Python's LibTorch."""
    libraries = libraries_of_pytorch(python)
    if not libraries:
        print(f"gpu_check: {python} has no module torch: name one that has with --python", file=sys.stderr)
        return 2
    prefix = build / "prefix"
    for package in sorted((build / "packages").glob("*.deb")):
        call("dpkg", "-x", package, prefix)
    for folder in prefix.glob("usr/lib/*/pkgconfig"):  # beside it are the packages' links to them
        for library in (build / "packages").glob("*.so*"):
            shutil.copy(library, folder.parent)
    configure_and_build(build, f"-DCMAKE_PREFIX_PATH={prefix / 'usr'}",
                        f"-DTorch_DIR={libraries[0].parent / 'share/cmake/Torch'}")
    return 0
