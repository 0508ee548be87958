// Compiled instead of tutti/extras/mds where TUTTI_WITH_EXTRAS is off.
#include "tutti/base/error.h"
#include "tutti/data/sources/detail/record_sources.h"

namespace tutti::data {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& folder) {
  throw UsageError(folder.string() +
                   ": this build neither reads nor writes MDS (TUTTI_WITH_EXTRAS=OFF); convert it "
                   "to tfrecord or webdataset by one that does");
}

}  // namespace

namespace detail {

std::shared_ptr<const Source> mds_source(const std::filesystem::path& folder,
                                         MdsOptions /*options*/) {
  refuse(folder);
}

std::vector<std::string> mds_encodings(const std::filesystem::path& folder,
                                       const Files& /*files*/) {
  refuse(folder);
}

}  // namespace detail

Dataset mds(const std::filesystem::path& folder, MdsOptions /*options*/) { refuse(folder); }

Written write_mds(const std::filesystem::path& folder, const std::vector<Column>& /*columns*/,
                  const NextSample& /*next*/, const WriteOptions& /*options*/) {
  refuse(folder);
}

std::vector<Finding> verify_mds(const std::filesystem::path& folder,
                                const VerifyOptions& /*options*/) {
  refuse(folder);
}

}  // namespace tutti::data
