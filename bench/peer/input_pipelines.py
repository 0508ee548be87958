"""The peers of bench/input_pipelines.py: what their input pipelines load a second.

  input_pipelines.py photos  dataloader:torchvision:2 --data FOLDER
  input_pipelines.py doodles tf_data:batches --data FOLDER
  input_pipelines.py --list

Photos, 2,000 of them unless --samples says otherwise: decoded, a random crop of 224, flipped at random,
normalised, batches of 64 as float32. Doodles: 28 x 28 out of memory as float32, shuffled, batches of 128.
A setting is peer:way[:workers]; the clock begins after a first pass. Prints a line of JSON: samples a second, and
microseconds of a core a sample, of all processes of the peer together.
"""
import argparse
import io
import json
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PHOTO_BATCH, DOODLE_BATCH = 64, 128
CORES = len(os.sched_getaffinity(0))


def photo_files(folder, samples):
    files = sorted(str(file) for file in pathlib.Path(folder).rglob("*.jpg"))
    return [files[i % len(files)] for i in range(samples)]


def random_crop(height, width, random, tries=10):
    """Top, left, height, width: the area 0.08 to 1 of the photo's, the ratio 3/4 to 4/3."""
    import math
    for _ in range(tries):
        area = height * width * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < h <= height and 0 < w <= width:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def cropped_by_pillow(file):
    """uint8 [224, 224, 3]; Pillow reads the crop while it resizes."""
    import random
    import numpy
    import PIL.Image
    photo = PIL.Image.open(file).convert("RGB")
    top, left, height, width = random_crop(photo.height, photo.width, random)
    photo = photo.resize((SIDE, SIDE), PIL.Image.Resampling.BILINEAR,
                         box=(left, top, left + width, top + height))
    pixels = numpy.asarray(photo)
    return pixels[:, ::-1] if random.random() < 0.5 else pixels


def cropped_by_opencv(file):
    import random
    import cv2
    import numpy
    photo = cv2.imdecode(numpy.fromfile(file, numpy.uint8), cv2.IMREAD_COLOR_RGB)
    top, left, height, width = random_crop(*photo.shape[:2], random)
    pixels = cv2.resize(photo[top:top + height, left:left + width], (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    return pixels[:, ::-1] if random.random() < 0.5 else pixels


CROPPED = {"pillow": cropped_by_pillow, "opencv": cropped_by_opencv}


def normalized(pixels):
    """uint8 [..., 3] to float32."""
    import numpy
    scale = numpy.float32(1 / 255) / numpy.array(STD, numpy.float32)
    return pixels * scale - numpy.array(MEAN, numpy.float32) / numpy.array(STD, numpy.float32)


class TorchPhotos:
    """A dataset for DataLoader, whose workers import what they need."""

    def __init__(self, files, way):
        import torch
        from torchvision.transforms import v2
        self.files, self.way = files, way
        steps = [v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()]
        if way == "pillow":
            steps.append(v2.ToImage())
        self.transform = v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        import PIL.Image
        import torchvision.io as io_of_torchvision
        if self.way == "pillow":
            return self.transform(PIL.Image.open(self.files[i]).convert("RGB"))
        return self.transform(io_of_torchvision.decode_jpeg(io_of_torchvision.read_file(self.files[i])))


def dataloader_photos(files, way, workers):
    import torch
    torch.set_num_threads(1)  # as a worker has: two are slower beside neighbours
    loader = torch.utils.data.DataLoader(
        TorchPhotos(files, way), batch_size=PHOTO_BATCH, shuffle=True, num_workers=workers,
        persistent_workers=workers > 0)
    return lambda: loader


def tf_data_photos(files, way, workers):
    import tensorflow as tf

    def crop(file):
        content = tf.io.read_file(file)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(content), tf.zeros([0, 0, 4]), min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0), max_attempts=10,
            use_image_if_no_bounding_boxes=True)
        window = tf.concat([begin[:2], size[:2]], 0)
        photo = tf.io.decode_and_crop_jpeg(content, window, channels=3)
        photo = tf.image.random_flip_left_right(tf.image.resize(photo, [SIDE, SIDE]))
        return photo if way == "batches" else normal(photo)

    def normal(photo):
        return (photo / 255 - tf.constant(MEAN)) / tf.constant(STD)

    calls = workers or tf.data.AUTOTUNE
    samples = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).map(crop, calls, deterministic=False)
    samples = samples.batch(PHOTO_BATCH, num_parallel_calls=calls)
    if way == "batches":
        samples = samples.map(normal, calls)
    samples = samples.prefetch(tf.data.AUTOTUNE)
    return lambda: samples


