#include "tutti/base/error.h"

#include <cstring>

#include "tutti/base/dtype.h"
#include "tutti/base/printable.h"

namespace tutti {

void check_failed(const char* file, int line, const char* condition, const std::string& values) {
  throw Error(fmt::format("internal check failed at {}:{}: {} ({}); please report this", file, line,
                          condition, values));
}

std::string errno_words(int error_number) {
  char words[256];
  return fmt::format("{} (errno {})", strerror_r(error_number, words, sizeof words), error_number);
}

std::string plain_words(std::string_view what) {
  std::string_view words = what.substr(0, what.find("\nException raised from"));
  while (!words.empty() && words.back() == '\n') words.remove_suffix(1);
  return printable(words);
}

std::string_view name_of(DType dtype) noexcept {
  constexpr std::string_view kNames[] = {"bool",     "uint8",   "int8",   "uint16", "int16",
                                         "uint32",   "int32",   "uint64", "int64",  "float16",
                                         "bfloat16", "float32", "float64"};
  return kNames[static_cast<size_t>(dtype)];
}

}  // namespace tutti
