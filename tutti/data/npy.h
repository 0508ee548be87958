/// NumPy's .npy files, versions 1 to 3, plain or gzipped, as Arrays.
///
/// Numbers of all fixed-width types and bool, in C order; big-endian files are swapped while read.
/// docs/formats/npy.md describes the layout. Thread rule: free functions without shared state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/array.h"

namespace tutti::data {

/// What the header of a .npy file says.
struct NpyHeader {
  DType dtype = DType::uint8;
  bool swapped = false;        ///< big-endian elements of more than one byte
  std::vector<int64_t> shape;  ///< empty: one element
  int64_t num_elements = 1;
  int64_t data_offset = 0;  ///< bytes from the start of the file to the first element
  int64_t num_bytes() const noexcept { return num_elements * size_of(dtype); }
};

/// Reads the header at the start of `bytes` (the whole file, or its beginning).
///
/// where  the file's name, for messages
///
/// Throws DataError: wrong magic, version or dictionary; a dtype without counterpart (complex,
/// text, records, objects); Fortran order with two or more dimensions; a header cut off.
NpyHeader parse_npy_header(std::span<const std::byte> bytes, const std::string& where);

/// Reads a file: gzip when its name ends in ".gz" (several members too), else mapped.
///
/// A mapped array is read-only, private to this process, and keeps the mapping alive; writing to it
/// ends the process. It is a copy instead where the file is big-endian or its elements are not
/// aligned. Throws DataError: file missing or unreadable, all of parse_npy_header's cases, and a
/// file longer or shorter than its header says (both sizes are named); nothing is read past its
/// end.
Array read_npy(const std::filesystem::path& path);

/// Writes version 1.0, little-endian, elements from a 64-byte boundary on; atomically, see
/// tutti/base/file.h. bfloat16 is a UsageError: the format has no such type.
void write_npy(const std::filesystem::path& path, const Array& array);
std::string npy_bytes(const Array& array);  ///< the bytes of that file

}  // namespace tutti::data
