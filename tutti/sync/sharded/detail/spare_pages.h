/// SparePages: memory whose pages go from one part of it to another, under addresses that stay.
///
/// A page that is given back to the kernel and wanted again is cleared and mapped anew, which takes
/// longer than to copy what comes into it. So the pages of what is in use lie in a file of memory,
/// in slots that are handed on. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "tutti/base/array.h"

namespace tutti::detail {

/// Zeros in pages of their own, which SparePages may take.
Array mapped_zeros(int64_t num_bytes);

class SparePages {
 public:
  /// Of parts of so many bytes at most. Throws Error where there is no file of memory to be had.
  explicit SparePages(int64_t num_bytes);
  ~SparePages();
  SparePages(const SparePages&) = delete;
  SparePages& operator=(const SparePages&) = delete;

  /// Takes the pages that lie in there alone: it reads as zeros from now on. Those of one part are
  /// kept; more go back to the kernel. Throws Error where the kernel refuses.
  void take(std::byte* begin, int64_t num_bytes);
  /// Gives pages, for as many bytes as take() will be told, to what is about to be written; what is
  /// there is lost. Throws as take().
  void give(std::byte* begin, int64_t num_bytes);

 private:
  int64_t free_slot();

  int64_t slot_bytes_;
  int file_;
  int64_t slots_ = 0;
  std::map<std::byte*, int64_t> given_;  ///< slots, by the first page that they are mapped to
  std::vector<int64_t> kept_, empty_;    ///< slots with pages, and without
};

}  // namespace tutti::detail
