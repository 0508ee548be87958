#include "tutti/train/fit/detail/tally.h"

#include <utility>

namespace tutti::detail {

void Tally::come(std::function<void()> add) {
  come_.push_back({expected_.front(), std::move(add)});
  expected_.pop_front();
}

void Tally::count_until(int64_t step) {
  while (!come_.empty() && come_.front().step <= step) {
    const Come first = std::move(come_.front());
    come_.pop_front();
    first.add();
  }
}

}  // namespace tutti::detail
