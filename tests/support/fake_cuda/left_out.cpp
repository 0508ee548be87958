// What a test has left out: waits between queues, and records of streams.
#include <memory>

#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/fake_cuda/queues.h"

namespace tutti::test::fake_cuda {
namespace {

// A predicate that a test may replace while other threads ask it.
class Asked {
 public:
  void replace(std::function<bool()> asked) {
    const Lock lock(lock_of_all());
    asked_ = std::make_shared<const std::function<bool()>>(std::move(asked));
  }

  bool operator()() const {
    const auto asked = [&] {
      const Lock lock(lock_of_all());
      return asked_;
    }();
    return asked && *asked && (*asked)();
  }

 private:
  std::shared_ptr<const std::function<bool()>> asked_;
};
Asked block_left_out;
Asked record_left_out;

}  // namespace

bool block_is_left_out() { return block_left_out(); }
bool record_is_left_out() { return record_left_out(); }

void leave_out_blocks(std::function<bool()> asked) { block_left_out.replace(std::move(asked)); }
void leave_out_records(std::function<bool()> asked) { record_left_out.replace(std::move(asked)); }

}  // namespace tutti::test::fake_cuda
