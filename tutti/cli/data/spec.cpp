#include "tutti/cli/data/spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/suggest.h"
#include "tutti/data/quickdraw.h"
#include "tutti/data/sources/csv.h"
#include "tutti/data/sources/idx.h"
#include "tutti/data/sources/image_folder.h"
#include "tutti/data/sources/open_records.h"
#include "tutti/data/sources/strokes.h"
#include "tutti/data/sources/text.h"
#include "tutti/data/transforms/transforms.h"

namespace tutti::cli {
namespace {

using data::DataKind;

constexpr const char* kFormat = "tutti data 1";
constexpr DataKind kKinds[] = {DataKind::image_folder, DataKind::quickdraw,  DataKind::idx,
                               DataKind::csv,          DataKind::webdataset, DataKind::tfrecord,
                               DataKind::mds,          DataKind::text,       DataKind::strokes};

DataKind kind_of(const std::string& name) {
  std::vector<std::string> known;
  for (const DataKind kind : kKinds) {
    if (data::name_of(kind) == name) return kind;
    known.emplace_back(data::name_of(kind));
  }
  throw DataError(unknown_message("kind of data", name, known));
}

data::Dataset opened(const DataSpec& spec, DataKind kind, const std::filesystem::path& path,
                     std::optional<bool> header) {
  if (is_photos(kind)) return open_photos(kind, path, spec.label, spec.classes);
  switch (kind) {
    case DataKind::idx: return data::idx(path, {.classes = spec.classes});
    case DataKind::csv: return data::csv(path, *spec.table, {.header = header});
    case DataKind::strokes: return data::strokes(path, {.classes = spec.classes});
    case DataKind::text:
      return data::text(path, {.length = spec.shape.at(0), .classes = spec.classes});
    default: return data::quickdraw(path, {.split = "all", .classes = spec.classes});
  }
}

OrderedJson json_of(const models::GptOptions& gpt) {
  return {{"layers", gpt.layers},
          {"heads", gpt.heads},
          {"features", gpt.features},
          {"tied", gpt.tied},
          {"dropout", gpt.dropout}};
}

models::GptOptions gpt_of(const OrderedJson& json, const DataSpec& spec) {
  return {.vocabulary = std::ssize(spec.classes),
          .context = spec.shape.at(0),
          .layers = json.at("layers"),
          .heads = json.at("heads"),
          .features = json.at("features"),
          .tied = json.at("tied"),
          .dropout = json.at("dropout")};
}

}  // namespace

bool is_photos(DataKind kind) noexcept {
  return kind == DataKind::image_folder || data::is_records(kind);
}

data::Dataset open_photos(DataKind kind, const std::filesystem::path& path,
                          const std::string& label, const std::vector<std::string>& classes) {
  if (kind == DataKind::image_folder) return data::image_folder(path, {.classes = classes});
  return data::photo_records(path, {.label = label, .classes = classes});
}

std::string DataSpec::to_json() const {
  OrderedJson json{{"format", kFormat},  {"model", model}, {"kind", data::name_of(kind)},
                   {"classes", classes}, {"shape", shape}, {"transforms", transforms}};
  if (!label.empty()) json["label"] = label;
  if (!lora.empty()) json["lora"] = lora;
  if (gpt) json["gpt"] = json_of(*gpt);
  if (table) json["table"] = parse_json<OrderedJson>(table->to_json());
  try {
    return json.dump(1) + "\n";
  } catch (const JsonError& error) {
    throw DataError(fmt::format("a name is no UTF-8, as {} has to be: {} of {}\n  rename it",
                                kDataSpecFile, error.what(), fmt::join(classes, ", ")));
  }
}

DataSpec DataSpec::from_json(std::string_view text, const std::string& where) {
  try {
    const OrderedJson json = parse_json<OrderedJson>(text);
    if (json.value("format", "") != kFormat)
      throw DataError(fmt::format("expected {{\"format\": \"{}\", ...}}", kFormat));
    DataSpec spec{.kind = kind_of(json.at("kind")),
                  .classes = json.at("classes"),
                  .shape = json.at("shape"),
                  .transforms = json.at("transforms"),
                  .table = std::nullopt,
                  .label = json.value("label", ""),
                  .model = json.value("model", "")};
    if (json.contains("lora")) spec.lora = json.at("lora").get<std::vector<std::string>>();
    for (const std::string& name : spec.transforms) data::transforms::by_name(name);
    if (json.contains("table"))
      spec.table = data::TableSpec::from_json(json["table"].dump(), "table");
    if (spec.of_text()) {
      if (spec.shape.size() != 1 || spec.classes.empty())
        throw DataError("text has a shape of one length, and classes");
      if (json.contains("gpt") || !spec.model.ends_with(".pt2"))
        spec.gpt = gpt_of(json.at("gpt"), spec);
      if (spec.gpt) models::gpt(*spec.gpt);
    }
    const bool needs_table = spec.kind == DataKind::csv || spec.classes.empty();
    if (needs_table && !(spec.table && spec.table->target))
      throw DataError("table, with its target, is missing");
    return spec;
  } catch (const JsonError& error) {
    throw DataError(fmt::format("{}: {}", where, error.what()));
  } catch (const Error& error) {
    throw DataError(fmt::format("{}: {}", where, error.what()));
  }
}

std::optional<DataSpec> spec_beside(const std::filesystem::path& weights) {
  const auto place = std::filesystem::absolute(weights).lexically_normal();
  for (const auto& folder : {place, place.parent_path()}) {
    const auto file = folder / kDataSpecFile;
    std::error_code failure;
    if (std::filesystem::exists(file, failure))
      return DataSpec::from_json(read_file(file), file.string());
  }
  return std::nullopt;
}

data::Dataset open_as(const DataSpec& spec, const std::filesystem::path& path,
                      std::optional<bool> header) {
  // Any file may be read as text.
  const data::Recognised found =
      spec.of_text() ? data::Recognised{.kind = spec.kind} : data::recognise(path);
  if (found.kind != spec.kind && !(spec.of_photos() && is_photos(found.kind)))
    throw UsageError(fmt::format("{}: {}; the model was trained on {}", path.string(),
                                 found.sentence, data::name_of(spec.kind)));
  data::Dataset dataset = mapped(opened(spec, found.kind, path, header), spec.transforms);
  require_same_classes(spec, dataset, path);
  if (dataset.columns().at(0).shape != spec.shape)
    throw UsageError(fmt::format("{}: samples are {}, the model was trained on {}", path.string(),
                                 data::shape_words(dataset.columns().at(0).shape),
                                 data::shape_words(spec.shape)));
  return dataset;
}

void require_same_classes(const DataSpec& spec, const data::Dataset& dataset,
                          const std::filesystem::path& path) {
  if (dataset.classes() != spec.classes)
    throw UsageError(fmt::format(
        "{}: its classes ({}) are not those that the model was trained on ({})", path.string(),
        fmt::join(dataset.classes(), ", "), fmt::join(spec.classes, ", ")));
}

void require_same_model(const DataSpec& spec, const std::string& model,
                        const std::string& weights) {
  const auto name = [](const std::string& typed) {
    if (typed.ends_with(".pt2")) return std::string("a .pt2 file");  // whose names come in the file
    return typed == "cnn" ? "doodle_cnn" : typed;
  };
  if (!spec.model.empty() && name(spec.model) != name(model))
    throw UsageError(
        fmt::format("MODEL {}: the weights in {} are of {}", model, weights, spec.model));
}

std::string model_of_weights(const std::optional<DataSpec>& spec, const std::string& typed,
                             const std::string& weights) {
  if (spec && !typed.empty()) require_same_model(*spec, typed, weights);
  if (!typed.empty()) return typed;
  if (spec && !spec->model.empty()) return spec->model;
  throw UsageError(
      fmt::format("MODEL: is missing, and {0} {1} beside {2} {3} it; expected the name that tutti "
                  "train was given",
                  spec ? "the" : "no", kDataSpecFile, weights, spec ? "does not say" : "says"));
}

data::Dataset mapped(data::Dataset dataset, const std::vector<std::string>& transforms) {
  for (const std::string& name : transforms) dataset = dataset.map(data::transforms::by_name(name));
  return dataset;
}

Loss loss_for(const DataSpec& spec) {
  return spec.predicts_number() ? losses::mean_squared_error()
                                : losses::sparse_categorical_crossentropy();
}

Metric metric_for(const DataSpec& spec) {
  if (spec.predicts_number()) return scaled_absolute_error(spec.target().deviation);
  return spec.of_text() ? metrics::perplexity() : metrics::accuracy();
}

std::string figure_words(const DataSpec& spec, double value) {
  return spec.predicts_number() ? fmt::format("{:.6g}", value) : fmt::format("{:.4f}", value);
}

Metric scaled_absolute_error(double scale) {
  return Metric("mean_absolute_error", [scale](const SampleRows& rows, MetricSum& into) {
    if (rows.width != 1 || rows.target_width != 1 || rows.targets == nullptr)
      throw UsageError("mean_absolute_error: expected one number a sample");
    for (int64_t row = 0; row < rows.rows; ++row) {
      const double weight = rows.weights == nullptr ? 1 : rows.weights[row];
      into.sum += weight * scale * std::abs(double{rows.outputs[row]} - double{rows.targets[row]});
      into.count += weight;
    }
  });
}

Metric scaled(const Metric& metric, double scale) {
  return Metric(MetricDefinition{
      .name = metric.name(),
      .num_states = [metric](int64_t width) { return metric.num_states(width); },
      .add = [metric](const SampleRows& rows, std::span<double> state) { metric.add(rows, state); },
      .value = [metric,
                scale](std::span<const double> state) { return scale * metric.value(state); }});
}

}  // namespace tutti::cli
