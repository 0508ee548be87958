// The formats' own libraries read what is written here: those of .venv, where they are.
#include <string>

#include "tutti/data/sources/mds.h"
#include "tutti/data/sources/tfrecord.h"
#include "tutti/data/sources/webdataset.h"

#include "tests/support/expect.h"
#include "tests/support/python.h"
#include "tests/unit/data_sources/record_samples.h"

namespace tutti::data {
namespace {

constexpr int64_t kWritten = 40;

// written_sample() once more, in Python; `samples` is what the library has read.
std::string compare_with(const std::string& reading, const TempFolder& folder) {
  return fmt::format(R"(
import glob, pathlib, sys
import numpy as np
folder = pathlib.Path({:?})
{}
assert len(samples) == {}, len(samples)
for i, (x, ids, image, y) in enumerate(samples):
    assert np.asarray(x).tolist() == (np.arange(6) / 4 + i).reshape(2, 3).tolist(), (i, x)
    assert np.asarray(ids).tolist() == [k * 1000 for k in range(i % 4 + 1)], (i, ids)
    assert image == bytes([0xff, 0xd8, i]) * (i + 1), (i, image)
    assert y == i * i - 3, (i, y)
)",
                     folder.path().string(), reading, kWritten);
}

TEST(RecordPeers, TensorflowReadsOurTfrecord) {
  const Python python("tensorflow");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  const TempFolder folder;
  write_tfrecord(folder.path(), written_columns(), written_samples(kWritten),
                 {.shard_bytes = 2000});
  python.run(compare_with(R"(
import tensorflow as tf
kinds = {"x": tf.io.FixedLenFeature([2, 3], tf.float32), "ids": tf.io.VarLenFeature(tf.int64),
         "image": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([], tf.int64)}
samples = []
for record in tf.data.TFRecordDataset(sorted(glob.glob(str(folder / "*.tfrecord")))):
    f = tf.io.parse_single_example(record, kinds)
    samples.append((f["x"].numpy(), f["ids"].values.numpy(), f["image"].numpy(), f["y"].numpy()))
)",
                          folder));
}

TEST(RecordPeers, WebdatasetReadsOurTars) {
  const Python python("webdataset");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  const TempFolder folder;
  write_webdataset(folder.path(), written_columns(), written_samples(kWritten),
                   {.shard_bytes = 20'000});
  python.run(compare_with(R"(
import webdataset as wds
tars = sorted(glob.glob(str(folder / "*.tar")))
dataset = wds.WebDataset(tars, shardshuffle=False).decode()
samples = [(s["x.npy"], s["ids.npy"], s["image.bin"], s["y.cls"]) for s in dataset]
)",
                          folder));
}

TEST(RecordPeers, StreamingReadsOurMds) {
  const Python python("streaming");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  const TempFolder folder;
  write_mds(folder.path(), written_columns(), written_samples(kWritten), {.shard_bytes = 3000});
  python.run(compare_with(R"(
from streaming import StreamingDataset
dataset = StreamingDataset(local=str(folder), shuffle=False, batch_size=1, validate_hash="sha256")
each = (dataset[i] for i in range(len(dataset)))
samples = [(s["x"], s["ids"], s["image"], s["y"]) for s in each]
)",
                          folder));
}

}  // namespace
}  // namespace tutti::data
