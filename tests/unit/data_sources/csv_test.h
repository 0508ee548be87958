/// Tables of text, read as csv() reads files.
#pragma once

#include <filesystem>
#include <string>

#include "tutti/data/sources/csv.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti::data {

class Csv : public testing::Test {
 protected:
  std::filesystem::path put(const std::string& bytes, const std::string& name = "t.csv") {
    put_bytes(folder_ / name, bytes);
    return folder_ / name;
  }
  Dataset open(const std::string& bytes, const CsvOptions& options = {}) {
    return csv(put(bytes), options);
  }
  std::string refusal(const std::string& bytes, const CsvOptions& options = {}) {
    return message_of<DataError>([&] { open(bytes, options); });
  }
  std::string misuse(const std::string& bytes, const CsvOptions& options) {
    return message_of<UsageError>([&] { open(bytes, options); });
  }
  TempFolder folder_;
  int files_ = 0;
};

}  // namespace tutti::data
