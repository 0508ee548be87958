"""DeepSpeed's all-reduce over shared memory, without the rest of DeepSpeed.

  deepspeed_shm.py FOLDER

compiles it, with deepspeed_timed.cpp, from the sources of the installed package unless FOLDER has what was
made before, and prints the library's path; a line before says that it compiles. Programs that import this call
`start` once, then `all_reduce`.
"""
import importlib.metadata
import importlib.util
import os
import pathlib
import sys
import tempfile

import torch
import torch.distributed as dist


def build(folder):
    package = importlib.util.find_spec("deepspeed")  # found, not imported: it would look for devices
    if package is None:
        sys.exit("no DeepSpeed in .venv; tools/setup --bench installs it there")
    version = importlib.metadata.version("deepspeed")
    library = folder / f"deepspeed_shm-{version}-torch-{torch.__version__}.so"
    own = pathlib.Path(__file__).with_name("deepspeed_timed.cpp")
    if library.exists() and library.stat().st_mtime > own.stat().st_mtime:
        return library
    print("compiling DeepSpeed's all-reduce, once: this takes a minute", flush=True)
    from torch.utils import cpp_extension
    sources = pathlib.Path(package.submodule_search_locations[0]) / "ops/csrc/cpu/comm"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        cpp_extension.load("deepspeed_shm", [str(sources / "shm.cpp"), str(own)],
                           extra_cflags=["-O3", "-fopenmp", "-march=native"], extra_include_paths=[str(sources)],
                           build_directory=scratch, is_python_module=False)
        os.replace(f"{scratch}/deepspeed_shm.so", library)
    return library


def start(library, meeting):
    """Brings the ranks of torch.distributed together in shared memory named after `meeting`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    os.environ.update(LOCAL_SIZE=str(ranks), MASTER_ADDR="tutti", MASTER_PORT=meeting)
    torch.ops.load_library(library)
    torch.ops.deepspeed_timed.start(ranks, rank)
    dist.barrier()
    # All have it mapped; DeepSpeed itself would leave it behind.
    os.unlink(f"/dev/shm/deepspeed_allreduce_buffer_{os.getuid()}_tutti_{meeting}_{rank}")


def all_reduce(vector):
    """Adds float32 of all ranks in place."""
    torch.ops.deepspeed.inference_all_reduce_(vector)


if __name__ == "__main__":
    print(build(pathlib.Path(sys.argv[1])))
