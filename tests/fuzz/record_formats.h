/// Records as others may have written them, as functions of bytes, for net_parsers.cpp.
#pragma once

#include <string_view>

namespace tutti::test {

/// A tf.train.Example of features of every kind.
void record_example(std::string_view bytes);
/// A file of records, indexed; and the index file as it is.
void record_tfrecord(std::string_view bytes);
void record_index_file(std::string_view bytes);
/// A tar as a whole.
void record_tar(std::string_view bytes);
/// index.json of MDS; and a shard's table and samples.
void record_mds_index(std::string_view bytes);
void record_mds_shard(std::string_view bytes);
/// A shard of MDS that is packed, and what it says it becomes.
void record_mds_packed(std::string_view bytes);
/// A sample as caches keep it.
void record_kept_sample(std::string_view bytes);
/// Headers of arrays.
void record_npy_header(std::string_view bytes);
void record_safetensors(std::string_view bytes);

}  // namespace tutti::test
