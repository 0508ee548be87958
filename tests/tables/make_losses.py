#!/usr/bin/env python3
"""Writes losses.json beside itself: what Keras and PyTorch give for the losses of tutti.

  KERAS_BACKEND=tensorflow python tests/tables/make_losses.py            # Keras 3 and TensorFlow
  python tests/tables/make_losses.py --merge                             # PyTorch: adds its cases

Everything is computed in float64. Inputs are multiples of 1/64, which float32 holds too, and stay
away from kinks, where a gradient is a matter of taste. A case says which loss with which options,
and lists output, target, weights, loss of each sample, weighted sum, the gradient of that sum with
respect to the output, and how many digits of it all can be trusted. tests/unit/train/test_losses_table.cpp reads them.
"""

import argparse
import json
import pathlib

import numpy as np

FILE = pathlib.Path(__file__).with_name("losses.json")
WEIGHTS = [0.5, 2.0, 0.0, 1.25]
SAMPLES = len(WEIGHTS)


def sixty_fourths(rng, low, high, shape):
    return rng.integers(int(low * 64), int(high * 64), shape, endpoint=True) / 64


def inputs():
    """name -> (output, target), all of SAMPLES samples."""
    rng = np.random.default_rng(20240)
    labels = np.array([0, 2, 1, 2])
    one_hot = np.eye(3)[labels]
    y = sixty_fourths(rng, -3, 3, (SAMPLES, 3))
    shares = rng.integers(1, 30, (SAMPLES, 3))
    shares[:, 2] = 64 - shares[:, 0] - shares[:, 1]
    p = sixty_fourths(rng, 0.1, 0.9, (SAMPLES, 3))
    t = y + np.sign(rng.normal(size=y.shape)) * sixty_fourths(rng, 0.25, 2.5, y.shape)
    images = sixty_fourths(rng, -2, 2, (SAMPLES, 2, 3))
    return {
        "labels": (y, labels),
        "large logits": (y * 256, labels),
        "probabilities, labels": (p, labels),
        "one hot": (y, one_hot),
        "large logits, one hot": (y * 256, one_hot),
        "shares": (y, shares / 64),
        "probabilities, shares": (p, shares / 64),
        "certain, one hot": (np.array([[1, 0, 0], [1, 0, 0], [0.5, 0.25, 0.25], [0, 0, 1]]), one_hot),
        "yes or no": (y, rng.integers(0, 2, y.shape).astype(float)),
        "large, yes or no": (y * 256, rng.integers(0, 2, y.shape).astype(float)),
        "probabilities, yes or no": (p, rng.integers(0, 2, y.shape).astype(float)),
        "certain, yes or no": (np.eye(3)[[0, 1, 2, 0]], rng.integers(0, 2, y.shape).astype(float)),
        "signs": (y, rng.integers(0, 2, y.shape) * 2.0 - 1),
        "numbers": (y, t),
        "far numbers": (y * 256, t),
        "images": (images, images + sixty_fourths(rng, 0.25, 1.5, images.shape)),
        "images of shares": (np.abs(images) + 1 / 64, np.abs(images)[:, ::-1] / 4 + 1 / 64),
        "with zeros": (y, t * (one_hot == 0)),
        "counts": (np.abs(y) + 1 / 64, rng.integers(0, 5, y.shape).astype(float)),
        "a zero row": (y, t * np.array([[1], [0], [1], [1]])),
        "below zero": (y, np.abs(t)),
        "masks": (images, rng.integers(0, 2, images.shape).astype(float)),
        "probabilities of masks": (
            sixty_fourths(rng, 0, 1, images.shape),
            rng.integers(0, 2, images.shape).astype(float),
        ),
        "pixels": (images, np.eye(3)[rng.integers(0, 3, images.shape[:2])]),
        "readings": (
            sixty_fourths(rng, -2, 2, (SAMPLES, 6, 4)),
            np.array([[1, 2, 0], [3, 3, 1], [0, 0, 0], [1, 2, 3]]),
        ),
    }


