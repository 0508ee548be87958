#include "tutti/data/sources/text.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/sha256.h"
#include "tutti/base/utf8.h"
#include "tutti/data/detail/source_in_memory.h"
#include "tutti/data/sources/detail/source_file.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

std::string place_in(const std::string& where, std::string_view text, size_t offset) {
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<int64_t>(offset), '\n');
  return fmt::format("{}, byte {} (line {})", where, offset, line);
}

std::string character_words(std::string_view bytes, char32_t value) {
  return value < 0x20 || value == 0x7F
             ? fmt::format("U+{:04X}", static_cast<uint32_t>(value))
             : fmt::format("\"{}\" (U+{:04X})", bytes, static_cast<uint32_t>(value));
}

// Calls with (code point, byte offset) for each character.
template <class Action>
void each_character(std::string_view text, const std::string& where, Action&& action) {
  if (is_utf16(text)) throw DataError(fmt::format("{}: got {}", where, kUtf16Words));
  size_t at = text.starts_with(detail::kByteOrderMark) ? detail::kByteOrderMark.size() : 0;
  while (at < text.size()) {
    const auto character = first_character(text.substr(at));
    if (!character)
      throw DataError(fmt::format("{}: got {}\n  or, in a program, read it as bytes: `unit`",
                                  place_in(where, text, at), wrong_byte_words(text[at])));
    action(*character, at);
    at += character->bytes;
  }
}

using Vocabulary = std::map<char32_t, int32_t>;  // label by code point

Vocabulary given_vocabulary(const std::vector<std::string>& classes) {
  Vocabulary labels;
  for (const std::string& name : classes) {
    const auto character = name.empty() ? std::nullopt : first_character(name);
    if (!character || character->bytes != name.size())
      throw UsageError(
          fmt::format("text: class \"{}\": expected one character in UTF-8 each", name));
    if (!labels.emplace(character->value, static_cast<int32_t>(labels.size())).second)
      throw UsageError(fmt::format("text: class \"{}\" is there twice", name));
  }
  return labels;
}

// The characters that are there, numbered by code point, and as UTF-8.
std::pair<Vocabulary, std::vector<std::string>> vocabulary_of(std::string_view text,
                                                              const std::string& where) {
  std::map<char32_t, std::string> seen;
  each_character(text, where, [&](CodePoint character, size_t at) {
    if (!seen.contains(character.value))
      seen.emplace(character.value, text.substr(at, character.bytes));
  });
  Vocabulary labels;
  std::vector<std::string> classes;
  for (const auto& [value, bytes] : seen) {
    labels.emplace(value, static_cast<int32_t>(labels.size()));
    classes.push_back(bytes);
  }
  return {std::move(labels), std::move(classes)};
}

class TextSource final : public detail::SourceInMemory {
 public:
  TextSource(std::vector<int32_t> units, int64_t first_unit, std::vector<std::string> classes,
             TextOptions options, std::string where, std::string fingerprint)
      : units_(std::move(units)),
        first_unit_(first_unit),
        classes_(std::move(classes)),
        options_(std::move(options)),
        where_(std::move(where)),
        fingerprint_(std::move(fingerprint)),
        columns_{{.name = "x", .dtype = DType::int64, .shape = {options_.length}},
                 {.name = "y", .dtype = DType::int64, .shape = {options_.length}}} {}

  int64_t num_rows() const override {
    return (std::ssize(units_) - options_.length - 1) / options_.stride + 1;
  }
  const std::vector<Column>& columns() const override { return columns_; }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::string fingerprint() const override { return fingerprint_; }
  std::vector<int64_t> first_rows_of_files() const override { return {0}; }
  std::string where(int64_t row) const override {
    const int64_t begin = first_unit_ + row * options_.stride;
    return fmt::format("{}, {} {} to {}", where_,
                       options_.unit == TextUnit::bytes ? "bytes" : "characters", begin,
                       begin + options_.length + 1);
  }

  void gather_into(std::span<const int64_t> rows, std::span<const Array> places) const override {
    auto* x = static_cast<int64_t*>(places[0].data());
    auto* y = static_cast<int64_t*>(places[1].data());
    for (int64_t row : rows) {
      const int32_t* window = units_.data() + row * options_.stride;
      x = std::copy_n(window, options_.length, x);
      y = std::copy_n(window + 1, options_.length, y);
    }
  }

