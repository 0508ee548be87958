/// A confusion matrix as a picture: SVG that stands alone, as plot.h has it.
///
/// Thread rule: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::plots {

/// Of at most so many classes: more have no pixel each.
inline constexpr size_t kMostClassesOfAPicture = 1024;
/// Of at most so many each square has its number, and each class a line below with its recall; of
/// more the ten most frequent mistakes stand there.
inline constexpr size_t kNumberedClasses = 12;

/// counts[label][prediction], finite and >= 0, as metrics::confusion_matrix() has them; `classes`:
/// their names, of any text. A square is the darker, the larger its share of its row: one hue,
/// whose lightness alone says how much, so that it is read on paper and by who is colour-blind.
/// Squares of right answers have a frame. 375 pixels wide up to 100 classes. An SVG document in
/// UTF-8. UsageError where there is no class or more than can be drawn, names and rows are not as
/// many, or a count is negative or not finite.
std::string confusion_svg(std::string_view title, std::span<const std::string> classes,
                          const std::vector<std::vector<double>>& counts);

}  // namespace tutti::plots