# loss -> ways to call it: (options, inputs)
KERAS_CASES = {
    "sparse_categorical_crossentropy": [
        ({}, "labels"),
        ({}, "large logits"),
        ({"from_logits": False}, "probabilities, labels"),
        ({"gamma": 2.0}, "labels"),  # of Keras's categorical_focal_crossentropy
        ({"gamma": 0.5, "from_logits": False}, "probabilities, labels"),
    ],
    "categorical_crossentropy": [
        ({}, "one hot"),
        ({}, "large logits, one hot"),
        ({"label_smoothing": 0.1}, "shares"),
        ({"from_logits": False}, "probabilities, shares"),
        ({"from_logits": False, "label_smoothing": 0.25}, "probabilities, shares"),
        ({"from_logits": False}, "certain, one hot"),
    ],
    "binary_crossentropy": [
        ({}, "yes or no"),
        ({}, "large, yes or no"),
        ({"label_smoothing": 0.1}, "yes or no"),
        ({"from_logits": False}, "probabilities, yes or no"),
        ({"from_logits": False, "label_smoothing": 0.25}, "probabilities, yes or no"),
        ({"from_logits": False}, "certain, yes or no"),
    ],
    "mean_squared_error": [({}, "numbers"), ({}, "images")],
    "mean_absolute_error": [({}, "numbers"), ({}, "images")],
    "mean_absolute_percentage_error": [({}, "numbers"), ({}, "with zeros")],
    "mean_squared_logarithmic_error": [({}, "counts"), ({}, "below zero")],
    "huber": [({}, "numbers"), ({"delta": 0.3}, "numbers"), ({}, "images")],
    "log_cosh": [({}, "numbers"), ({}, "far numbers")],
    "hinge": [({}, "signs"), ({}, "yes or no")],
    "squared_hinge": [({}, "signs"), ({}, "yes or no")],
    "categorical_hinge": [({}, "one hot")],
    "kl_divergence": [({}, "probabilities, shares"), ({}, "images of shares")],
    "poisson": [({}, "counts")],
    "binary_focal_crossentropy": [
        ({}, "yes or no"),
        ({"gamma": 0.5, "alpha": 0.25}, "yes or no"),
        ({"label_smoothing": 0.1, "alpha": 0.7}, "yes or no"),
        ({"from_logits": False, "gamma": 3.0}, "probabilities, yes or no"),
        ({}, "masks"),
    ],
    "categorical_focal_crossentropy": [
        ({}, "one hot"),
        ({"gamma": 0.5, "alpha": [0.5, 1.0, 0.125]}, "one hot"),
        ({"label_smoothing": 0.1}, "shares"),
        ({"from_logits": False, "gamma": 3.0}, "probabilities, shares"),
        ({}, "pixels"),
    ],
    "dice": [
        ({}, "masks"),
        ({"from_logits": False}, "probabilities of masks"),
        ({"softmax": True}, "pixels"),
        ({}, "yes or no"),
    ],
    "tversky": [
        ({}, "masks"),
        ({"from_logits": False, "alpha": 0.3, "beta": 0.7}, "probabilities of masks"),
        ({"softmax": True, "alpha": 1.0, "beta": 0.25}, "pixels"),
    ],
    "cosine_similarity": [({}, "numbers"), ({}, "images"), ({}, "a zero row")],
}

TORCH_CASES = [
    ({"label_smoothing": 0.1}, "labels"),
    ({"class_weights": [0.5, 1.0, 3.0]}, "labels"),
    ({"label_smoothing": 0.3}, "large logits"),
]


def tolerance_of(loss, name):
    if name == "certain, yes or no":
        return 1e-9  # Keras takes the probability of "no" as 1 - (1 - 1e-7), which has 9 digits
    if loss == "log_cosh":
        return 1e-8  # Keras subtracts a log(2) of float32
    if "focal" in loss or loss == "gamma":
        return 1e-7  # Keras keeps probabilities between 1e-7 and 1 - 1e-7
    return 1e-12


