#include "tutti/observe/tensorboard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <set>
#include <system_error>

#include <protozero/pbf_writer.hpp>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/data/detail/tfrecord_frame.h"
#include "tutti/observe/detail/png.h"

// The numbers of fields are those of TensorBoard's .proto files: event, summary, histogram, tensor
// and tensor_shape in tensorboard/compat/proto, api and plugin_data in tensorboard/plugins/hparams.

namespace tutti {
namespace {

namespace fs = std::filesystem;
using protozero::pbf_writer;

constexpr int kFloatType = 1;    // DataType of a tensor
constexpr int kStringType = 7;   // the same
constexpr int kTensorClass = 2;  // DataClass of a plugin's data

double system_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

// Readers refuse an event, and all that follow it, for one string that is no UTF-8.
void check_utf8(std::string_view text, std::string_view what) {
  try {
    static_cast<void>(dump_json(Json(text)));
  } catch (const JsonError& error) {
    throw UsageError(fmt::format("TensorBoard: {} is no UTF-8 text: {}", what, error.what()));
  }
}

// A message inside another.
template <class Fill>
void add_message(pbf_writer& writer, protozero::pbf_tag_type field, Fill&& fill) {
  pbf_writer inner(writer, field);
  fill(inner);
}

void add_text(pbf_writer& writer, protozero::pbf_tag_type field, std::string_view text) {
  writer.add_bytes(field, text.data(), text.size());
}

// A Summary.Value: its tag, and what `fill` adds.
template <class Fill>
std::string value_of(std::string_view tag, Fill&& fill) {
  std::string bytes;
  pbf_writer value(bytes);
  add_text(value, 1, tag);
  fill(value);
  return bytes;
}

// By which TensorBoard knows whose data a tensor is.
void add_metadata(pbf_writer& value, std::string_view plugin, std::string_view content) {
  add_message(value, 9, [&](pbf_writer& metadata) {
    add_message(metadata, 1, [&](pbf_writer& data) {
      add_text(data, 1, plugin);
      add_text(data, 2, content);
    });
    metadata.add_enum(4, kTensorClass);
  });
}

struct Histogram {
  double least = 0;
  double greatest = 0;
  double sum = 0;
  double sum_of_squares = 0;
  int64_t num_values = 0;
  std::vector<double> limits;  // right ends of buckets; the last one is inside
  std::vector<double> counts;
};

template <class T>
Histogram histogram_of(std::span<const T> values) {
  constexpr int kBuckets = 30;  // what TensorBoard draws
  Histogram histogram;
  for (const T element : values) {
    const auto value = static_cast<double>(element);
    if (!std::isfinite(value)) continue;
    const bool first = histogram.num_values++ == 0;
    histogram.least = first ? value : std::min(histogram.least, value);
    histogram.greatest = first ? value : std::max(histogram.greatest, value);
    histogram.sum += value;
    histogram.sum_of_squares += value * value;
  }
  if (histogram.num_values == 0) return histogram;
  // Each term alone: the difference of two doubles may be infinite.
  const double width = histogram.greatest / kBuckets - histogram.least / kBuckets;
  if (width > 0) {
    for (int bucket = 1; bucket < kBuckets; ++bucket)
      histogram.limits.push_back(std::min(histogram.least + width * bucket, histogram.greatest));
  }
  histogram.limits.push_back(histogram.greatest);
  histogram.counts.resize(histogram.limits.size());
  for (const T element : values) {
    const auto value = static_cast<double>(element);
    if (!std::isfinite(value)) continue;
    // By the limits themselves, so that rounding puts no value outside of its bucket.
    const auto above =
        std::upper_bound(histogram.limits.begin(), histogram.limits.end() - 1, value);
    histogram.counts[static_cast<size_t>(above - histogram.limits.begin())] += 1;
  }
  return histogram;
}

// A google.protobuf.Value.
void add_hparam(pbf_writer& writer, const EventWriter::HParam& hparam) {
  if (const auto* const number = std::get_if<double>(&hparam)) {
    writer.add_double(2, *number);
  } else if (const auto* const text = std::get_if<std::string>(&hparam)) {
    add_text(writer, 3, *text);
  } else {
    writer.add_bool(4, std::get<bool>(hparam));
  }
}

// An entry of NodeDef.attr.
template <class Fill>
void add_attribute(pbf_writer& node, std::string_view name, Fill&& fill) {
  add_message(node, 5, [&](pbf_writer& entry) {
    add_text(entry, 1, name);
    add_message(entry, 2, fill);
  });
}

void add_node(pbf_writer& graph, const EventWriter::GraphNode& node) {
  add_message(graph, 1, [&](pbf_writer& out) {
    add_text(out, 1, node.name);
    add_text(out, 2, node.operation);
    for (const std::string& input : node.inputs) add_text(out, 3, input);
    add_attribute(out, "_output_shapes", [&](pbf_writer& value) {
      add_message(value, 1, [&](pbf_writer& list) {
        add_message(list, 7, [&](pbf_writer& shape) {
          for (const int64_t size : node.shape)
            add_message(shape, 2, [&](pbf_writer& dimension) { dimension.add_int64(1, size); });
        });
      });
    });
    for (const auto& [name, words] : node.words)
      add_attribute(out, name, [&](pbf_writer& value) { add_text(value, 2, words); });
  });
}

void check_nodes(std::span<const EventWriter::GraphNode> nodes) {
  std::set<std::string_view> names;
  for (const auto& node : nodes) {
    check_utf8(node.name, "the name of a node");
    check_utf8(node.operation, fmt::format("the operation of node \"{}\"", node.name));
    for (const auto& [name, words] : node.words) {
      check_utf8(name, fmt::format("a word of node \"{}\"", node.name));
      check_utf8(words, fmt::format("{} of node \"{}\"", name, node.name));
    }
    if (node.name.empty() || !names.insert(node.name).second)
      throw UsageError(fmt::format("TensorBoard: a graph has {}; names are unique and not empty",
                                   node.name.empty() ? std::string("a node without a name")
                                                     : "two nodes \"" + node.name + '"'));
  }
  for (const auto& node : nodes)
    for (const std::string& input : node.inputs)
      if (!names.contains(input))
        throw UsageError(
            fmt::format("TensorBoard: node \"{}\" has input \"{}\", which is no node "
                        "of the graph",
                        node.name, input));
}

int type_of(const EventWriter::HParam& hparam) {
  constexpr std::array<int, 3> kTypes = {3, 1, 2};  // by alternatives: float64, string, bool
  return kTypes.at(hparam.index());
}

// All that the plugin reads is in the metadata; the tensor is empty.
template <class Fill>
std::string hparams_value(std::string_view tag, Fill&& fill) {
  std::string content;
  pbf_writer data(content);
  fill(data);
  return value_of(tag, [&](pbf_writer& value) {
    add_metadata(value, "hparams", content);
    add_message(value, 8, [](pbf_writer& tensor) {
      tensor.add_enum(1, kFloatType);
      add_message(tensor, 2, [](pbf_writer& shape) {
        add_message(shape, 2, [](pbf_writer& dimension) { dimension.add_int64(1, 0); });
      });
    });
  });
}

}  // namespace

EventWriter::EventWriter(const fs::path& folder, Clock clock)
    : clock_(clock ? std::move(clock) : system_seconds) {
  const double now = clock_();
  begin_file(folder, static_cast<int64_t>(now));
  std::string event;
  pbf_writer writer(event);
  writer.add_double(1, now);
  add_text(writer, 3, "brain.Event:2");
  if (const int error_number = append(data::detail::record_of(event)); error_number != 0) {
    std::error_code ignored;
    fs::remove(file_, ignored);
    throw Error(fmt::format("cannot write TensorBoard's file {}: {}", file_.string(),
                            errno_words(error_number)));
  }
}

void EventWriter::begin_file(const fs::path& folder, int64_t seconds) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw Error(fmt::format("cannot make the folder {} for TensorBoard's files: {}",
                            folder.string(), errno_words(error.value())));
  static std::atomic<int> num_files{0};
  while (!descriptor_) {
    // Readers take the files of a folder by name: ten digits keep names in the order of time.
    file_ = folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}", seconds, host_name(),
                                 ::getpid(), num_files++);
    descriptor_ = FileDescriptor(
        ::open(file_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_APPEND | O_CLOEXEC, 0666));
    // A process of the same number, in another container with this folder, may have the name.
    if (!descriptor_ && errno != EEXIST)
      throw Error(
          fmt::format("cannot make TensorBoard's file {}: {}", file_.string(), errno_words(errno)));
  }
}

