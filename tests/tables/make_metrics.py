"""Writes metrics.json beside this file: small sets of samples, and what scikit-learn and Keras say
of them. Needs scikit-learn and keras with a backend:

    python tests/tables/make_metrics.py

tests/unit/train/test_metrics_table.cpp reads the table. Numbers of Keras are sums in float32.
"""

import json
import pathlib

import keras
import numpy as np
from sklearn import metrics as sk

KERAS = 2e-6
SKLEARN = 1e-9
random = np.random.default_rng(20240607)
samples, values = {}, []


def add_samples(name, outputs, labels=None, targets=None, weights=None):
    """Floats as float32 keeps them; weights are added in double."""
    own = {"outputs": outputs, "labels": labels, "targets": targets, "weights": weights}
    own = {key: np.asarray(value) for key, value in own.items() if value is not None}
    for key in own.keys() - {"labels"}:
        own[key] = own[key].astype(np.float32)
    if "weights" in own:
        own["weights"] = own["weights"].astype(float)
    samples[name] = own
    return own


def expect(name, metric, value, tolerance):
    what = "matrix" if np.ndim(value) == 2 else "value"
    number = np.asarray(value, float).tolist()
    values.append({"samples": name, "metric": metric, what: number, "tolerance": float(tolerance)})


def of_keras(metric, right, own):
    metric.update_state(right, own["outputs"], sample_weight=own.get("weights"))
    return float(metric.result())


def largest(outputs):
    return np.argmax(outputs, axis=1)  # the first of equal ones


def mean_average_precision(own, k):
    """The obvious way: sort, first of equals first, and look for the label."""
    order = np.argsort(-own["outputs"], axis=1, kind="stable")[:, :k]
    scores = []
    for label, best in zip(own["labels"], order):
        found = np.flatnonzero(best == label)
        scores.append(1 / (found[0] + 1) if found.size else 0)
    return np.average(scores, weights=own.get("weights"))


def expect_classes(name, own):
    labels, said, weights = own["labels"], largest(own["outputs"]), own.get("weights")
    classes = own["outputs"].shape[1]
    expect(name, "accuracy", sk.accuracy_score(labels, said, sample_weight=weights), SKLEARN)
    scores = {"precision": sk.precision_score, "recall": sk.recall_score, "f1": sk.f1_score}
    for metric, score in scores.items():
        for average in ["macro", "micro", "weighted"]:
            full = metric if average == "macro" else f"{average}_{metric}"
            got = score(labels, said, average=average, sample_weight=weights, zero_division=0)
            expect(name, full, got, SKLEARN)
        options = {"sample_weight": weights, "zero_division": 0}
        of_two = score(labels, said, labels=[2], average=None, **options)
        expect(name, f"{metric}_of_2", of_two[0], SKLEARN)
    matrix = sk.confusion_matrix(labels, said, labels=range(classes), sample_weight=weights)
    expect(name, "confusion_matrix", matrix, SKLEARN)
    expect(name, "map_at_3", mean_average_precision(own, 3), SKLEARN)
    expect(name, "map_at_1", sk.accuracy_score(labels, said, sample_weight=weights), SKLEARN)


def expect_places(name, own):
    """What other programs count differently among ties."""
    one_hot = np.eye(own["outputs"].shape[1])[own["labels"]]
    top = keras.metrics.SparseTopKCategoricalAccuracy(k=2)
    expect(name, "top_2_accuracy", of_keras(top, own["labels"], own), KERAS)
    ranking = sk.label_ranking_average_precision_score(
        one_hot, own["outputs"], sample_weight=own.get("weights")
    )
    expect(name, f"map_at_{one_hot.shape[1]}", ranking, SKLEARN)


def expect_perplexity(name, own):
    """Of logits, and of the probabilities that they stand for, as samples of their own."""
    logits = own["outputs"].astype(float)
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    chances = chances.astype(np.float32)
    classes, weights = range(logits.shape[1]), own.get("weights")
    loss = sk.log_loss(own["labels"], chances, sample_weight=weights, labels=classes)
    expect(name, "perplexity of logits", np.exp(loss), 1e-5)
    add_samples(f"chances of {name}", chances, own["labels"], weights=weights)
    expect(f"chances of {name}", "perplexity", np.exp(loss), 1e-5)


