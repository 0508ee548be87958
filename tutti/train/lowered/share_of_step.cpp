#include "tutti/train/lowered/detail/share_of_step.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace tutti::detail {

std::string bytes_of(const std::vector<ShareOfStep>& shares) {
  return {reinterpret_cast<const char*>(shares.data()), shares.size() * sizeof(ShareOfStep)};
}

WholeSteps whole_of(const std::vector<std::string>& by_process, int process) {
  const size_t steps = by_process.at(0).size() / sizeof(ShareOfStep);
  WholeSteps whole{std::vector<int64_t>(steps), std::vector<ShareOfStep>(steps)};
  for (size_t from = 0; from < by_process.size(); ++from) {
    std::vector<ShareOfStep> shares(steps);
    std::memcpy(shares.data(), by_process[from].data(), steps * sizeof(ShareOfStep));
    for (size_t k = 0; k < steps; ++k) {
      ShareOfStep& all = whole.all[k];
      if (from < static_cast<size_t>(process)) whole.rows_before[k] += shares[k].rows;
      if (from == 0) all.rate = shares[k].rate;
      all.rows += shares[k].rows;
      all.most = std::max(all.most, shares[k].most);
      all.labels += shares[k].labels;
      all.counted += shares[k].counted;
    }
  }
  return whole;
}

}  // namespace tutti::detail