void EventWriter::scalar(std::string_view tag, int64_t step, double value) {
  check_tag(tag, "scalar");
  add(step,
      value_of(tag, [&](pbf_writer& inner) { inner.add_float(2, static_cast<float>(value)); }));
}

void EventWriter::histogram(std::string_view tag, int64_t step, std::span<const float> values) {
  add_histogram(tag, step, values);
}

void EventWriter::histogram(std::string_view tag, int64_t step, std::span<const double> values) {
  add_histogram(tag, step, values);
}

template <class T>
void EventWriter::add_histogram(std::string_view tag, int64_t step, std::span<const T> values) {
  check_tag(tag, "histogram");
  if (failed()) return;
  const Histogram histogram = histogram_of(values);
  const auto left_out = static_cast<int64_t>(values.size()) - histogram.num_values;
  if (left_out > 0)
    log_once(fmt::format("TensorBoard histogram {}", tag), LogLevel::warning,
             "TensorBoard histogram \"{}\", step {}: {} of {} values are NaN or infinite and left "
             "out (said once)",
             tag, step, left_out, values.size());
  add(step, value_of(tag, [&](pbf_writer& value) {
        add_message(value, 5, [&](pbf_writer& message) {
          message.add_double(1, histogram.least);
          message.add_double(2, histogram.greatest);
          message.add_double(3, static_cast<double>(histogram.num_values));
          message.add_double(4, histogram.sum);
          message.add_double(5, histogram.sum_of_squares);
          message.add_packed_double(6, histogram.limits.begin(), histogram.limits.end());
          message.add_packed_double(7, histogram.counts.begin(), histogram.counts.end());
        });
      }));
}