def expect_binary(name, own):
    right = own["labels"] if "labels" in own else own["targets"].astype(int)
    weights = own.get("weights")
    scores = own["outputs"].reshape(-1)
    for metric, threshold in [("", 0.5), (" above 0.3", 0.3)]:
        said = (scores > np.float32(threshold)).astype(int)
        binary = keras.metrics.BinaryAccuracy(threshold=threshold)
        column = dict(own, outputs=scores.reshape(-1, 1))
        got = of_keras(binary, right.reshape(-1, 1), column)
        expect(name, "binary_accuracy" + metric, got, KERAS)
        for what, score in [
            ("precision", sk.precision_score),
            ("recall", sk.recall_score),
            ("f1", sk.f1_score),
        ]:
            got = score(right, said, sample_weight=weights, zero_division=0)
            expect(name, what + metric, got, SKLEARN)
        matrix = sk.confusion_matrix(right, said, labels=[0, 1], sample_weight=weights)
        expect(name, "confusion_matrix" + metric, matrix, SKLEARN)
    flat = dict(own, outputs=scores)
    for metric, options in [
        ("auc", {"curve": "ROC"}),
        ("pr_auc", {"curve": "PR"}),
        ("auc of 11 thresholds", {"curve": "ROC", "num_thresholds": 11}),
        ("pr_auc of 11 thresholds", {"curve": "PR", "num_thresholds": 11}),
    ]:
        expect(name, metric, of_keras(keras.metrics.AUC(**options), right, flat), KERAS)
    if right.any():
        precision = sk.average_precision_score(right, scores, sample_weight=weights)
        expect(name, "average_precision", precision, SKLEARN)


def expect_logits(name, own):
    binary = keras.metrics.BinaryAccuracy(threshold=0.5)
    right = own["targets"].reshape(-1, 1)
    chances = 1 / (1 + np.exp(-own["outputs"].reshape(-1, 1)))
    got = of_keras(binary, right, dict(own, outputs=chances))
    expect(name, "binary_accuracy of logits", got, KERAS)
    said = chances.reshape(-1) > 0.3
    expect(name, "f1 of logits above 0.3", sk.f1_score(own["targets"], said), SKLEARN)
    roc = keras.metrics.AUC(from_logits=True)
    flat = dict(own, outputs=own["outputs"].reshape(-1))
    expect(name, "auc of logits", of_keras(roc, own["targets"], flat), KERAS)
    precision = sk.average_precision_score(own["targets"], own["outputs"])
    expect(name, "average_precision of logits", precision, 1e-3)


def expect_regression(name, own):
    right, outputs, weights = own["targets"], own["outputs"], own.get("weights")
    exact = {key: np.asarray(value, float) for key, value in own.items()}
    squared = sk.mean_squared_error(exact["targets"], exact["outputs"], sample_weight=weights)
    expect(name, "mean_squared_error", squared, SKLEARN)
    absolute = sk.mean_absolute_error(exact["targets"], exact["outputs"], sample_weight=weights)
    expect(name, "mean_absolute_error", absolute, SKLEARN)
    root = keras.metrics.RootMeanSquaredError()
    tolerance = KERAS * max(1, outputs.max())
    expect(name, "root_mean_squared_error", of_keras(root, right, own), tolerance)
    r2 = sk.r2_score(exact["targets"], exact["outputs"], sample_weight=weights)
    expect(name, "r2_score", r2, 1e-8)


def expect_overlaps(name, own):
    """F-beta and intersections over unions of classes, and counts of one of them."""
    labels, said, weights = own["labels"], largest(own["outputs"]), own.get("weights")
    for average in ["macro", "micro", "weighted"]:
        before = "" if average == "macro" else f"{average}_"
        options = {"average": average, "sample_weight": weights, "zero_division": 0}
        for beta in [2, 0.5]:
            score = sk.fbeta_score(labels, said, beta=beta, **options)
            expect(name, f"{before}f_beta_{beta}", score, SKLEARN)
        expect(name, f"{before}iou", sk.jaccard_score(labels, said, **options), SKLEARN)
    if weights is None:  # Keras makes whole numbers of them
        mean_iou = keras.metrics.MeanIoU(num_classes=own["outputs"].shape[1])
        mean_iou.update_state(labels, said)
        expect(name, "iou", float(mean_iou.result()), KERAS)
    only = {"labels": [2], "average": None, "sample_weight": weights, "zero_division": 0}
    expect(name, "iou_of_2", sk.jaccard_score(labels, said, **only)[0], SKLEARN)
    expect(name, "f_beta_2_of_2", sk.fbeta_score(labels, said, beta=2, **only)[0], SKLEARN)
    expect_counts(name, labels == 2, said == 2, weights, "_of_2")