 private:
  std::vector<int32_t> units_;
  int64_t first_unit_;  // of the text
  std::vector<std::string> classes_;
  TextOptions options_;
  std::string where_;
  std::string fingerprint_;
  std::vector<Column> columns_;
};

void require_text_options(TextOptions& options) {
  if (options.length < 1 || options.stride < 0)
    throw UsageError(
        fmt::format("text: length {}, stride {}: expected length >= 1, stride >= 1 (or 0: length)",
                    options.length, options.stride));
  if (!(options.begin >= 0 && options.begin < options.end && options.end <= 1))
    throw UsageError(fmt::format("text: from {} to {}: expected shares, 0 <= begin < end <= 1",
                                 options.begin, options.end));
  if (options.unit == TextUnit::bytes && !options.classes.empty())
    throw UsageError("text: classes were given for bytes, which are always the same 256");
  if (options.stride == 0) options.stride = options.length;
}

std::vector<int32_t> bytes_as_units(std::string_view text, std::vector<std::string>& classes) {
  for (int byte = 0; byte < 256; ++byte) classes.emplace_back(1, static_cast<char>(byte));
  std::vector<int32_t> units;
  units.reserve(text.size());
  for (char byte : text) units.push_back(static_cast<uint8_t>(byte));
  return units;
}

std::vector<int32_t> characters_as_units(std::string_view text, const std::string& where,
                                         std::vector<std::string>& classes) {
  Vocabulary labels;
  if (classes.empty())
    std::tie(labels, classes) = vocabulary_of(text, where);
  else
    labels = given_vocabulary(classes);
  std::vector<int32_t> units;
  units.reserve(text.size());
  each_character(text, where, [&](CodePoint character, size_t at) {
    const auto label = labels.find(character.value);
    if (label == labels.end())
      throw DataError(fmt::format(
          "{}: got the character {}, expected one of the {} classes given",
          place_in(where, text, at),
          character_words(text.substr(at, character.bytes), character.value), labels.size()));
    units.push_back(label->second);
  });
  return units;
}

// Leaves those between the shares; returns how many stood before them.
int64_t cut(std::vector<int32_t>& units, const TextOptions& options) {
  const auto place = [all = std::ssize(units)](double share) {
    return static_cast<int64_t>(std::floor(static_cast<double>(all) * share));
  };
  const int64_t begin = place(options.begin);
  units.resize(static_cast<size_t>(place(options.end)));
  units.erase(units.begin(), units.begin() + begin);
  return begin;
}

}  // namespace

std::vector<int64_t> text_labels(std::string_view text, const std::vector<std::string>& classes,
                                 const std::string& where) {
  std::vector<std::string> given = classes;
  const auto units = characters_as_units(text, where, given);
  return {units.begin(), units.end()};
}

Dataset text(const fs::path& path, TextOptions options) {
  require_text_options(options);
  const Array file = options.files->read(path);
  const std::string_view bytes = text_of(file);
  std::vector<std::string> classes = options.classes;
  std::vector<int32_t> units = options.unit == TextUnit::bytes
                                   ? bytes_as_units(bytes, classes)
                                   : characters_as_units(bytes, path.string(), classes);
  const int64_t first_unit = cut(units, options);
  if (std::ssize(units) - 1 < options.length)
    throw DataError(fmt::format(
        "{}: got {} {}{}, expected {} or more: a window of {} and the one after it\n"
        "  choose a smaller length",
        path.string(), units.size(), options.unit == TextUnit::bytes ? "bytes" : "characters",
        options.begin > 0 || options.end < 1
            ? fmt::format(" from {:.4g} % to {:.4g} %", options.begin * 100, options.end * 100)
            : "",
        options.length + 1, options.length));
  std::string key = fmt::format("text {} {} {} {} {} {}", options.length, options.stride,
                                static_cast<int>(options.unit), options.begin, options.end,
                                fingerprint_of({options.files->info(path)}));
  for (const std::string& name : options.classes) key += name;
  return Dataset(std::make_shared<TextSource>(std::move(units), first_unit, std::move(classes),
                                              std::move(options), path.filename().string(),
                                              sha256_hex(key)));
}

}  // namespace tutti::data
