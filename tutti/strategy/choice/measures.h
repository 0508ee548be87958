/// Measures: what of a training is measured beside it, where that is asked for; bits of the
/// training stay what they are. A new one is a field and a row here, a StepWatcher (train/watch),
/// and rules that say beside what it cannot be (choice/rules.cpp). Thread rule: plain values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti {

struct Measures {
  /// Up to what batch a larger one pays (History::noise_scale), in the fused step of two replicas
  /// or more on CPUs.
  bool noise_scale = false;
  /// How long the gradient of an update is, before it is clipped: mean of an epoch. Where the noise
  /// scale is measured, at no more cost.
  bool gradient_norm = false;
};

/// One of them, for whoever takes it from users or shows it to them.
struct Measure {
  std::string_view name;  ///< column of History, quantity for callbacks
  bool Measures::* field;
  std::string_view flag;  ///< of `tutti train`
  std::string_view help;
  std::string_view title;  ///< of its picture
  std::string_view unit;
};

inline constexpr Measure kMeasures[] = {
    {.name = "noise_scale",
     .field = &Measures::noise_scale,
     .flag = "--noise-scale",
     .help =
         "Measure up to what batch a larger one pays: the gradient noise scale, of two replicas "
         "or more",
     .title = "Gradient noise scale",
     .unit = "samples"},
    {.name = "gradient_norm",
     .field = &Measures::gradient_norm,
     .flag = "--gradient-norm",
     .help = "Measure how long the gradient of an update is, before it is clipped, of two replicas "
             "or more",
     .title = "Gradient norm",
     .unit = "norm"},
};

/// The first that is asked for; null: none is.
constexpr const Measure* first_of(const Measures& measures) {
  for (const Measure& measure : kMeasures)
    if (measures.*measure.field) return &measure;
  return nullptr;
}

/// Names of those that are asked for.
inline std::vector<std::string> names_of(const Measures& measures) {
  std::vector<std::string> names;
  for (const Measure& measure : kMeasures)
    if (measures.*measure.field) names.emplace_back(measure.name);
  return names;
}

}  // namespace tutti