def expect_counts(name, right, said, weights, after=""):
    matrix = sk.confusion_matrix(right, said, labels=[False, True], sample_weight=weights)
    for metric, value in [
        ("true_positives", matrix[1, 1]),
        ("false_positives", matrix[0, 1]),
        ("true_negatives", matrix[0, 0]),
        ("false_negatives", matrix[1, 0]),
    ]:
        expect(name, metric + after, value, SKLEARN)


def expect_answers(name, own):
    """Of each output an answer: of one a sample, and of masks."""
    right = own["labels"] if "labels" in own else own["targets"]
    right = right.reshape(own["outputs"].shape).astype(int)
    for after, threshold in [("", 0.5), (" above 0.3", 0.3)]:
        for metric, make in [
            ("true_positives", keras.metrics.TruePositives),
            ("false_positives", keras.metrics.FalsePositives),
            ("true_negatives", keras.metrics.TrueNegatives),
            ("false_negatives", keras.metrics.FalseNegatives),
        ]:
            got = of_keras(make(thresholds=threshold), right, own)
            expect(name, metric + after, got, 60 * KERAS)
        if name == "binary":  # Keras's is of outputs at the threshold too, where others' are above
            iou = of_keras(keras.metrics.BinaryIoU(threshold=threshold), right, own)
            expect(name, "binary_iou" + after, iou, KERAS)
        said = own["outputs"] > np.float32(threshold)
        weights = by_element(own).get("weights")
        weights = None if weights is None else weights.reshape(-1)
        options = {"average": "macro", "sample_weight": weights, "zero_division": 0}
        iou = sk.jaccard_score(right.reshape(-1), said.reshape(-1), **options)
        expect(name, "binary_iou" + after, iou, SKLEARN)
    if right.ndim == 1:
        said, weights = own["outputs"] > 0.5, own.get("weights")
        options = {"sample_weight": weights, "zero_division": 0}
        expect(name, "iou", sk.jaccard_score(right, said, **options), SKLEARN)
        expect(name, "f_beta_2", sk.fbeta_score(right, said, beta=2, **options), SKLEARN)


def by_element(own):
    """With a weight an element."""
    if "weights" not in own or own["outputs"].ndim == 1:
        return own
    return dict(own, weights=np.repeat(own["weights"][:, None], own["outputs"].shape[1], axis=1))


def expect_curves(name, own, after, chances, right, exact):
    """Areas, each class against the others. What Keras has at 200 thresholds, scikit-learn has of
    all outputs: the same where no two of them are in one bin."""
    weights = own.get("weights")
    for average in ["macro", "micro", "weighted"]:
        before = "" if average == "macro" else f"{average}_"
        options = {"average": average, "sample_weight": weights}
        area = sk.roc_auc_score(right, chances, **options)
        expect(name, f"{before}auc of 100001 thresholds{after}", area, exact)
        precision = sk.average_precision_score(right, chances, **options)
        expect(name, f"{before}average_precision of 100000 bins{after}", precision, exact)
    for metric, curve in [("auc", "ROC"), ("pr_auc", "PR")]:
        area = keras.metrics.AUC(curve=curve, multi_label=True, num_labels=right.shape[1])
        got = of_keras(area, right, dict(own, outputs=chances))
        expect(name, metric + after, got, KERAS)
    expect_averaged_pr(name, own, after, chances, right)


def expect_averaged_pr(name, own, after, chances, right):
    """Of Keras's areas of each class, and of all answers in a row."""
    weights = own.get("weights", np.ones(len(right)))
    areas, counts = [], []
    for c in range(right.shape[1]):
        column = {"outputs": chances[:, c], "weights": weights}
        areas.append(of_keras(keras.metrics.AUC(curve="PR"), right[:, c], column))
        counts.append((weights * right[:, c]).sum())
    expect(name, "weighted_pr_auc" + after, np.average(areas, weights=counts), KERAS)
    row = {"outputs": chances.reshape(-1), "weights": np.repeat(weights, right.shape[1])}
    area = of_keras(keras.metrics.AUC(curve="PR"), right.reshape(-1), row)
    expect(name, "micro_pr_auc" + after, area, KERAS)


