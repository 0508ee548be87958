"""What every peer of `tutti_bench compare` says and is told.

A line when it has started; then a command a line on stdin, each answered by a line, until stdin ends:
  {"model": "mlp", "batch": 64, "steps": 500, "warmup": 20}
  {"images_per_second": 123456.0, "step_ms": 0.5, "loss": 1.2, "setting": ""}     of this process alone
With "each": true every step is timed: "step_ms" is their median, and "losses" are those of the steps of the warm-up,
where the model is new (null: no number); "peak_mb" is by how much its training made the process grow, where the trainer
asked. Or
  {"left_out": WHY}
Batches are tensors in memory before the clock starts, as with `tutti bench step --preload`.
"""
import ctypes
import gc
import json
import math
import pathlib
import statistics
import sys
import time

PRELOADED = 32  # batches in memory, taken in turn


class LeftOut(Exception):
    """A peer does not do this model; the words say why."""


def status_mb(field):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024


def memory_before():
    """MB that the process has now; the peak starts there."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return status_mb("VmRSS")


def measure(trainer, batch, steps, warmup, meet):
    trainer.train(warmup)
    meet()
    begin = time.perf_counter()
    steps = trainer.train(steps)
    seconds = time.perf_counter() - begin
    return {"images_per_second": batch * steps / seconds, "step_ms": 1000 * seconds / steps,
            "loss": trainer.loss(), "setting": getattr(trainer, "words", "")}


def measure_each(trainer, batch, steps, warmup, meet):
    losses = []
    for _ in range(warmup):
        trainer.train(1)
        losses.append(trainer.loss())
    meet()
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        trainer.train(1)
        seconds.append(time.perf_counter() - begin)
    ms = 1000 * statistics.median(seconds)
    answer = {"images_per_second": 1000 * batch / ms, "step_ms": ms, "loss": trainer.loss(), "losses": losses,
              "setting": getattr(trainer, "words", "")}
    if hasattr(trainer, "memory_before"):
        answer["peak_mb"] = status_mb("VmHWM") - trainer.memory_before
    return answer


def plain(value):
    """What JSON has of it: no NaN."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def answer_commands(make_trainer, hello, meet=lambda: None):
    """Measures trainers: train(steps) goes on for so many steps and returns those done, as many or whole calls of
    several; loss() is the last one's. `meet` brings ranks together before the clock starts."""
    gc.disable()
    trainers = {}
    print(json.dumps(hello), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        key = (command["model"], command["batch"])
        try:
            if key not in trainers:
                trainers.clear()  # one model in memory, as in the program beside it
                gc.collect()
                trainers[key] = make_trainer(*key)
            how = measure_each if command.get("each") else measure
            answer = how(trainers[key], command["batch"], command["steps"], command["warmup"], meet)
        except LeftOut as why:
            answer = {"left_out": str(why)}
        print(json.dumps(plain(answer), allow_nan=False), flush=True)