void EventWriter::image(std::string_view tag, int64_t step, const Image& image) {
  check_tag(tag, "image");
  if (failed()) return;
  const std::string png = detail::png_of(image.height, image.width, image.channels, image.pixels);
  add(step, value_of(tag, [&](pbf_writer& value) {
        add_message(value, 4, [&](pbf_writer& message) {
          message.add_int32(1, image.height);
          message.add_int32(2, image.width);
          message.add_int32(3, image.channels);
          add_text(message, 4, png);
        });
      }));
}

void EventWriter::text(std::string_view tag, int64_t step, std::string_view markdown) {
  check_tag(tag, "text");
  check_utf8(markdown, fmt::format("the text of \"{}\"", tag));
  add(step, value_of(tag, [&](pbf_writer& value) {
        add_metadata(value, "text", "");
        add_message(value, 8, [&](pbf_writer& tensor) {
          tensor.add_enum(1, kStringType);
          add_message(tensor, 2, [](pbf_writer&) {});  // a scalar
          add_text(tensor, 8, markdown);
        });
      }));
}

void EventWriter::graph(std::span<const GraphNode> nodes) {
  check_nodes(nodes);
  if (failed()) return;
  std::string definition;
  pbf_writer graph(definition);
  for (const GraphNode& node : nodes) add_node(graph, node);
  constexpr int kProducer = 22;  // TensorBoard takes graphs of that version as they are
  add_message(graph, 4, [](pbf_writer& versions) { versions.add_int32(1, kProducer); });
  std::string event;
  pbf_writer writer(event);
  writer.add_double(1, clock_());
  add_text(writer, 4, definition);
  append_event(event);
}

