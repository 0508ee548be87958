"""What every peer of `tutti_bench compare` says and is told.

A line when it has started; then a command a line on stdin, each answered by a line, until stdin ends:
  {"model": "mlp", "batch": 64, "steps": 500, "warmup": 20}
  {"images_per_second": 123456.0, "step_ms": 0.5, "loss": 1.2, "setting": ""}     of this process alone
Batches are tensors in memory before the clock starts, as with `tutti bench step --preload`.
"""
import gc
import json
import sys
import time

PRELOADED = 32  # batches in memory, taken in turn


def measure(trainer, batch, steps, warmup, meet):
    trainer.train(warmup)
    meet()
    begin = time.perf_counter()
    steps = trainer.train(steps)
    seconds = time.perf_counter() - begin
    return {"images_per_second": batch * steps / seconds, "step_ms": 1000 * seconds / steps,
            "loss": trainer.loss(), "setting": getattr(trainer, "words", "")}


def answer_commands(make_trainer, hello, meet=lambda: None):
    """Measures trainers: train(steps) returns the steps done, as many or whole calls of several; loss() is
    the last one's. `meet` brings ranks together before the clock starts."""
    gc.disable()
    trainers = {}
    print(json.dumps(hello), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        key = (command["model"], command["batch"])
        if key not in trainers:
            trainers.clear()  # one model in memory, as in the program beside it
            gc.collect()
            trainers[key] = make_trainer(*key)
        answer = measure(trainers[key], command["batch"], command["steps"], command["warmup"], meet)
        print(json.dumps(answer), flush=True)
