"""The parts of a check, in the order in which they run. Each takes a Check and notes figures there; it
raises Failed or Skipped. Bounds of speed are those of docs/design/devices.md."""

import json
import pathlib
import re
import shutil
import tempfile

from contest import contest
from place import Failed, Skipped, json_in

KEPT_OF_TRAINING = ("train_loss", "val_loss", "val_accuracy", "images_per_second", "train_seconds", "weights_sha256")
ONE = ("--device", "cuda:0")
TWO = ("--device", "cuda:0x2")


def doctors_words(check):
    return json.loads(check.output_of(check.program("tutti", "doctor", "--json")))


def doctor(check):
    """That there is a device, and what."""
    facts = doctors_words(check)
    cuda = facts["cuda"]
    check.figures.update(torch=facts["torch"]["version"], driver=cuda["driver"], nccl=cuda["nccl"],
                         devices=[device["name"] or "a GPU" for device in cuda["devices"]])
    check.require(cuda["devices"], f"no GPU: {cuda['cure']}")


def same_bits(check):
    """Thread replicas that share a GPU, and those of two GPUs where there are, against the parts in turn."""
    several = len(doctors_words(check)["cuda"]["devices"]) > 1
    devices = ["cuda:0x2", "cuda:0x3"] + (["cuda:0,1"] if several else [])
    for device in devices:
        done = check.finish(check.program("bench_device_step", check.sizes.repeats, "--device", device,
                                          "--deterministic"))
        figures = check.figures[device] = json_in(done)
        check.require(figures["wrong"] == 0, f"{device}: in {figures['wrong_by_rule']} of {figures['repeats']} "
                      "repeats weights were not those of the parts in turn: a wait between queues is missing")
        check.require(figures["from_cpu"] < 1e-3, f"{device}: weights are {figures['from_cpu']} from the CPU's")


def train(check, name, *flags, epochs=2):
    """Figures of `tutti train cnn`."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "figures.json"
        check.output_of(check.program("tutti", "train", "cnn", "--data", check.place.data, "--epochs", epochs, "--seed",
                                      7, *check.sizes.train, *flags, "--json", file))
        figures = json.loads(file.read_text())
    check.figures[name] = {key: figures[key] for key in KEPT_OF_TRAINING}
    return figures


def require_near(check, name, figures, others, whose, at_most):
    far = abs(figures["val_loss"] - others["val_loss"])
    check.require(far < at_most, f"val_loss {name} is {far:.3g} from {whose}, at most {at_most}")


def cnn(check):
    """The same training on the CPU and on a GPU."""
    cuda, cpu = train(check, "cuda", *ONE), train(check, "cpu", "--device", "cpu")
    require_near(check, "of the GPU", cuda, cpu, "the CPU's", 0.05)
    check.require(check.dry or cuda["val_accuracy"] > 0.7, f"accuracy {cuda['val_accuracy']}, expected above 0.7")


def bf16(check):
    """The same in bfloat16."""
    float32, half = train(check, "float32", *ONE), train(check, "bfloat16", *ONE, "--precision", "bfloat16")
    check.require(half["weights_sha256"] != float32["weights_sha256"],
                  "--precision bfloat16 made float32's weights: nothing was computed in bfloat16")
    require_near(check, "in bfloat16", half, float32, "float32's", 0.1)


def strategies(check):
    """Two replicas of one GPU: the bits of the parts in turn, or, by way of the CPU, about their loss."""
    in_turn = train(check, "one_device", *ONE, "--replicas", 2, "--deterministic")
    for name in ("mirrored", "central_storage"):
        figures = train(check, name, *TWO, "--strategy", name, "--deterministic")
        check.require(figures["weights_sha256"] == in_turn["weights_sha256"],
                      f"{name} has other weights than the parts in turn")
    staged = {"multi_worker": ("--replicas", 2, "--strategy", "multi_worker"),
              "parameter_server": ("--replicas", 2, "--strategy", "parameter_server"),
              "all_reduce": ("--strategy", "mirrored", "--reduction", "all_reduce")}
    for name, flags in staged.items():
        require_near(check, f"of {name}", train(check, name, *TWO, *flags), in_turn, "the parts in turn", 0.05)


def checkpoint(check):
    """Three epochs straight, and two with the third in another process: the same weights. The third on the CPU."""
    straight = train(check, "straight", *ONE, "--deterministic", epochs=3)
    with tempfile.TemporaryDirectory() as folder:
        out = ("--out", pathlib.Path(folder) / "run")
        copy = pathlib.Path(folder) / "copy"
        train(check, "begun", *ONE, "--deterministic", *out)
        shutil.copytree(out[1], copy)
        resumed = train(check, "resumed", *ONE, "--deterministic", *out, "--resume", epochs=3)
        on_cpu = train(check, "resumed_on_cpu", "--device", "cpu", "--out", copy, "--resume", epochs=3)
    check.require(resumed["weights_sha256"] == straight["weights_sha256"], "a resumed training has other weights")
    require_near(check, "of the CPU, resumed,", on_cpu, straight, "the GPU's", 0.05)


def ours(check, *flags):
    return check.program("bench_device_speed", "ours", *(flags or ONE))


def against_pytorch(check):
    """One replica against PyTorch with the fused Adam."""
    check.needs_python_with("torch")
    for model, least, seconds in (("wide", 0.98, 15), ("mlp", 0.95, 10)):
        check.compare(model, least, contest(check, ours(check), check.peer(), model, seconds))
    check.judge()


def resnet18(check):
    """The same with convolutions."""
    check.needs_python_with("torch")
    check.compare("resnet18", 0.98, contest(check, ours(check), check.peer(), "resnet18", 20))
    check.judge()


def against_libtorch(check):
    """One replica against a loop of plain LibTorch with torch::optim::Adam."""
    plain = check.program("bench_device_speed", "plain", "--device", "cuda")
    check.compare("mlp", 1.1, contest(check, ours(check), plain, "mlp", 14))
    check.judge()


def step_graph(check):
    """The step as a graph: the bits of steps without, and its speed against PyTorch's whole-step graph."""
    with_graph = ours(check, *ONE, "--step-graph")
    said = check.finish(with_graph).errors
    if "this build has none" in said:  # nor has a dry check: the fake CUDA's graphs are in its tests
        raise Skipped(said.strip().splitlines()[0])
    plain, graph = (train(check, name, *ONE, "--deterministic", *flags)
                    for name, flags in (("plain", ()), ("graph", ("--step-graph",))))
    check.require(plain["weights_sha256"] == graph["weights_sha256"], "steps as a graph make other weights")
    check.needs_python_with("torch")
    for model in ("mlp", "wide"):
        check.compare(model, 0.95, contest(check, with_graph, check.peer("--graph"), model, 6))
    check.judge()


