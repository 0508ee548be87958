/// Where the calls of a graph can be cut in two, and what each side has. Not for users. A call is
/// *free* when it depends on sizes and constants alone: whoever needs what it gives makes it anew,
/// and it crosses no cut. Thread rule: const once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/pt2/program.h"

namespace tutti::exported {

/// None for what is not sent between ranks: complex numbers.
std::optional<DType> dtype_sent(pt2::Element element);

/// A value of the graph: what a call gives, or an input.
struct CutValue {
  enum class Origin : uint8_t { call, user, parameter, buffer, fixed };
  std::string name;
  Origin origin = Origin::call;
  std::vector<int> memory;                ///< values in whose memory it may be, itself among them
  bool trained = false;                   ///< of a parameter
  int tensor = -1;                        ///< the first value that is this parameter, or buffer
  const pt2::TensorMeta* meta = nullptr;  ///< null: a number, or unknown
};

struct CutCall {
  std::string words;   ///< "aten::relu, net.py:12, in forward: ..."
  std::string module;  ///< the innermost: "layer1.0.conv1"; or ""
  std::vector<int> reads, makes;
  std::vector<int> writes;  ///< values in whose memory it writes, or may
  bool draws = false;       ///< random numbers
  bool stops_gradients = false;
  std::optional<pt2::Size> size_of{};  ///< it asks a tensor for this size
};

/// A tensor over a cut: [batch, shape...].
struct CutBorder {
  DType dtype = DType::float32;
  std::vector<int64_t> shape;
  bool operator==(const CutBorder&) const = default;
};

/// The calls from one cut to the next.
struct CutPart {
  std::vector<size_t> calls;  ///< the free ones from before it too
  std::vector<int> inputs, outputs;
  std::vector<int> held;  ///< parameters, buffers and constants that it reads
};

class CutGraph {
 public:
  /// `sizes`: of symbols besides the batch's, which is the first size of the first user's input.
  CutGraph(std::vector<CutValue> values, std::vector<CutCall> calls, std::vector<int> outputs,
           std::map<std::string, int64_t> sizes);

  const std::vector<CutValue>& values() const noexcept { return values_; }
  const std::vector<CutCall>& calls() const noexcept { return calls_; }

  /// Why nothing can be cut before call `place`, "" where it can.
  std::string why_no_cut(size_t place) const;
  /// Whether all that comes before call `place` is free.
  bool is_beginning(size_t place) const;
  /// Values that are sent over it: neither free nor held, in the order in which they are made.
  std::vector<int> across(size_t place) const;
  /// Of across(), of a place that can be cut.
  std::vector<CutBorder> borders(size_t place) const;
  CutPart part(size_t begin, size_t end) const;

  /// Whether a call changes its memory, or may.
  bool is_written(int value) const;
  /// Whether gradients may flow back to it.
  bool has_gradient(int value) const { return gradient_[static_cast<size_t>(value)]; }
  bool is_free(int value) const { return free_[static_cast<size_t>(value)]; }
  /// A size that is known without the batch; none: the batch's, or unknown.
  std::optional<int64_t> known(const pt2::Size& size) const;
  bool is_batch(const pt2::Size& size) const;
  /// Trained parameters that a call from `begin` to `end` is the first to read.
  bool owns(size_t begin, size_t end) const;
  /// How often a call from `begin` to `end` reads the parameter, under any of its names.
  int reads_of(int parameter, size_t begin, size_t end) const;

 private:
  void find_lives();
  void find_free();
  void find_gradients();
  void find_gradients_of_writes(int call);
  bool is_size_of_known(const CutCall& call) const;
  std::string why_no_border(int value) const;
  bool is_dense(const pt2::TensorMeta& meta) const;
  std::string words_of(int value) const;
  const CutValue& value(int number) const { return values_[static_cast<size_t>(number)]; }

  std::vector<CutValue> values_;
  std::vector<CutCall> calls_;
  std::vector<int> outputs_;
  std::map<std::string, int64_t> sizes_;
  std::optional<pt2::Size> batch_;
  // By value: the call that makes it (-1: an input), that reads it first, last, and that writes to
  // its memory last.
  std::vector<int> made_, first_read_, last_read_, last_write_;
  std::vector<bool> free_, gradient_;
};

/// A place to cut a network, which has a graph of training and maybe another of evaluation.
struct CutPlace {
  size_t training = 0, evaluation = 0;  ///< calls before which it is
  std::vector<std::string> names;       ///< modules that begin there, the outermost first
};

/// What a cut before each module of a network is, or why there is none.
struct CutPlaces {
  std::vector<CutPlace> all;                ///< in order, without the beginning
  std::map<std::string, std::string> whys;  ///< by module that cannot begin a part

  /// Those of `all`, by number, so that each part from one to the next has parameters to train.
  std::vector<size_t> with_parameters(const CutGraph& training) const;
};

/// Both graphs have to be cut before the same module, and the same has to cross. `evaluation` may
/// be null.
CutPlaces places_of(const CutGraph& training, const CutGraph* evaluation);

}  // namespace tutti::exported
