"""tools/setup --cuda and --cuda-build, with an apt, a pip and a df of the test's own: what is said before it
is downloaded, what is asked of pip, and that a CUDA build in .venv stays."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
PACKAGES = ".venv/lib/python3.11/site-packages"
# A Python with pip: it notes what it installs and leaves of a wheel what tools/setup looks at. "libraries"
# stands for what NVIDIA's wheels bring, without which PyTorch of the CUDA build cannot be imported.
PYTHON = """#!/bin/bash
site="$ROOT/{packages}"
[ "$1 $2" != "-c import torch" ] || exec test -e "$ROOT/libraries"
[ "$1 $3" = "-m install" ] || exit 0
shift 3
echo "$@" >>"$ROOT/pip"
mkdir -p "$site/torch/lib" "$site/torch/share/cmake/Torch"
for word; do
  [[ $word != torch===* ]] || touch "$site/torch/lib/libtorch_cuda.so"
  [[ $word != *==* ]] || {{ name=${{word%%==*}}; mkdir -p "$site/${{name//-/_}}-${{word##*==}}.dist-info"; }}
done
case " $* " in
  *--no-deps*) ;;
  *torch===*)
    touch "$ROOT/libraries"
    mkdir -p "$site"/nvidia_{{cuda_runtime-13.0.96,cuda_cupti-13.0.85,nccl_cu13-2.29.7}}.dist-info ;;
esac
""".format(packages=PACKAGES)


class SetupTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "tools").mkdir()
        for name in ("setup", "packages.txt"):
            shutil.copy(REPOSITORY / "tools" / name, self.root / "tools" / name)
        self.free_mb = 100000
        self.program(".venv/bin/python", PYTHON)
        self.program("bin/dpkg-query", "#!/bin/sh\nprintf installed\n")
        self.program("bin/apt-get", "#!/bin/sh\n")
        self.program("bin/apt-cache", "#!/bin/sh\n")
        self.program("bin/df", "#!/bin/sh\nprintf 'head\\nfs 1 1 %s 1 /\\n' \"$FREE_MB\"\n")

    def program(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run_tool(self, *arguments, **environment):
        inherited = {k: v for k, v in os.environ.items() if k != "Torch_DIR"}
        return subprocess.run(
            [self.root / "tools/setup", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env={
                **inherited,
                "PATH": f"{self.root}/bin:{os.environ['PATH']}",
                "ROOT": str(self.root),
                "TMPDIR": str(self.root),
                "FREE_MB": str(self.free_mb),
                **environment,
            },
        )

    def installed(self):
        """What pip was asked for, a line a call."""
        log = self.root / "pip"
        return log.read_text().splitlines() if log.exists() else []

    def test_says_how_much_comes_before_pip_is_asked(self):
        result = self.run_tool("--cuda")
        self.assertEqual(result.returncode, 0, result)
        lines = result.stdout.splitlines()
        self.assertIn("torch===2.13.0", lines[0])
        self.assertEqual(lines[1], "== set-up: up to 2745 MB to download, 4800 MB on disk")
        self.assertEqual(len(self.installed()), 1)
        self.assertNotIn("--no-deps", self.installed()[0])
        self.assertIn("torch===2.13.0", self.installed()[0].split())

    def test_installs_nothing_where_the_disk_is_too_full(self):
        for self.free_mb, words in ((2000, "2000 MB are free there"), (7000, "7545 MB are needed")):
            result = self.run_tool("--cuda")
            self.assertEqual(result.returncode, 1, result)
            self.assertIn(words, result.stderr)
            self.assertEqual(self.installed(), [])

    def test_for_building_leaves_out_what_a_device_needs(self):
        result = self.run_tool("--cuda-build")
        self.assertEqual(result.returncode, 0, result)
        self.assertIn("up to 752 MB to download", result.stdout)
        (words,) = self.installed()
        self.assertIn("--no-deps", words.split())
        for wheel in ("torch", "nvidia-cuda-runtime", "nvidia-cuda-cupti", "nvidia-nccl-cu13"):
            self.assertIn(f" {wheel}==", f" {words}")
        self.assertNotIn("cudnn", words)

    def test_does_it_once(self):
        for argument in ("--cuda-build", "--cuda"):
            self.run_tool(argument)
            before = self.installed()
            self.assertIn("nothing to do", self.run_tool(argument).stdout)
            self.assertEqual(self.installed(), before)
        self.assertEqual(len(before), 2)  # what only a device needs came with the second

    def test_without_arguments_a_cuda_build_stays(self):
        self.run_tool("--cuda-build")
        before = self.installed()
        self.assertIn("nothing to do", self.run_tool().stdout)
        self.assertEqual(self.installed(), before)

    def test_takes_the_cpu_wheel_without_arguments(self):
        self.run_tool()
        self.assertEqual(self.installed(), ["-q --disable-pip-version-check torch==2.13.0+cpu"])

    def test_is_refused_where_another_libtorch_is_named(self):
        other = self.root / "other"
        other.mkdir()
        (other / "TorchConfig.cmake").touch()
        result = self.run_tool("--cuda", Torch_DIR=str(other))
        self.assertEqual(result.returncode, 1, result)
        self.assertIn("Torch_DIR names another LibTorch", result.stderr)
        self.assertEqual(self.installed(), [])

    def test_pytorch_that_cannot_be_imported_is_no_peer(self):
        self.run_tool("--cuda-build")
        result = self.run_tool("--bench")
        self.assertEqual(result.returncode, 1, result)
        self.assertIn("tools/setup --cuda adds what it lacks", result.stderr)


if __name__ == "__main__":
    unittest.main()
