#!/usr/bin/env python3
"""Writes the small files beside it with the formats' own libraries; README.md names their versions.

    python make_records.py FOLDER

Sample i of every file: label i * i - 3, and "ids", the numbers 0 ... i % 4 times 1000; x, float32
[2, 3], i + place / 4; text "sample i" in the letters of Greek; image, the bytes 0xff 0xd8 i ... that
stand for a photo.
"""

import pathlib
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import streaming
import tensorflow as tf
import webdataset as wds

COUNT = 23
IN_TAR = 9  # each takes 4 KB


def sample(i):
    return {
        "label": i * i - 3,
        "ids": np.arange(i % 4, dtype=np.int64) * 1000,
        "x": (np.arange(6, dtype=np.float32) / 4 + i).reshape(2, 3),
        "text": f"δείγμα {i}",
        "image": bytes([0xFF, 0xD8, i]) * (i + 1),
    }


def example(i):
    s = sample(i)

    def ints(values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def one(value):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    features = {
        "label": ints([s["label"]]),
        "ids": ints(s["ids"]),
        "x": tf.train.Feature(float_list=tf.train.FloatList(value=s["x"].ravel())),
        "text": one(s["text"].encode()),
        "image": one(s["image"]),
    }
    if i % 5 != 0:
        features["sometimes"] = ints([i])
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write_tfrecord(folder):
    for name, compression in (("tf.tfrecord", ""), ("tf.tfrecord.gz", "GZIP")):
        with tf.io.TFRecordWriter(str(folder / name), compression) as writer:
            for i in range(COUNT):
                writer.write(example(i))


def write_webdataset(folder):
    with wds.TarWriter(str(folder / "wds.tar"), mtime=0) as writer:
        for i in range(IN_TAR):
            s = sample(i)
            writer.write({
                "__key__": f"photos/{i:04d}" if i % 7 else f"photos/{'long/' * 30}{i:04d}",
                "jpg" if i % 2 else "PNG": s["image"],
                "cls": s["label"],
                "x.npy": s["x"],
                "json": {"text": s["text"]},
            })


def write_mds(folder):
    columns = {
        "label": "int", "small": "int16", "x": "ndarray:float32:2,3", "ids": "ndarray:int64",
        "any": "ndarray", "text": "str", "image": "bytes", "facts": "json", "score": "float32",
        "half": "float16", "digits": "str_int",
    }
    for name, compression, hashes in (("mds", None, ["sha1", "sha256"]), ("mds-zstd", "zstd:3", ["sha256"])):
        out = folder / name
        with streaming.MDSWriter(out=str(out), columns=columns, compression=compression, hashes=hashes,
                                 size_limit=2000) as writer:
            for i in range(COUNT):
                s = sample(i)
                writer.write({
                    "label": s["label"], "small": np.int16(-i), "x": s["x"],
                    "ids": np.arange(i % 4 + 1, dtype=np.int64) * 1000,
                    "any": np.full((i % 3 + 1, 300 if i == 5 else 2), i, np.uint16), "text": s["text"],
                    "image": s["image"], "facts": {"i": i}, "score": np.float32(i / 8),
                    "half": np.float16(i / 2), "digits": i * 10**15,
                })


def write_parquet(folder):
    rows = [sample(i) for i in range(COUNT)]
    table = pa.table({
        "label": pa.array([r["label"] for r in rows], pa.int64()),
        "score": pa.array([i / 8 for i in range(COUNT)], pa.float32()),
        "even": pa.array([i % 2 == 0 for i in range(COUNT)], pa.bool_()),
        "ids": pa.array([r["ids"].tolist() for r in rows], pa.list_(pa.int64())),
        "x": pa.array([r["x"].ravel().tolist() for r in rows], pa.list_(pa.float32(), 6)),
        "text": pa.array([r["text"] for r in rows], pa.string()),
        "image": pa.array([r["image"] for r in rows], pa.binary()),
        "gap": pa.array([None if i == 7 else i for i in range(COUNT)], pa.int32()),
    })
    pq.write_table(table, folder / "table.parquet", row_group_size=8, compression="zstd")


if __name__ == "__main__":
    here = pathlib.Path(sys.argv[1])
    here.mkdir(parents=True, exist_ok=True)
    for write in (write_tfrecord, write_webdataset, write_mds, write_parquet):
        write(here)
