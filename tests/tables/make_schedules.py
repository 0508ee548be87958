#!/usr/bin/env python3
"""Writes schedules.json beside itself: rates that Keras and PyTorch give for the schedules of tutti.

  KERAS_BACKEND=torch python tests/tables/make_schedules.py        # needs Keras 3 and PyTorch

A case says which schedule with which options of tutti, the steps, the rate of each, and how many
digits of them can be trusted. tests/unit/train/test_schedules.cpp reads them.
"""

import json
import pathlib

import keras
import torch

FILE = pathlib.Path(__file__).with_name("schedules.json")
STEPS = [0, 1, 2, 3, 5, 9, 10, 11, 19, 20, 21, 25, 29, 30, 31, 37, 49, 50, 51, 69, 70, 71, 99, 100, 101]
STEPS += [149, 150, 151, 1000, 12345]
WARM_UP_STEPS = 20


def case(schedule, options, steps, rates, tolerance):
    name = ", ".join([schedule] + [f"{k}={v}" for k, v in options.items()])
    return {
        "name": name,
        "schedule": schedule,
        "options": options,
        "tolerance": tolerance,
        "steps": steps,
        "rates": rates,
    }


# tutti's schedule -> Keras's class, and ways to call it with options of tutti
KERAS_CASES = {
    "piecewise_constant": (
        "PiecewiseConstantDecay",
        [
            {"boundaries": [10, 30], "values": [0.5, 0.125, 0.03]},
            {"boundaries": [0, 1, 100], "values": [1.0, 0.3, 0.2, 0.0]},
        ],
    ),
    "exponential": (
        "ExponentialDecay",
        [
            {"initial": 0.1, "decay_steps": 10, "decay_rate": 0.96, "staircase": False},
            {"initial": 0.1, "decay_steps": 10, "decay_rate": 0.5, "staircase": True},
            {"initial": 0.001, "decay_steps": 70, "decay_rate": 1.02, "staircase": False},
        ],
    ),
    "inverse_time": (
        "InverseTimeDecay",
        [
            {"initial": 0.1, "decay_steps": 1, "decay_rate": 0.5, "staircase": False},
            {"initial": 0.1, "decay_steps": 10, "decay_rate": 0.5, "staircase": True},
        ],
    ),
    "polynomial": (
        "PolynomialDecay",
        [
            {"initial": 0.1, "decay_steps": 50, "end": 1e-4, "power": 1.0, "cycle": False},
            {"initial": 0.1, "decay_steps": 30, "end": 0.01, "power": 0.5, "cycle": True},
            {"initial": 0.1, "decay_steps": 10, "end": 0.0, "power": 2.0, "cycle": True},
        ],
    ),
    "cosine": (
        "CosineDecay",
        [
            {"initial": 0.1, "decay_steps": 100, "alpha": 0.0},
            {"initial": 0.1, "decay_steps": 50, "alpha": 0.1},
            {"initial": 0.1, "decay_steps": 1, "alpha": 0.25},
        ],
    ),
    "cosine_restarts": (
        "CosineDecayRestarts",
        [
            {"initial": 0.1, "first_decay_steps": 10, "t_mul": 2.0, "m_mul": 1.0, "alpha": 0.0},
            {"initial": 0.1, "first_decay_steps": 10, "t_mul": 1.0, "m_mul": 0.9, "alpha": 0.1},
            {"initial": 0.1, "first_decay_steps": 25, "t_mul": 1.5, "m_mul": 0.5, "alpha": 0.01},
        ],
    ),
}


def rates_of(schedule):
    return [float(schedule(step)) for step in STEPS]


def keras_cases():
    # Rates of float32, which is what Keras makes of them unless told otherwise, have 7 digits.
    keras.config.set_floatx("float64")
    found = []
    for name, (of_keras, ways) in KERAS_CASES.items():
        for options in ways:
            given = dict(options)
            for ours, theirs in (("initial", "initial_learning_rate"), ("end", "end_learning_rate")):
                if ours in given:
                    given[theirs] = given.pop(ours)
            schedule = getattr(keras.optimizers.schedules, of_keras)(**given)
            found.append(case(name, options, STEPS, rates_of(schedule), 1e-12))
    return found


def keras_warm_up():
    """The one schedule of Keras with a warm-up of its own."""
    options = {"initial": 0.1, "decay_steps": 50, "alpha": 0.1, "warm_up": WARM_UP_STEPS, "from": 0.02}
    schedule = keras.optimizers.schedules.CosineDecay(
        options["from"],
        options["decay_steps"],
        options["alpha"],
        warmup_target=options["initial"],
        warmup_steps=WARM_UP_STEPS,
    )
    return case("cosine", options, STEPS, rates_of(schedule), 1e-12)


def rates_of_torch(make, first, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=first)
    schedule = make(optimizer)
    rates = [optimizer.param_groups[0]["lr"]]
    while len(rates) < steps:
        optimizer.step()
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def torch_cases():
    scheduler = torch.optim.lr_scheduler
    found = []
    for options in (
        {"max": 0.1, "total_steps": 100},
        {"max": 0.1, "total_steps": 37, "pct_start": 0.45, "div_factor": 10.0, "final_div_factor": 50.0},
        {"max": 0.1, "total_steps": 20, "pct_start": 0.0},
        {"max": 0.1, "total_steps": 20, "pct_start": 1.0},
        {"max": 0.1, "total_steps": 3},
    ):
        given = {k: v for k, v in options.items() if k != "max"}
        total = options["total_steps"]
        rates = rates_of_torch(
            lambda o: scheduler.OneCycleLR(o, options["max"], cycle_momentum=False, **given), 0.1, total
        )
        found.append(case("one_cycle", options, list(range(total)), rates, 1e-12))

    def warm_up_before_exponential(optimizer):
        warm_up = scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=WARM_UP_STEPS)
        then = scheduler.ExponentialLR(optimizer, gamma=0.9)
        return scheduler.SequentialLR(optimizer, [warm_up, then], milestones=[WARM_UP_STEPS])

    options = {"initial": 0.1, "decay_steps": 1, "decay_rate": 0.9, "warm_up": WARM_UP_STEPS, "from": 0.025}
    rates = rates_of_torch(warm_up_before_exponential, 0.1, 60)
    found.append(case("exponential", options, list(range(60)), rates, 1e-12))
    return found


def main():
    cases = keras_cases() + [keras_warm_up()] + torch_cases()
    FILE.write_text("[\n" + ",\n".join(json.dumps(each) for each in cases) + "\n]\n")


if __name__ == "__main__":
    main()
