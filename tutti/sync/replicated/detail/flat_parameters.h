/// FlatParameters: the trained parameters of a replica that are of one dtype, one behind the other,
/// as they are averaged. Not for users.
///
/// Loops are plain ones, which have the same bits whatever instructions a processor has.
/// Thread rule: one thread at a time per object.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/sync/local_options.h"
#include "tutti/sync/slots.h"

namespace tutti::detail {

struct FlatParameters {
  struct Piece {
    size_t parameter = 0;
    int64_t begin = 0, count = 0;
  };
  DType dtype = DType::float32;
  std::vector<Piece> pieces;
  int64_t count = 0;
  at::Tensor outer, velocity;  ///< of the last averaging
  at::Tensor sum;              ///< what is exchanged

  MemorySpan span() const { return {sum.data_ptr(), count, dtype}; }
  static at::Tensor part(const at::Tensor& of, const Piece& piece) {
    return of.narrow(0, piece.begin, piece.count);
  }

  /// Parameters are float32 or float64.
  static std::vector<FlatParameters> of(const Slots& layout,
                                        const std::vector<at::Tensor>& parameters) {
    std::map<DType, FlatParameters> by_dtype;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const ParameterSlot& slot = layout.slots[i];
      if (!slot.trained) continue;
      FlatParameters& flat = by_dtype[slot.dtype];
      flat.dtype = slot.dtype;
      flat.pieces.push_back({i, flat.count, slot.num_elements});
      flat.count += slot.num_elements;
    }
    std::vector<FlatParameters> all;
    for (auto& [dtype, flat] : by_dtype) {
      const auto type = dtype == DType::float64 ? at::kDouble : at::kFloat;
      for (at::Tensor* const memory : {&flat.sum, &flat.outer, &flat.velocity})
        *memory = at::zeros({flat.count}, type);
      flat.begin_from(parameters);
      all.push_back(std::move(flat));
    }
    return all;
  }

  /// The next changes are of these.
  void begin_from(const std::vector<at::Tensor>& parameters) {
    for (const Piece& piece : pieces)
      part(outer, piece).copy_(parameters[piece.parameter].detach().reshape({-1}));
  }

  /// As if those that are undefined were zero.
  void put_gradients(std::span<const at::Tensor> gradients) {
    sum.zero_();
    for (const Piece& piece : pieces)
      if (piece.parameter < gradients.size() && gradients[piece.parameter].defined())
        part(sum, piece).copy_(gradients[piece.parameter].reshape({-1}));
  }

  /// What parameters have changed since the last averaging, which `before` has.
  void put_changes(const std::vector<at::Tensor>& parameters, const FlatParameters& before) {
    by_type([&](auto zero) {
      using T = decltype(zero);
      const T* const then = before.outer.data_ptr<T>();
      T* const change = sum.data_ptr<T>();
      for (const Piece& piece : pieces) {
        const T* const now = parameters[piece.parameter].data_ptr<T>();
        for (int64_t i = 0; i < piece.count; ++i)
          change[piece.begin + i] = now[i] - then[piece.begin + i];
      }
    });
  }

  /// `sum` is the mean change of all replicas: its opposite is the gradient.
  void step(const OuterOptimizer& by) {
    by_type([&](auto zero) {
      using T = decltype(zero);
      const auto rate = static_cast<T>(by.learning_rate), momentum = static_cast<T>(by.momentum);
      const T* const change = sum.data_ptr<T>();
      T* const to = outer.data_ptr<T>();
      T* const kept = velocity.data_ptr<T>();
      for (int64_t i = 0; i < count; ++i) {
        T whole = change[i];
        if (by.momentum != 0) {
          kept[i] = momentum * kept[i] + change[i];
          whole = by.nesterov ? change[i] + momentum * kept[i] : kept[i];
        }
        to[i] += rate * whole;
      }
    });
  }

  void copy_to(const std::vector<at::Tensor>& parameters, const at::Tensor& from) const {
    for (const Piece& piece : pieces)
      parameters[piece.parameter].detach().copy_(
          part(from, piece).reshape(parameters[piece.parameter].sizes()));
  }

 private:
  template <class Visit>
  void by_type(const Visit& visit) const {
    dtype == DType::float64 ? visit(double{}) : visit(float{});
  }
};

}  // namespace tutti::detail
