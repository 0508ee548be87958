#include "tutti/cli/data/stroke_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/fields.h"
#include "tutti/data/sources/strokes.h"
#include "tutti/data/stroke_field.h"
#include "tutti/data/transforms/strokes.h"
#include "tutti/data/transforms/transforms.h"

namespace tutti::cli {

namespace {

constexpr int64_t kDoodleSize = 28;
constexpr const char* kKaggle = "kaggle";

// What every network takes: one column of one size, the same in every epoch.
void require_one_sample(const data::Transform& made, const std::vector<data::Column>& strokes) {
  const std::vector<data::Column> columns = made.columns(strokes);
  if (columns.size() != 1)
    throw UsageError(
        fmt::format("{}: makes two columns, expected one, which a model takes", made.name()));
  if (made.draws() || std::ranges::count(columns[0].shape, data::kAnySize) > 0)
    throw UsageError(fmt::format(
        "{}: makes {}{}, expected samples of one size, as of strokes_to_bitmap(64) or "
        "strokes_to_sequence(100)\n  --augment puts random_strokes() before them in training",
        made.name(), columns[0].to_string(), made.draws() ? ", drawn anew in every epoch" : ""));
}

}  // namespace

void add_stroke_flags(Command& command, std::string& transform, std::string& classes) {
  command.add(
      "--strokes", "TRANSFORM", &transform, some_name(),
      fmt::format("Drawings: what is made of strokes, as \"strokes_to_bitmap(64, time)\" or "
                  "\"strokes_to_sequence(100)\" (default: bitmaps of --image-size, {})",
                  kDoodleSize));
  command.add("--classes", "NAME", &classes, one_of("list of classes", {kKaggle}),
              "Drawings: what can be said of one: kaggle, the 340 of the Quick, Draw! challenge, "
              "whichever are there (default: those that are there)");
}

std::vector<std::string> stroke_classes(const std::string& typed) {
  return typed == kKaggle ? data::kaggle_classes() : std::vector<std::string>{};
}

std::vector<std::string> stroke_transforms(const std::string& typed, int64_t image_size) {
  if (!typed.empty() && image_size > 0)
    throw UsageError(
        fmt::format("--image-size {} with --strokes \"{}\": give one of them", image_size, typed));
  const std::vector<data::Column> strokes{
      {"strokes", DType::float32, {data::kAnySize, data::kStrokeFields}}};
  const auto transform = said_of(typed.empty() ? "--image-size" : "--strokes", [&] {
    const auto made =
        typed.empty()
            ? data::transforms::strokes_to_bitmap(image_size > 0 ? image_size : kDoodleSize)
            : data::transforms::by_name(typed);
    require_one_sample(*made, strokes);
    return made;
  });
  std::vector<std::string> names{transform->name()};
  if (transform->columns(strokes)[0].dtype == DType::uint8)
    names.push_back(data::transforms::to_tensor()->name());
  return names;
}

}  // namespace tutti::cli
