/// The sources behind the datasets of records, for whoever reads single rows.
///
/// Thread rule: free functions; sources may be read by any thread.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/source.h"
#include "tutti/data/sources/mds.h"
#include "tutti/data/sources/parquet.h"
#include "tutti/data/sources/tfrecord.h"
#include "tutti/data/sources/webdataset.h"

namespace tutti::data::detail {

/// How files of TensorFlow's records end, where they are not numbered.
inline constexpr std::array<std::string_view, 6> kTfrecordEndings = {
    ".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz", ".tfrecords.gz", ".tfrec.gz"};

std::shared_ptr<const Source> tfrecord_source(const Paths& paths, TfrecordOptions options);
std::shared_ptr<const Source> webdataset_source(const Paths& paths,
                                                const WebdatasetOptions& options);
std::shared_ptr<const Source> mds_source(const std::filesystem::path& folder, MdsOptions options);
/// Of its columns, as index.json writes them.
std::vector<std::string> mds_encodings(const std::filesystem::path& folder, const Files& files);
std::shared_ptr<const Source> parquet_source(const Paths& paths, ParquetOptions options);

}  // namespace tutti::data::detail