def grain_photos(files, way, workers):
    import grain
    source = grain.MapDataset.source(files).shuffle(seed=1).map(CROPPED[way])
    samples = source.map(normalized).to_iter_dataset(grain.ReadOptions(num_threads=CORES if workers == 0 else 1,
                                                                       prefetch_buffer_size=PHOTO_BATCH))
    samples = samples.batch(PHOTO_BATCH)
    if workers:
        samples = samples.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    return lambda: samples


def frames_by_ffmpeg(file):
    """SPDL's own decoder; the crop is drawn for the size that the header has."""
    import random
    import spdl.io
    packets = spdl.io.demux_image(file)
    top, left, height, width = random_crop(packets.height, packets.width, random)
    flip = ",hflip" if random.random() < 0.5 else ""
    crop = f"crop={width}:{height}:{left}:{top}:exact=1,scale={SIDE}:{SIDE}:flags=bilinear{flip},format=pix_fmts=rgb24"
    return spdl.io.decode_packets(packets, filter_desc=crop)


def cropped_by_ffmpeg(file):
    import spdl.io
    return spdl.io.to_numpy(spdl.io.convert_frames(frames_by_ffmpeg(file)))


def batch_of_frames(frames):
    """Their pixels are copied once, into the batch."""
    import spdl.io
    return normalized(spdl.io.to_numpy(spdl.io.convert_frames(frames)))


def spdl_photos(files, way, workers):
    import random
    import numpy
    from spdl.pipeline import PipelineBuilder
    by_frames = way == "frames"
    cropped = frames_by_ffmpeg if by_frames else CROPPED.get(way, cropped_by_ffmpeg)
    to_batch = batch_of_frames if by_frames else lambda rows: normalized(numpy.stack(rows))

    def passes():
        pipeline = (PipelineBuilder().add_source(random.sample(files, len(files))).pipe(cropped, concurrency=workers)
                    .aggregate(PHOTO_BATCH).pipe(to_batch, concurrency=2)
                    .add_sink(4).build(num_threads=workers + 1))
        with pipeline.auto_stop():
            yield from pipeline
    return passes


