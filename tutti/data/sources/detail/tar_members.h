/// What the members of a tar are to webdataset: samples and their parts, told by names.
///
/// Thread rule: free functions.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/sample.h"
#include "tutti/data/sources/detail/record_index.h"

namespace tutti::data::detail {

inline constexpr std::array<std::string_view, 1> kTarEndings = {".tar"};

/// A member's name: what groups it, and what it is.
struct MemberName {
  std::string_view key;
  std::string ending;  ///< in lower case; empty: no part of any sample
};

MemberName member_name(std::string_view name);

enum class MemberKind { bytes, integer, npy };

MemberKind kind_of_ending(std::string_view ending);

/// A member's bytes as an array: int64 [] of decimal digits, the array of a .npy, or the bytes.
/// Throws DataError that calls the member `words`.
Array decode_member(MemberKind kind, const Array& bytes, std::string_view words);

/// "jpg", "seg.png": what follows the last dot is what files of photos end with.
bool is_photo_ending(std::string_view ending);

/// One sample of a tar: members [begin, end) of its index, those without an ending among them.
struct MemberGroup {
  int64_t begin = 0;
  int64_t end = 0;
};

std::vector<MemberGroup> groups_of(const RecordIndex& index);

/// "a.tar, sample "0007" (byte 512)"
std::string place_of(const std::filesystem::path& tar, const RecordIndex& index,
                     const MemberGroup& group);

/// Where the members of a tar lie, and their names.
RecordIndex index_members(FileWindow& file);
IndexPlan tar_index_plan(FilesHandle files, std::filesystem::path folder);

}  // namespace tutti::data::detail
