#include "tutti/sync/served/detail/training_number.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "tutti/base/error.h"

namespace tutti::detail {
namespace {

struct Counts {
  int made = 0;
  int living = 0;
};

struct Made {
  std::mutex mutex;
  std::map<std::string, Counts> by_job_and_worker;  // guarded by mutex
};

Made& of_this_process() {
  static Made made;
  return made;
}

}  // namespace

TrainingNumber::TrainingNumber(const ServedPlace& place, const std::string& job)
    : coordinated_(place.coordinated),
      key_(fmt::format("{} {} {}", place.view_service.text(), job, place.worker)) {
  Made& all = of_this_process();
  const std::lock_guard lock(all.mutex);
  Counts& counts = all.by_job_and_worker[key_];
  if (coordinated_ && counts.living > 0)
    throw UsageError(
        "a second optimizer beside another, in a job with a coordinator: its workers train one "
        "model");
  number_ = coordinated_ ? 0 : counts.made++;
  ++counts.living;
}

TrainingNumber::~TrainingNumber() {
  Made& all = of_this_process();
  const std::lock_guard lock(all.mutex);
  Counts& counts = all.by_job_and_worker[key_];
  --counts.living;
  if (!joined_ && !coordinated_) --counts.made;
}

}  // namespace tutti::detail
