/// Files of data sources, as functions of bytes, for net_parsers.cpp.
#pragma once

#include <string_view>

namespace tutti::test {

/// A table, as it is written in several ways, and read again through what was learnt of it.
void csv_file(std::string_view bytes);
/// Images without labels, and labels.
void idx_file(std::string_view bytes);
/// Every line, with the columns that the first one has.
void jsonl_file(std::string_view bytes);
/// Drawings, each by itself: as ndjson, Kaggle's CSV and Google's binary.
void stroke_lines(std::string_view bytes);
void stroke_rows(std::string_view bytes);
void stroke_records(std::string_view bytes);

}  // namespace tutti::test