def doodles_in(folder):
    import gzip
    import numpy
    xs, ys = [], []
    files = sorted(file for file in pathlib.Path(folder).iterdir() if file.name.endswith((".npy", ".npy.gz")))
    for label, file in enumerate(files):
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        rows = numpy.load(io.BytesIO(content))
        xs.append(rows[:len(rows) - len(rows) // 6])
        ys.append(numpy.full(len(xs[-1]), label, numpy.int64))
    return numpy.concatenate(xs).reshape(-1, 1, 28, 28).astype(numpy.float32) / 255, numpy.concatenate(ys)


def dataloader_doodles(folder, way, workers):
    import torch
    from torch.utils import data
    torch.set_num_threads(1)  # as above
    samples = data.TensorDataset(*map(torch.from_numpy, doodles_in(folder)))
    if way == "samples":
        loader = data.DataLoader(samples, batch_size=DOODLE_BATCH, shuffle=True, num_workers=workers,
                                 persistent_workers=workers > 0)
    else:  # one index operation a batch
        batches = data.BatchSampler(data.RandomSampler(samples), DOODLE_BATCH, drop_last=False)
        loader = data.DataLoader(samples, sampler=batches, batch_size=None, num_workers=workers,
                                 persistent_workers=workers > 0)
    return lambda: loader


def tf_data_doodles(folder, way, _):
    import tensorflow as tf
    x, y = doodles_in(folder)
    if way == "samples":
        samples = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(DOODLE_BATCH)
    else:
        with tf.device("cpu"):
            x, y = tf.constant(x), tf.constant(y)
        samples = tf.data.Dataset.range(len(x)).shuffle(len(x)).batch(DOODLE_BATCH)
        samples = samples.map(lambda rows: (tf.gather(x, rows), tf.gather(y, rows)), tf.data.AUTOTUNE)
    samples = samples.prefetch(tf.data.AUTOTUNE)
    return lambda: samples


def grain_doodles(folder, way, _):
    import grain
    x, y = doodles_in(folder)
    samples = grain.MapDataset.range(len(x)).shuffle(seed=1)
    if way == "samples":
        samples = samples.map(lambda i: (x[i], y[i])).batch(DOODLE_BATCH)
    else:
        samples = samples.batch(DOODLE_BATCH).map(lambda rows: (x[rows], y[rows]))
    samples = samples.to_iter_dataset(grain.ReadOptions(num_threads=CORES, prefetch_buffer_size=16))
    return lambda: samples


PEERS = {"photos": {"dataloader": dataloader_photos, "tf_data": tf_data_photos, "grain": grain_photos,
                    "spdl": spdl_photos},
         "doodles": {"dataloader": dataloader_doodles, "tf_data": tf_data_doodles, "grain": grain_doodles}}
SETTINGS = {
    "photos": [f"dataloader:{way}:{workers}" for way in ("torchvision", "pillow") for workers in range(CORES + 1)]
    + [f"tf_data:{way}:{workers}" for way in ("photos", "batches") for workers in (0, CORES)]
    + [f"grain:{way}:{workers}" for way in ("pillow", "opencv") for workers in (0, CORES)]
    + [f"spdl:{way}:{workers}" for way in ("frames", "ffmpeg", "pillow", "opencv")
       for workers in (CORES, CORES + 1, 2 * CORES)],
    "doodles": [f"dataloader:{way}:{workers}" for way in ("samples", "batches") for workers in range(CORES + 1)]
    + ["tf_data:samples", "tf_data:batches", "grain:samples", "grain:batches"]}


def core_seconds():
    """Of this process and those it has started."""
    import psutil
    own = psutil.Process()
    times = [process.cpu_times() for process in [own, *own.children(recursive=True)]]
    return sum(one.user + one.system + one.children_user + one.children_system for one in times)


def measured(batches, times):
    """What passes cost, after one that warms up."""
    def passed():
        return sum(len(batch[0]) if isinstance(batch, (tuple, list)) else len(batch) for batch in batches())
    passed()
    begin, cores = time.perf_counter(), core_seconds()
    count = sum(passed() for _ in range(times))
    return {"per_second": count / (time.perf_counter() - begin), "core_us": 1e6 * (core_seconds() - cores) / count}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", choices=list(PEERS))
    parser.add_argument("setting", nargs="?", help="peer:way[:workers]")
    parser.add_argument("--data", help="a folder of photos, or of doodles")
    parser.add_argument("--samples", type=int, default=2000, help="photos of a pass")
    parser.add_argument("--list", action="store_true", help="the settings, as JSON")
    arguments = parser.parse_args()
    if arguments.list:
        print(json.dumps(SETTINGS))
        return
    if arguments.setting not in SETTINGS.get(arguments.case, []) or not arguments.data:
        parser.error("a case, one of its settings (--list has them) and --data are needed")
    peer, way, workers = [*arguments.setting.split(":"), "0"][:3]
    if peer in ("spdl", "grain"):
        import cv2
        cv2.setNumThreads(1)  # they bring threads of their own
    photos = arguments.case == "photos"
    data = photo_files(arguments.data, arguments.samples) if photos else arguments.data
    batches = PEERS[arguments.case][peer](data, way, int(workers))
    print(json.dumps({"setting": arguments.setting, **measured(batches, 1 if photos else 5)}))


if __name__ == "__main__":
    main()
