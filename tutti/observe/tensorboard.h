/// EventWriter: what a training measures, as a file that TensorBoard shows.
///
/// A folder is a run; each writer adds a file of its own to it. What is written, and how to look at
/// it: docs/formats/tensorboard.md.
/// Thread rule: one thread at a time per writer; a process may have several.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tutti/base/file_descriptor.h"

namespace tutti {

/// Every call below appends its event with one write: a reader sees it at once, and a process that
/// dies leaves whole events. They throw UsageError for text that is no UTF-8, an empty tag, and a
/// tag that had another kind before (TensorBoard shows a tag as what it was first). A disk that is
/// full or gone does not end a training: the first failure is logged with path and cause, the file
/// is cut behind its last whole event, and what comes later is dropped (failed()).
class EventWriter {
 public:
  /// Seconds since 1970, of each event.
  using Clock = std::function<double()>;

  /// Rows from the top, channels of a pixel beside each other. Borrowed for the call.
  struct Image {
    int height = 0;                   ///< of rows, > 0
    int width = 0;                    ///< > 0
    int channels = 0;                 ///< 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA
    std::span<const uint8_t> pixels;  ///< height * width * channels of them
  };

  /// One box of a graph.
  struct GraphNode {
    std::string name;                 ///< unique, not empty; what stands before a / is its group
    std::string operation;            ///< "conv2d"
    std::vector<std::string> inputs;  ///< names of nodes
    std::vector<int64_t> shape;       ///< of what it gives; -1: any size
    std::map<std::string, std::string> words{};  ///< what else is shown of it, by name
  };

  using HParam = std::variant<double, std::string, bool>;

  /// Begins a file in `folder`, which is made with its parents where it is missing. Without `clock`
  /// time is the system's. Throws Error with path and cause.
  explicit EventWriter(const std::filesystem::path& folder, Clock clock = {});

  /// Kept as float32, as TensorBoard shows it; NaN and infinities are written as they are.
  void scalar(std::string_view tag, int64_t step, double value);

  /// 30 buckets of one width from the least value to the greatest. NaN and infinities have no place
  /// in it: they are left out, with a warning the first time. No values make an empty histogram.
  void histogram(std::string_view tag, int64_t step, std::span<const float> values);
  void histogram(std::string_view tag, int64_t step, std::span<const double> values);

  /// As PNG. UsageError too for an image whose sizes do not fit its pixels.
  void image(std::string_view tag, int64_t step, const Image& image);

  void text(std::string_view tag, int64_t step, std::string_view markdown);

  /// The boxes and arrows of the Graphs tab. Once a run. UsageError for a name that is empty or
  /// there twice, and for an input that is no node.
  void graph(std::span<const GraphNode> nodes);

  /// What this run was started with, and the tags of the scalars by which runs are compared: a row
  /// of the HParams tab. Once a run, with the same names in all runs of a table. TensorBoard shows
  /// a number that is NaN or infinite as one that was not set.
  void hparams(const std::map<std::string, HParam>& values,
               const std::vector<std::string>& metric_tags);

  /// Returns when the events so far are on the disk, for those who fear for the machine: readers,
  /// and files of a process that died, do not need it.
  void flush();

  const std::filesystem::path& file() const noexcept { return file_; }
  /// Whether writing failed, and events are dropped.
  bool failed() const noexcept { return !descriptor_; }

 private:
  void begin_file(const std::filesystem::path& folder, int64_t seconds);
  template <class T>
  void add_histogram(std::string_view tag, int64_t step, std::span<const T> values);
  void check_tag(std::string_view tag, std::string_view kind);
  /// Appends an event with one Summary.Value, encoded.
  void add(int64_t step, std::string_view value);
  void append_event(std::string_view event);
  /// 0, or the errno of the failure, after which the file is as it was.
  int append(std::string_view record);
  void give_up(std::string_view operation, int error_number);

  Clock clock_;
  std::filesystem::path file_;
  FileDescriptor descriptor_;                                   // none: failed
  int64_t num_bytes_ = 0;                                       // of whole records
  std::map<std::string, std::string_view, std::less<>> kinds_;  // of the tags so far
};

}  // namespace tutti
