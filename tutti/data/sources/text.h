/// Plain text for language models: windows of characters or bytes.
///
///   auto train = text("plays.txt", {.length = 128});
///   auto held_out = text("more.txt", {.length = 128, .classes = train.classes()});
///
/// docs/formats/text.md has an example.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/files.h"

namespace tutti::data {

enum class TextUnit {
  characters,  ///< Unicode code points of UTF-8; a mark of byte order at the begin is left out
  bytes        ///< all 256, whatever they mean
};

struct TextOptions {
  int64_t length = 128;  ///< units of a window, >= 1
  TextUnit unit = TextUnit::characters;
  int64_t stride = 0;  ///< from one window's first unit to the next one's, >= 1; 0: length
  /// The characters by label, each as UTF-8. Empty: those that are there, sorted by code point. For
  /// texts that must be numbered as another one is: validation, test. Not for bytes.
  std::vector<std::string> classes = {};
  /// The shares of its units between which windows lie; 0 <= begin < end <= 1. Classes are those of
  /// the whole text.
  double begin = 0, end = 1;
  FilesHandle files = local_files();
};

/// Opens a file of text. Window w begins w * stride units after the first; what is left at the end
/// and too short for a window is left out.
///
/// Samples are x int64 [length] and y int64 [length], the unit that follows each of x; both number
/// classes(). The text stays in memory, 4 bytes a unit. Throws
///   DataError   fewer than length + 1 units; bytes that are no UTF-8 (byte offset); a character
///               outside `classes` (byte offset, line)
///   UsageError  a length, stride or share out of range, classes for bytes, classes that are no
///               single character or there twice
Dataset text(const std::filesystem::path& path, TextOptions options = {});

/// The labels of `text`'s characters, by `classes` as text() has them: what a model of that text is
/// given. Throws DataError, which begins with `where`, for what is no UTF-8 and for a character
/// outside `classes`.
std::vector<int64_t> text_labels(std::string_view text, const std::vector<std::string>& classes,
                                 const std::string& where);

}  // namespace tutti::data