def logical_devices(check):
    """Two replicas of one GPU against one with the double batch."""
    two = ours(check, "--strategy", "mirrored", *TWO)
    for model in ("wide", "resnet18"):
        check.compare(model, 0.8, contest(check, two, ours(check), model, 8, batches=2))
    check.judge()


def memory_limits(check):
    """Tensors stay below the limit; what does not fit is an error that says so."""
    limit_mib = 256
    limit = (*ONE, "--memory-limit", limit_mib)
    with check.start(ours(check, *limit)) as program:
        peak = program.ask(model="mlp", batch=64, warmup=1, steps=2)["peak_bytes"]
    check.figures.update(limit_bytes=limit_mib << 20, peak_bytes=peak)
    check.require(0 < peak <= limit_mib << 20, f"{peak} bytes were in use, at most {limit_mib << 20}")
    # Its first convolution alone gives 411 MB.
    done = check.finish(check.program("tutti", "train", "cnn", "--data", check.place.data, "--epochs", 1,
                                      "--batch-size", 8192, *limit))
    check.figures["said"] = next((line for line in done.errors.splitlines() if "out of memory" in line.lower()), "")
    check.require(done.code != 0 and check.figures["said"],
                  f"a batch that does not fit ended with code {done.code} and no word of memory:\n  {done.last()}")


def memcheck(check):
    """compute-sanitizer on a step of two replicas."""
    if check.dry:
        raise Skipped("the fake CUDA has no memory of a device")
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if not sanitizer:
        raise Skipped("no compute-sanitizer in PATH")
    step = check.program("bench_device_step", 1, 1, "--device", "cuda:0x2")
    done = check.finish([sanitizer, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "97", *step])
    summary = re.search(r"ERROR SUMMARY: (\d+) error", done.output + done.errors)
    if not summary:
        raise Skipped(f"compute-sanitizer does not run here:\n  {done.last()}")
    check.figures["errors"] = int(summary[1])
    check.require(done.code == 0, f"ended with code {done.code}:\n  {done.last()}")


def nccl(check):
    """Engine nccl in a group of one, and of two on one GPU where NCCL allows that."""
    if check.dry:
        raise Skipped("the fake CUDA has no NCCL: its fake is in tests/unit/nccl")
    output = check.output_of(check.program("test_nccl_device"))
    passed = re.search(r"\[  PASSED  \] (\d+) test", output)
    check.figures["passed"] = int(passed[1]) if passed else 0
    if check.figures["passed"] == 0:
        raise Failed(f"no test has run:\n  {output[-2000:]}")


# With the most seconds of each: 11 minutes together, of which an H100 takes 4.
PARTS = {doctor: 20, same_bits: 60, cnn: 60, bf16: 30, strategies: 60, checkpoint: 60, against_pytorch: 60,
         resnet18: 50, against_libtorch: 30, step_graph: 80, logical_devices: 40, memory_limits: 30, memcheck: 60,
         nccl: 20}