void EventWriter::hparams(const std::map<std::string, HParam>& values,
                          const std::vector<std::string>& metric_tags) {
  for (const auto& [name, value] : values) {
    check_utf8(name, "the name of a hyperparameter");
    if (const auto* const text = std::get_if<std::string>(&value))
      check_utf8(*text, fmt::format("hyperparameter \"{}\"", name));
  }
  for (const std::string& tag : metric_tags) check_utf8(tag, "the tag of a metric");
  const double now = clock_();
  add(0, hparams_value("_hparams_/experiment", [&](pbf_writer& data) {
        add_message(data, 2, [&](pbf_writer& experiment) {
          experiment.add_double(3, now);
          for (const auto& [name, value] : values) {
            add_message(experiment, 4, [&](pbf_writer& info) {
              add_text(info, 1, name);
              info.add_enum(4, type_of(value));
            });
          }
          for (const std::string& tag : metric_tags) {
            add_message(experiment, 5, [&](pbf_writer& info) {
              add_message(info, 1, [&](pbf_writer& name) { add_text(name, 2, tag); });
            });
          }
        });
      }));
  add(0, hparams_value("_hparams_/session_start_info", [&](pbf_writer& data) {
        add_message(data, 3, [&](pbf_writer& start) {
          for (const auto& [name, value] : values) {
            add_message(start, 1, [&](pbf_writer& entry) {
              add_text(entry, 1, name);
              add_message(entry, 2, [&](pbf_writer& inner) { add_hparam(inner, value); });
            });
          }
          start.add_double(5, now);
        });
      }));
}

void EventWriter::flush() {
  if (failed()) return;
  // File systems without syncing say EINVAL.
  if (::fdatasync(descriptor_.get()) != 0 && errno != EINVAL) give_up("fdatasync", errno);
}

void EventWriter::check_tag(std::string_view tag, std::string_view kind) {
  if (tag.empty()) throw UsageError(fmt::format("TensorBoard: a {} without a tag", kind));
  const auto known = kinds_.find(tag);
  if (known == kinds_.end()) {
    check_utf8(tag, fmt::format("the tag of a {}", kind));
    kinds_.emplace(tag, kind);
  } else if (known->second != kind) {
    throw UsageError(
        fmt::format("TensorBoard: tag \"{}\" is that of a {}, and now of a {}: use "
                    "another tag",
                    tag, known->second, kind));
  }
}

void EventWriter::add(int64_t step, std::string_view value) {
  if (failed()) return;
  std::string event;
  pbf_writer writer(event);
  writer.add_double(1, clock_());
  writer.add_int64(2, step);
  add_message(writer, 5, [&](pbf_writer& summary) { add_text(summary, 1, value); });
  append_event(event);
}

void EventWriter::append_event(std::string_view event) {
  if (const int error_number = append(data::detail::record_of(event)); error_number != 0)
    give_up(fmt::format("after {} bytes", num_bytes_), error_number);
}

int EventWriter::append(std::string_view record) {
  std::string_view left = record;
  while (!left.empty()) {
    const ssize_t count = ::write(descriptor_.get(), left.data(), left.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error_number = errno;
      // Readers would wait for the rest of a record. Where cutting fails too, nothing can be done.
      [[maybe_unused]] const int cut = ::ftruncate(descriptor_.get(), num_bytes_);
      return error_number;
    }
    left.remove_prefix(static_cast<size_t>(count));
  }
  num_bytes_ += static_cast<int64_t>(record.size());
  return 0;
}

void EventWriter::give_up(std::string_view operation, int error_number) {
  descriptor_.reset();
  log(LogLevel::error,
      "cannot write TensorBoard's file {}: {}: {}\n  training goes on; what comes later is not "
      "written there",
      file_.string(), operation, errno_words(error_number));
}

}  // namespace tutti