def keras_loss(loss, target, y, given):
    """What Keras calls it, of probabilities where it wants them, and of each sample alone."""
    import keras

    if loss == "sparse_categorical_crossentropy" and "gamma" in given:
        given.setdefault("from_logits", True)
        one_hot = np.eye(y.shape[-1])[target]
        return keras.losses.categorical_focal_crossentropy(one_hot, y, alpha=1.0, **given)
    if loss in ["dice", "tversky"]:
        if given.pop("softmax", False):
            y = keras.ops.softmax(y, axis=-1)
        elif given.pop("from_logits", True):
            y = keras.ops.sigmoid(y)
        if loss == "tversky":  # its alpha is of false negatives, whatever its words say
            given = {"alpha": given.get("beta", 0.5), "beta": given.get("alpha", 0.5)}
        given = {k: v for k, v in given.items() if k != "from_logits"}
        return getattr(keras.losses, loss)(target, y, axis=tuple(range(1, len(y.shape))), **given)
    if loss == "binary_focal_crossentropy":
        given["apply_class_balancing"] = "alpha" in given
    if loss.endswith("crossentropy"):
        given.setdefault("from_logits", True)
    return getattr(keras.losses, loss)(target, y, **given)


def case(loss, options, name, per_sample, total, gradient):
    output, target = inputs()[name]
    return {
        "name": ", ".join([loss, name] + [f"{k}={v}" for k, v in options.items()]),
        "loss": loss,
        "options": options,
        "shape": list(output.shape),
        "output": output.ravel().tolist(),
        "target": target.ravel().tolist(),
        "target_shape": list(target.shape),
        "weights": WEIGHTS,
        "tolerance": tolerance_of("gamma" if "gamma" in options else loss, name),
        "per_sample": np.ravel(per_sample).tolist(),
        "weighted_sum": float(total),
        "gradient": np.ravel(gradient).tolist(),
    }


def keras_cases():
    import keras
    import tensorflow as tf

    keras.config.set_floatx("float64")
    found = []
    for loss, ways in KERAS_CASES.items():
        for options, name in ways:
            output, target = inputs()[name]
            with tf.GradientTape() as tape:
                y = tf.constant(output, tf.float64)
                tape.watch(y)
                each = keras_loss(loss, target, y, dict(options))
                # Keras gives one loss for each position of the axes between; a sample has their mean.
                each = tf.reduce_mean(tf.reshape(each, (SAMPLES, -1)), axis=1)
                total = tf.reduce_sum(each * tf.constant(WEIGHTS, tf.float64))
            gradient = tape.gradient(total, y)
            found.append(case(loss, options, name, each.numpy(), total.numpy(), gradient.numpy()))
    return found


def torch_cases():
    import torch

    found = []
    for options, name in TORCH_CASES:
        output, target = inputs()[name]
        y = torch.tensor(output, dtype=torch.float64, requires_grad=True)
        weights = options.get("class_weights")
        each = torch.nn.functional.cross_entropy(
            y,
            torch.tensor(target),
            weight=None if weights is None else torch.tensor(weights, dtype=torch.float64),
            label_smoothing=options.get("label_smoothing", 0.0),
            reduction="none",
        )
        total = (each * torch.tensor(WEIGHTS, dtype=torch.float64)).sum()
        total.backward()
        loss = "sparse_categorical_crossentropy"
        found.append(
            case(loss, options, name, each.detach().numpy(), total.item(), y.grad.numpy())
        )
    output, target = inputs()["readings"]
    y = torch.tensor(output, dtype=torch.float64, requires_grad=True)
    each = torch.nn.functional.ctc_loss(
        y.log_softmax(-1).transpose(0, 1),
        torch.tensor(target),
        torch.full((SAMPLES,), output.shape[1]),
        torch.tensor((target != 0).sum(axis=1)),
        reduction="none",
    )
    total = (each * torch.tensor(WEIGHTS, dtype=torch.float64)).sum()
    total.backward()
    found.append(case("ctc", {}, "readings", each.detach().numpy(), total.item(), y.grad.numpy()))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--merge", action="store_true", help="add PyTorch's cases to the file")
    if parser.parse_args().merge:
        cases = json.loads(FILE.read_text()) + torch_cases()
    else:
        cases = keras_cases()
    FILE.write_text("[\n" + ",\n".join(json.dumps(each) for each in cases) + "\n]\n")


if __name__ == "__main__":
    main()
