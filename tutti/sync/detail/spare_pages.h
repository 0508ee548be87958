/// SparePages: memory whose pages go from one part of it to another, under addresses that stay.
///
/// A page that is given back to the kernel and wanted again is cleared and mapped anew, which takes
/// longer than to copy what comes into it. So the pages of what is not used are moved to what is.
/// Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/base/array.h"

namespace tutti::detail {

/// Zeros in pages of their own, which SparePages may move.
Array mapped_zeros(int64_t num_bytes);

class SparePages {
 public:
  /// Keeps so many bytes at most. Throws Error where there are no addresses left.
  explicit SparePages(int64_t num_bytes);

  /// Takes the pages that lie in there alone; those that are too many go back to the kernel. What
  /// was there reads as zeros from now on.
  void take(std::byte* begin, int64_t num_bytes);
  /// Gives as many as there are to what is about to be written; what is there is lost.
  void give(std::byte* begin, int64_t num_bytes);

 private:
  std::byte* begin() const { return static_cast<std::byte*>(memory_.data()); }

  Array memory_;
  int64_t used_ = 0;  // bytes of it that hold pages, from its begin
};

}  // namespace tutti::detail
