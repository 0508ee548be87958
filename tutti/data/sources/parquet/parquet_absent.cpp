// Compiled instead of parquet.cpp where TUTTI_WITH_PARQUET is off.
#include "tutti/base/error.h"
#include "tutti/data/sources/detail/record_sources.h"

namespace tutti::data {

bool parquet_available() noexcept { return false; }

namespace detail {

// NOLINTNEXTLINE(performance-unnecessary-value-param): moved from where it is there
std::shared_ptr<const Source> parquet_source(const Paths&, ParquetOptions) {
  throw UsageError(
      "parquet: this build does not read Parquet files (TUTTI_WITH_PARQUET=OFF)\n"
      "  build tutti with -DTUTTI_WITH_PARQUET=ON and Arrow's C++ library or pip's pyarrow, or "
      "convert the files: docs/formats/parquet.md");
}

}  // namespace detail

Dataset parquet(const Paths& paths, ParquetOptions options) {
  return Dataset(detail::parquet_source(paths, std::move(options)));
}

}  // namespace tutti::data
