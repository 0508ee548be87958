"""Reads with TensorBoard itself what test_tensorboard.cpp wrote, and compares.

read_events.py FOLDER: FOLDER holds the runs "first" and "second" of TensorBoardPython.
"""

import io
import math
import sys

import numpy
from PIL import Image
from tensorboard import context
from tensorboard.backend.event_processing import data_provider
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.backend.event_processing import plugin_event_multiplexer
from tensorboard.data import provider
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams import backend_context
from tensorboard.plugins.hparams import get_experiment
from tensorboard.plugins.hparams import list_session_groups
from tensorboard.plugins.text import text_plugin

HISTOGRAM = numpy.arange(101) / 100.0
PIXELS = {
    channels: ((numpy.arange(3 * 5 * channels) * 7) % 256)
    .astype(numpy.uint8)
    .reshape(3, 5, channels)
    for channels in (1, 2, 3, 4)
}
NOTE = "# Größe\n\n- *a*\n- b\n"


def same(got, expected):
    if got != expected:
        raise AssertionError(f"got {got!r}, expected {expected!r}")


def close(got, expected):
    numpy.testing.assert_allclose(got, expected, rtol=1e-6)


def check_accumulator(folder):
    """What programs read that evaluate runs."""
    run = event_accumulator.EventAccumulator(folder + "/first").Reload()
    same(run.FirstEventTimestamp(), 1_600_000_000.25)
    scalars = run.Scalars("loss/train")
    same([event.step for event in scalars], [-1, 0, 1, 2])
    same([event.wall_time for event in scalars], [1_600_000_000.25] * 4)
    same([event.value for event in scalars[:3]], [0.5, -math.inf, math.inf])
    same(math.isnan(scalars[3].value), True)

    same([event.step for event in run.Scalars("far")], [5_000_000_000])

    values = run.Histograms("weights")[0].histogram_value
    same((values.min, values.max, values.num), (0, 1, 101))
    close((values.sum, values.sum_squares), (HISTOGRAM.sum(), (HISTOGRAM**2).sum()))
    counts, edges = numpy.histogram(HISTOGRAM, bins=30)
    close(values.bucket_limit, edges[1:])
    same((len(values.bucket), sum(values.bucket)), (30, 101))
    # A value on an edge may be rounded into the bucket beside it.
    same(numpy.abs(numpy.cumsum(values.bucket) - numpy.cumsum(counts)).max() <= 1, True)

    image = run.Images("image/3")[0]
    same((image.height, image.width), (3, 5))

    graph = run.Graph()
    same([(node.name, node.op, list(node.input)) for node in graph.node],
         [("x", "input", []), ("block/dense", "linear", ["x"])])
    shapes = graph.node[1].attr["_output_shapes"].list.shape
    same([[dim.size for dim in shape.dim] for shape in shapes], [[-1, 3]])
    same(graph.node[1].attr["computes"].s, b"linear(3)")


class Reader:
    """TensorBoard's own way from files to its tabs."""

    def __init__(self, folder):
        multiplexer = plugin_event_multiplexer.EventMultiplexer(
            tensor_size_guidance={"histograms": 0, "text": 0, "images": 0, "scalars": 0}
        )
        multiplexer.AddRunsFromDirectory(folder)
        multiplexer.Reload()
        self.data = data_provider.MultiplexerDataProvider(multiplexer, folder)
        self.request = context.RequestContext()
        self.asked = {"experiment_id": "", "downsample": 100}

    def all_of(self, read, plugin, tag):
        wanted = provider.RunTagFilter(runs=["first"], tags=[tag])
        found = read(self.request, plugin_name=plugin, run_tag_filter=wanted, **self.asked)
        return found["first"][tag]

    def tensors(self, plugin, tag):
        return self.all_of(self.data.read_tensors, plugin, tag)

    def check_scalars(self):
        scalars = self.all_of(self.data.read_scalars, "scalars", "loss/train")
        same([datum.value for datum in scalars[:3]], [0.5, -math.inf, math.inf])

    def check_histograms(self):
        drawn = self.tensors("histograms", "weights")[0].numpy
        same(drawn.shape, (30, 3))
        close(drawn[:, 0], numpy.arange(30) / 30)
        close(drawn[:, 1], numpy.arange(1, 31) / 30)
        same(drawn[:, 2].sum(), 101)
        same(self.tensors("histograms", "constant")[0].numpy.tolist(), [[2.5, 2.5, 3]])
        same(self.tensors("histograms", "empty")[0].numpy.shape, (0, 3))

    def check_text(self):
        datum = self.tensors("text", "note")[0]
        same((datum.step, datum.numpy.tolist()), (3, NOTE.encode()))
        html = text_plugin.process_event(datum.wall_time, datum.step, datum.numpy, True)["text"]
        same("<h1>Größe</h1>" in html and "<li><em>a</em></li>" in html, True)

    def check_images(self):
        for channels, pixels in PIXELS.items():
            read = self.data.read_blob_sequences
            blobs = self.all_of(read, "images", f"image/{channels}")[0].values
            width, height, png = (
                self.data.read_blob(self.request, blob_key=blob.blob_key) for blob in blobs
            )
            same((width, height), (b"5", b"3"))
            image = Image.open(io.BytesIO(png))
            same(image.mode, {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels])
            same(numpy.asarray(image).reshape(pixels.shape).tolist(), pixels.tolist())

    def check_hparams(self):
        backend = backend_context.Context(base_plugin.TBContext(data_provider=self.data))
        experiment = get_experiment.Handler(
            self.request, backend, "", api_pb2.GetExperimentRequest()
        ).run()
        same(
            {info.name: info.type for info in experiment.hparam_infos},
            {
                "rate": api_pb2.DATA_TYPE_FLOAT64,
                "limit": api_pb2.DATA_TYPE_FLOAT64,
                "rule": api_pb2.DATA_TYPE_STRING,
                "fused": api_pb2.DATA_TYPE_BOOL,
            },
        )
        same([info.name.tag for info in experiment.metric_infos], ["loss/train", "loss/test"])
        groups = list_session_groups.Handler(
            self.request,
            backend,
            "",
            api_pb2.ListSessionGroupsRequest(
                start_index=0, slice_size=10, allowed_statuses=[api_pb2.STATUS_UNKNOWN]
            ),
        ).run()
        same(groups.total_size, 2)
        rates = {}
        for group in groups.session_groups:
            (session,) = group.sessions
            rates[session.name] = group.hparams["rate"].number_value
            same(session.start_time_secs, 1_600_000_000.25)
            same("limit" in group.hparams, False)  # infinite: shown as unset
            same(group.hparams["rule"].string_value, "adam")
            same(group.hparams["fused"].bool_value, session.name == "second")
            same(
                {metric.name.tag: metric.value for metric in session.metric_values}["loss/test"],
                0.25,
            )
        same(rates, {"first": 0.001, "second": 0.01})


def main(folder):
    check_accumulator(folder)
    reader = Reader(folder)
    reader.check_scalars()
    reader.check_histograms()
    reader.check_text()
    reader.check_images()
    reader.check_hparams()


main(*sys.argv[1:])
