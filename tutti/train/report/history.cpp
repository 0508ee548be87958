#include "tutti/train/report/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/suggest.h"
#include "tutti/observe/plot.h"
#include "tutti/strategy/choice/measures.h"

namespace tutti {

double History::images_per_second() const noexcept {
  return train_seconds > 0 ? static_cast<double>(images) / train_seconds : 0;
}

double History::step_ms_percentile(double fraction) const {
  if (step_ms.empty()) return 0;
  std::vector<float> sorted = step_ms;
  const auto last = static_cast<double>(sorted.size() - 1);
  const auto place = static_cast<int64_t>(std::ceil(std::clamp(fraction, 0.0, 1.0) * last));
  std::nth_element(sorted.begin(), sorted.begin() + place, sorted.end());
  return sorted[static_cast<size_t>(place)];
}

std::vector<double> History::column(std::string_view name) const {
  const auto found = std::find(columns.begin(), columns.end(), name);
  if (found == columns.end()) throw UsageError(unknown_message("history column", name, columns));
  const auto place = static_cast<size_t>(found - columns.begin());
  std::vector<double> values;
  for (const auto& row : rows) values.push_back(row[place]);
  return values;
}

double History::last(std::string_view name) const {
  const auto values = column(name);
  if (values.empty()) throw UsageError("history: no epoch has ended yet");
  return values.back();
}

std::string History::to_string() const {
  std::string out = fmt::format("{:>5}", "epoch");
  for (const auto& name : columns) out += fmt::format("  {:>10}", name);
  out += '\n';
  for (size_t epoch = 0; epoch < rows.size(); ++epoch) {
    out += fmt::format("{:>5}", number_of(epoch));
    for (size_t c = 0; c < columns.size(); ++c) {
      const auto width = std::max<size_t>(10, columns[c].size());
      const bool rate = columns[c] == "images_per_second";
      out += fmt::format("  {:>{}.{}f}", rows[epoch][c], width, rate ? 0 : 4);
    }
    out += '\n';
  }
  return out;
}

std::string History::to_csv() const {
  std::string out = "epoch";
  for (const auto& name : columns) out += "," + name;
  out += '\n';
  for (size_t epoch = 0; epoch < rows.size(); ++epoch) {
    out += fmt::format("{}", number_of(epoch));
    for (double value : rows[epoch]) out += fmt::format(",{}", value);
    out += '\n';
  }
  return out;
}

void History::save_csv(const std::filesystem::path& path) const {
  write_file_atomically(path, to_csv());
}

void History::plot(const std::filesystem::path& path) const {
  if (path.extension() != ".svg")
    throw UsageError(fmt::format("plot: {} is no name of a picture; .svg expected", path.string()));
  if (rows.empty()) throw UsageError("plot: no epoch has ended yet");
  std::vector<double> epochs;
  for (size_t row = 0; row < rows.size(); ++row)
    epochs.push_back(static_cast<double>(number_of(row)));
  plots::Panel losses{.title = "Loss", .x_label = "epoch", .y_label = "loss", .curves = {}};
  plots::Panel metrics{.title = "Metrics", .x_label = "epoch", .y_label = "value", .curves = {}};
  std::vector<plots::Panel> measured;
  for (const auto& name : columns) {
    if (name == "seconds" || name == "images_per_second") continue;
    if (const auto* const measure = std::ranges::find(kMeasures, name, &Measure::name);
        measure != std::end(kMeasures)) {
      measured.push_back({.title = std::string(measure->title),
                          .x_label = "epoch",
                          .y_label = std::string(measure->unit),
                          .curves = {{name, epochs, column(name)}}});
      continue;
    }
    const bool loss = name == "train_loss" || name == "val_loss";
    (loss ? losses : metrics).curves.push_back({name, epochs, column(name)});
  }
  std::vector<plots::Panel> panels{std::move(losses)};
  if (!metrics.curves.empty()) panels.push_back(std::move(metrics));
  std::ranges::move(measured, std::back_inserter(panels));
  const std::string title =
      fmt::format("Training of {} epoch{}", rows.size(), rows.size() == 1 ? "" : "s");
  write_file_atomically(path, plots::svg(title, panels));
}

}  // namespace tutti
