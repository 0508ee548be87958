/// What samples of a class count. Without LibTorch. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>

namespace tutti {

/// UsageError that begins with `place` ("fit: class_weight", "--class-weight") for a weight that is
/// negative or that float32 does not keep, a label beyond the `classes` (0: not known how many
/// there are), and where all classes count 0, so that nothing would be learnt.
void require_class_weight(std::string_view place, const std::map<int64_t, double>& by_label,
                          int64_t classes);

}  // namespace tutti