def softmax_of(logits):
    powers = np.exp(logits.astype(float))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


def expect_classes_and_answers():
    for name in ["classes", "weighted classes", "ties"]:
        expect_overlaps(name, samples[name])
    for name in ["binary", "weighted binary", "tenths", "all right", "several answers"]:
        expect_answers(name, samples[name])
    for name in ["classes", "weighted classes"]:
        own = samples[name]
        one_hot = np.eye(own["outputs"].shape[1])[own["labels"]]
        chances = softmax_of(own["outputs"])
        expect_curves(name, own, " of logits", chances, one_hot, SKLEARN)
        expect_curves(f"chances of {name}", own, "", chances, one_hot, SKLEARN)
    own = samples["several answers"]
    expect_curves("several answers", own, " of many", own["outputs"], own["targets"], SKLEARN)
    logits = np.log(own["outputs"] / (1 - own["outputs"]))
    own = add_samples("several logits", logits, None, own["targets"], own["weights"])
    chances = 1 / (1 + np.exp(-own["outputs"].astype(float)))
    expect_curves("several logits", own, " of many logits", chances, own["targets"], SKLEARN)


def main():
    labels = random.integers(0, 5, 40)
    outputs = random.normal(size=(40, 5)) + np.eye(5)[labels]
    for name, weights in [("classes", None), ("weighted classes", random.uniform(0, 3, 40))]:
        own = add_samples(name, outputs, labels, weights=weights)
        expect_classes(name, own)
        expect_places(name, own)
        expect_perplexity(name, own)
    ties = random.integers(0, 3, (40, 4))
    ties[:, 3] = -1  # a class that does not occur
    expect_classes("ties", add_samples("ties", ties, random.integers(0, 3, 40)))

    answers = random.integers(0, 2, 60)
    scores = np.clip(random.beta(2, 2, 60) + 0.2 * answers - 0.1, 0, 1)
    weights = random.uniform(0, 3, 60)
    expect_binary("binary", add_samples("binary", scores, targets=answers))
    expect_binary("weighted binary", add_samples("weighted binary", scores, answers, None, weights))
    tenths = random.integers(0, 11, 60) / 10
    expect_binary("tenths", add_samples("tenths", tenths, answers))
    expect_binary("all right", add_samples("all right", tenths[:9], np.ones(9, int)))
    expect_binary("all wrong", add_samples("all wrong", tenths[:9], np.zeros(9, int)))
    logits = random.normal(size=60) + answers
    expect_logits("logits", add_samples("logits", logits, targets=answers))

    own = add_samples("one-hot", outputs, targets=np.eye(5)[labels])
    one_hot = keras.metrics.CategoricalAccuracy()
    expect("one-hot", "categorical_accuracy", of_keras(one_hot, own["targets"], own), KERAS)
    several = random.uniform(size=(20, 3))
    wanted = random.integers(0, 2, (20, 3))
    own = add_samples("several answers", several, None, wanted, weights[:20])
    binary = keras.metrics.BinaryAccuracy()
    expect("several answers", "binary_accuracy", of_keras(binary, own["targets"], own), KERAS)

    line = random.normal(size=30) * 2
    expect_regression("line", add_samples("line", line + random.normal(size=30), targets=line))
    plane = random.normal(size=(30, 3)) + [100, 0, -5]
    guesses = plane + random.normal(size=(30, 3)) * [0.1, 1, 3]
    expect_regression("plane", add_samples("plane", guesses, None, plane, weights[:30]))
    level = np.full(10, 0.1)
    expect_regression("level", add_samples("level", level + random.normal(size=10), targets=level))

    expect_classes_and_answers()

    sets = {
        name: {
            "width": int(np.prod(own["outputs"].shape[1:])),
            **{key: value.reshape(-1).tolist() for key, value in own.items()},
        }
        for name, own in samples.items()
    }
    path = pathlib.Path(__file__).with_name("metrics.json")
    rows = ",\n".join(json.dumps(value) for value in values)
    sets = ",\n".join(f"{json.dumps(name)}: {json.dumps(own)}" for name, own in sets.items())
    path.write_text(f'{{"samples": {{\n{sets}}},\n"values": [\n{rows}]}}\n')


if __name__ == "__main__":
    main()
