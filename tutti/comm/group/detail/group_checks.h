/// What Group refuses before anything reaches an engine. Every function throws UsageError that
/// names the call, the rank and the argument. Thread rule: any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tutti/comm/engine/engine.h"

namespace tutti::detail {

/// Whose arguments are checked, in which call.
struct Checked {
  const Engine& engine;
  Collective call;

  [[noreturn]] void refuse(const std::string& why) const;

  void limit(Millis limit) const;
  void rank(std::string_view name, int rank) const;
  /// The other rank of a message.
  void peer(std::string_view name, int rank) const;
  void tag(int tag) const;
  /// Length, memory, alignment and place.
  void span(std::string_view name, const MemorySpan& span) const;
  void reduction(DType dtype, ReduceOp op) const;
  void same_dtype(std::string_view name, const MemorySpan& span, std::string_view other_name,
                  const MemorySpan& other) const;
  /// Empty, or one count of 0 or more a rank.
  void list(std::string_view name, std::span<const int64_t> counts) const;
  /// Empty, or one count of 0 or more a rank that together are `whole`.
  void counts(std::string_view name, std::span<const int64_t> counts, std::string_view whole_name,
              const MemorySpan& whole) const;
  /// `part` is this rank's part of `whole`: in equal parts, or as `counts` say.
  void part(std::string_view part_name, const MemorySpan& part, std::string_view whole_name,
            const MemorySpan& whole, std::span<const int64_t> counts) const;
  /// The same where the whole is elsewhere.
  void own_part(std::string_view part_name, const MemorySpan& part,
                std::span<const int64_t> counts) const;
  /// Input and output are n equal parts of one size.
  void equal_parts(const MemorySpan& input, const MemorySpan& output) const;
  void apart(std::string_view name, const MemorySpan& span, std::string_view other_name,
             const MemorySpan& other) const;
};

}  // namespace tutti::detail
