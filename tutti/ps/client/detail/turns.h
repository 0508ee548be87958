/// Turns: which piece a worker pushes to a partition next, where a recorded order is followed. Not
/// for users. Thread rule: plain values.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "tutti/ps/spec/update_order.h"

namespace tutti::ps::detail {

struct Turns {
  std::vector<std::vector<int>> pieces =
      {};             ///< of each time that the worker has come; {}: no order
  size_t life = 0;    ///< which of these
  size_t turn = 0;    ///< in it
  bool lost = false;  ///< in that order the worker is lost here

  bool follows() const noexcept { return !pieces.empty(); }
  /// None: the order has no more of it, while it is there.
  std::optional<int> next() const {
    if (life >= pieces.size() || turn >= pieces[life].size()) return std::nullopt;
    return pieces[life][turn];
  }

  static Turns of(const std::vector<OrderRecord>& records, int worker) {
    Turns turns{.pieces = {{}}};
    for (const OrderRecord& record : records) {
      if (record.worker != worker) continue;
      if (record.kind == OrderRecord::Kind::push) turns.pieces.back().push_back(record.piece);
      if (record.kind == OrderRecord::Kind::leave) turns.pieces.emplace_back();
    }
    return turns;
  }
};

}  // namespace tutti::ps::detail
