#include "tutti/nn/collectives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/nn/detail/by_host.h"
#include "tutti/sync/tensors.h"

namespace tutti::nn {

namespace {

enum class Kind : uint8_t { all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all };
constexpr std::string_view kKindNames[] = {"all_reduce", "all_gather", "reduce_scatter",
                                           "broadcast",  "reduce",     "all_to_all"};

/// Of one replica's input, when it calls.
enum class Gradient : uint8_t { disabled, not_needed, needed };

constexpr int64_t kMaxDims = 16;
constexpr int64_t kFields = 6;

/// What one replica calls.
struct Call {
  Kind kind;
  ReduceOp op = ReduceOp::sum;
  int64_t place = 0;  ///< axis or root
  at::ScalarType dtype = at::kFloat;
  Gradient gradient = Gradient::disabled;
  std::vector<int64_t> shape;
  std::vector<int64_t> sizes;  ///< of parts, one a replica

  std::string_view name() const { return kKindNames[static_cast<size_t>(kind)]; }
  bool has_op() const { return kind == Kind::all_reduce || kind == Kind::reduce_scatter; }
  bool has_axis() const {
    return kind == Kind::all_gather || kind == Kind::reduce_scatter || kind == Kind::all_to_all;
  }
  /// "reduce_scatter (mean) of float [4, 3] along axis 0 in parts of [1, 3]"
  std::string words() const;
  /// What must be the same on all replicas.
  bool agrees_with(const Call& other) const;
};

std::string Call::words() const {
  std::string text = fmt::format("{}{} of {} [{}]", name(),
                                 has_op() ? fmt::format(" ({})", name_of(op)) : std::string(),
                                 c10::toString(dtype), fmt::join(shape, ", "));
  if (has_axis()) text += fmt::format(" along axis {}", place);
  if (kind == Kind::broadcast) text += fmt::format(" from replica {}", place);
  if (kind == Kind::reduce_scatter)
    text += fmt::format(" in parts of [{}]", fmt::join(sizes, ", "));
  return text;
}

bool Call::agrees_with(const Call& other) const {
  if (kind != other.kind || op != other.op || place != other.place || dtype != other.dtype ||
      shape.size() != other.shape.size())
    return false;
  const bool any_length = kind == Kind::all_gather || kind == Kind::all_to_all;
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] != other.shape[d] && !(any_length && static_cast<int64_t>(d) == place))
      return false;
  return kind != Kind::reduce_scatter || sizes == other.sizes;
}

std::vector<int64_t> encoded(const Call& call, int replicas) {
  std::vector<int64_t> code{static_cast<int64_t>(call.kind),
                            static_cast<int64_t>(call.op),
                            call.place,
                            static_cast<int64_t>(call.dtype),
                            static_cast<int64_t>(call.gradient),
                            static_cast<int64_t>(call.shape.size())};
  code.insert(code.end(), call.shape.begin(), call.shape.end());
  code.resize(kFields + kMaxDims);
  code.insert(code.end(), call.sizes.begin(), call.sizes.end());
  code.resize(static_cast<size_t>(kFields + kMaxDims + replicas));
  return code;
}

Call decoded(std::span<const int64_t> code) {
  const auto shape = code.subspan(kFields, static_cast<size_t>(code[5]));
  const auto sizes = code.subspan(kFields + kMaxDims);
  return {.kind = static_cast<Kind>(code[0]),
          .op = static_cast<ReduceOp>(code[1]),
          .place = code[2],
          .dtype = static_cast<at::ScalarType>(code[3]),
          .gradient = static_cast<Gradient>(code[4]),
          .shape = {shape.begin(), shape.end()},
          .sizes = {sizes.begin(), sizes.end()}};
}

/// The same error on every replica.
void require_agreement(const std::vector<Call>& calls) {
  for (size_t r = 1; r < calls.size(); ++r)
    if (!calls[r].agrees_with(calls[0]))
      throw Mismatch(fmt::format(
          "{}: replica {} calls {}, replica 0 calls {}; expected one operation, dtype and shape on "
          "all replicas{}",
          calls[0].name(), r, calls[r].words(), calls[0].words(),
          calls[0].kind == Kind::all_gather || calls[0].kind == Kind::all_to_all
              ? fmt::format(", but for the size along axis {}", calls[0].place)
              : ""));
  const auto with = [&](Gradient wanted) {
    return std::ranges::find(calls, wanted, &Call::gradient) - calls.begin();
  };
  const auto all = static_cast<int64_t>(calls.size());
  if (with(Gradient::needed) < all && with(Gradient::disabled) < all)
    throw Mismatch(fmt::format(
        "{}: replica {} needs a gradient, replica {} has gradients disabled (NoGradGuard); enable "
        "them on all replicas or on none",
        calls[0].name(), with(Gradient::needed), with(Gradient::disabled)));
}

/// A call that all replicas have made alike.
struct Agreed {
  ReplicaContext replica;
  std::vector<Call> calls;  ///< by rank

  Group& group() { return replica.group(); }
  const Call& own() const { return calls[static_cast<size_t>(replica.rank())]; }
  bool needs_gradient() const {
    return std::ranges::any_of(calls, [](const Call& c) { return c.gradient == Gradient::needed; });
  }
};

/// Fills in what the tensor says, and brings all replicas' calls together.
Agreed agree(ReplicaContext& replica, const at::Tensor& x, Call call) {
  Group& group = replica.group_of_all(call.name());
  if (!x.defined()) throw UsageError(fmt::format("{}: the tensor is undefined", call.name()));
  if (x.dim() > kMaxDims)
    throw UsageError(
        fmt::format("{}: got {} dimensions, expected at most {}", call.name(), x.dim(), kMaxDims));
  call.dtype = x.scalar_type();
  call.shape = x.sizes().vec();
  call.gradient = !at::GradMode::is_enabled() ? Gradient::disabled
                  : x.requires_grad()         ? Gradient::needed
                                              : Gradient::not_needed;
  std::vector<int64_t> own = encoded(call, group.size());
  std::vector<int64_t> all(own.size() * static_cast<size_t>(group.size()));
  group.all_gather(span_of(std::span(own)), span_of(std::span(all)), replica.time_limit())
      .wait(replica.time_limit());
  Agreed agreed{replica, {}};
  for (size_t begin = 0; begin < all.size(); begin += own.size())
    agreed.calls.push_back(decoded(std::span(all).subspan(begin, own.size())));
  require_agreement(agreed.calls);
  return agreed;
}

// ---- autograd ----

using Map = std::function<at::Tensor(const at::Tensor&)>;

struct Transpose : torch::CustomClassHolder {
  explicit Transpose(Map map_in) : map(std::move(map_in)) {}
  Map map;
};

/// Every collective is a linear map over the tensors of all replicas; its gradient is the
/// transposed map.
struct LinearMap : torch::autograd::Function<LinearMap> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const Map& map, const Map& transpose) {
    context->saved_data["transpose"] =
        c10::IValue::make_capsule(c10::make_intrusive<Transpose>(transpose));
    return map(x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& above) {
    const auto capsule = context->saved_data["transpose"].toCapsule();
    return {c10::static_intrusive_pointer_cast<Transpose>(capsule)->map(above[0]), {}, {}};
  }
};

/// Where any replica needs a gradient, all have a node: each takes part in backward.
at::Tensor apply(Agreed& agreed, const at::Tensor& x, const Map& map, const Map& transpose) {
  if (!agreed.needs_gradient()) return map(x.detach());
  agreed.replica.meets_in_backward();
  return LinearMap::apply(x.requires_grad() ? x : x.detach().requires_grad_(), map, transpose);
}

// ---- parts along an axis ----

int64_t checked_axis(Kind kind, const at::Tensor& x, int64_t axis) {
  const int64_t dims = x.defined() ? x.dim() : 0;
  if (axis < -dims || axis >= dims)
    throw UsageError(fmt::format("{}: axis is {}, the tensor has {} dimensions",
                                 kKindNames[static_cast<size_t>(kind)], axis, dims));
  return axis < 0 ? axis + dims : axis;
}

void require_sum_or_mean(Kind kind, ReduceOp op) {
  if (op != ReduceOp::sum && op != ReduceOp::mean)
    throw UsageError(fmt::format("{}: reduction {}, expected sum or mean",
                                 kKindNames[static_cast<size_t>(kind)], name_of(op)));
}

std::vector<int64_t> checked_sizes(Kind kind, const ReplicaContext& replica, int64_t rows,
                                   std::vector<int64_t> sizes) {
  const std::string_view name = kKindNames[static_cast<size_t>(kind)];
  const auto replicas = static_cast<int64_t>(replica.num_replicas_in_sync());
  if (sizes.empty()) {
    if (rows % replicas != 0)
      throw UsageError(
          fmt::format("{}: {} rows do not divide into {} equal parts; give the sizes of the parts",
                      name, rows, replicas));
    return std::vector<int64_t>(static_cast<size_t>(replicas), rows / replicas);
  }
  const bool valid = std::ranges::all_of(sizes, [](int64_t size) { return size >= 0; });
  if (!valid || static_cast<int64_t>(sizes.size()) != replicas ||
      std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) != rows)
    throw UsageError(
        fmt::format("{}: got parts of [{}], expected {} sizes of 0 or more, together {}", name,
                    fmt::join(sizes, ", "), replicas, rows));
  return sizes;
}

/// The axis comes first, so that parts lie one behind the other.
at::Tensor parts_first(const at::Tensor& x, int64_t axis) {
  return x.movedim(axis, 0).contiguous();
}
at::Tensor parts_back(const at::Tensor& y, int64_t axis) { return y.movedim(0, axis).contiguous(); }

/// Memory for `rows` rows like those of `x`.
at::Tensor rows_like(const at::Tensor& x, int64_t rows) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = rows;
  return at::empty(shape, x.options());
}

/// Elements of so many rows each, in tensors like `x`.
std::vector<int64_t> elements(std::vector<int64_t> rows, const at::Tensor& x) {
  const int64_t row = c10::multiply_integers(x.sizes().slice(1));
  for (int64_t& count : rows) count *= row;
  return rows;
}

/// Gradient of broadcast: the sum on `root`, zero elsewhere.
at::Tensor reduce(ReplicaContext replica, const at::Tensor& x, int root) {
  Agreed agreed = agree(replica, x, {.kind = Kind::reduce, .place = root});
  const Map map = [&](const at::Tensor& input) {
    const at::Tensor y = input.clone(at::MemoryFormat::Contiguous);
    const Millis limit = replica.time_limit();
    agreed.group().reduce(span_of(y), ReduceOp::sum, root, limit).wait(limit);
    return replica.rank() == root ? y : at::zeros_like(y);
  };
  return apply(agreed, x, map, [replica, root](const at::Tensor& g) mutable {
    return broadcast(replica, g, root);
  });
}

/// Replicas exchange on the CPU. The way there and back is autograd's, so that backward exchanges
/// on the replica's own thread: that of its device may be another replica's too, which would wait.
template <class Exchange>
at::Tensor by_cpu(const ReplicaContext& replica, Kind kind, const at::Tensor& x,
                  Exchange exchange) {
  const Millis limit = replica.time_limit();
  const std::string what =
      fmt::format("{} on replica {}", kKindNames[static_cast<size_t>(kind)], replica.rank());
  const at::Tensor y = exchange(detail::from_device(x, limit, "the input of " + what));
  return detail::to_device(y, x.device(), limit, "the output of " + what);
}

bool elsewhere(const at::Tensor& x) { return x.defined() && !x.is_cpu(); }

}  // namespace

at::Tensor all_reduce(ReplicaContext& replica, const at::Tensor& x, ReduceOp op) {
  if (elsewhere(x))
    return by_cpu(replica, Kind::all_reduce, x,
                  [&](const at::Tensor& y) { return all_reduce(replica, y, op); });
  require_sum_or_mean(Kind::all_reduce, op);
  Agreed agreed = agree(replica, x, {.kind = Kind::all_reduce, .op = op});
  const Map map = [&](const at::Tensor& input) {
    const at::Tensor y = input.clone(at::MemoryFormat::Contiguous);
    agreed.group().all_reduce(span_of(y), op, replica.time_limit()).wait(replica.time_limit());
    return y;
  };
  return apply(agreed, x, map, [replica = replica, op](const at::Tensor& g) mutable {
    return all_reduce(replica, g, op);
  });
}

std::vector<at::Tensor> all_reduce(ReplicaContext& replica, const std::vector<at::Tensor>& xs,
                                   ReduceOp op) {
  std::map<std::pair<at::ScalarType, std::string>, std::vector<size_t>> alike;
  for (size_t i = 0; i < xs.size(); ++i) {
    if (!xs[i].defined())
      throw UsageError(fmt::format("all_reduce: tensor {} of {} is undefined", i + 1, xs.size()));
    alike[{xs[i].scalar_type(), xs[i].device().str()}].push_back(i);
  }
  std::vector<at::Tensor> sums(xs.size());
  for (const auto& [kind, places] : alike) {
    std::vector<at::Tensor> flat;
    std::vector<int64_t> sizes;
    for (const size_t i : places) {
      flat.push_back(xs[i].reshape({-1}));
      sizes.push_back(xs[i].numel());
    }
    const auto parts = all_reduce(replica, at::cat(flat), op).split_with_sizes(sizes);
    for (size_t k = 0; k < places.size(); ++k)
      sums[places[k]] = parts[k].reshape(xs[places[k]].sizes());
  }
  return sums;
}

at::Tensor all_gather(ReplicaContext& replica, const at::Tensor& x, int64_t axis) {
  if (elsewhere(x))
    return by_cpu(replica, Kind::all_gather, x,
                  [&](const at::Tensor& y) { return all_gather(replica, y, axis); });
  axis = checked_axis(Kind::all_gather, x, axis);
  Agreed agreed = agree(replica, x, {.kind = Kind::all_gather, .place = axis});
  std::vector<int64_t> sizes;
  for (const Call& call : agreed.calls) sizes.push_back(call.shape[static_cast<size_t>(axis)]);
  const Map map = [&](const at::Tensor& input) {
    const at::Tensor own = parts_first(input, axis);
    const at::Tensor all = rows_like(own, std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
    agreed.group()
        .all_gather(span_of(own), span_of(all), elements(sizes, own), replica.time_limit())
        .wait(replica.time_limit());
    return parts_back(all, axis);
  };
  return apply(agreed, x, map, [replica = replica, axis, sizes](const at::Tensor& g) mutable {
    return reduce_scatter(replica, g, ReduceOp::sum, axis, sizes);
  });
}

at::Tensor reduce_scatter(ReplicaContext& replica, const at::Tensor& x, ReduceOp op, int64_t axis,
                          const std::vector<int64_t>& sizes) {
  if (elsewhere(x))
    return by_cpu(replica, Kind::reduce_scatter, x,
                  [&](const at::Tensor& y) { return reduce_scatter(replica, y, op, axis, sizes); });
  require_sum_or_mean(Kind::reduce_scatter, op);
  axis = checked_axis(Kind::reduce_scatter, x, axis);
  const auto parts = checked_sizes(Kind::reduce_scatter, replica, x.size(axis), sizes);
  Agreed agreed =
      agree(replica, x, {.kind = Kind::reduce_scatter, .op = op, .place = axis, .sizes = parts});
  const Map map = [&](const at::Tensor& input) {
    const at::Tensor all = parts_first(input, axis);
    const at::Tensor own = rows_like(all, parts[static_cast<size_t>(replica.rank())]);
    agreed.group()
        .reduce_scatter(span_of(all), span_of(own), op, elements(parts, all), replica.time_limit())
        .wait(replica.time_limit());
    return parts_back(own, axis);
  };
  return apply(agreed, x, map, [replica = replica, axis, op](const at::Tensor& g) mutable {
    const at::Tensor all = all_gather(replica, g, axis);
    return op == ReduceOp::mean ? all / replica.num_replicas_in_sync() : all;
  });
}

at::Tensor broadcast(ReplicaContext& replica, const at::Tensor& x, int root) {
  if (elsewhere(x))
    return by_cpu(replica, Kind::broadcast, x,
                  [&](const at::Tensor& y) { return broadcast(replica, y, root); });
  if (root < 0 || root >= replica.num_replicas_in_sync())
    throw UsageError(fmt::format("broadcast: root is {}, expected 0 to {}", root,
                                 replica.num_replicas_in_sync() - 1));
  Agreed agreed = agree(replica, x, {.kind = Kind::broadcast, .place = root});
  const Map map = [&](const at::Tensor& input) {
    const at::Tensor y = input.clone(at::MemoryFormat::Contiguous);
    agreed.group().broadcast(span_of(y), root, replica.time_limit()).wait(replica.time_limit());
    return y;
  };
  return apply(agreed, x, map,
               [replica = replica, root](const at::Tensor& g) { return reduce(replica, g, root); });
}

at::Tensor all_to_all(ReplicaContext& replica, const at::Tensor& x, int64_t axis,
                      const std::vector<int64_t>& sizes) {
  if (elsewhere(x))
    return by_cpu(replica, Kind::all_to_all, x,
                  [&](const at::Tensor& y) { return all_to_all(replica, y, axis, sizes); });
  axis = checked_axis(Kind::all_to_all, x, axis);
  const auto sent = checked_sizes(Kind::all_to_all, replica, x.size(axis), sizes);
  Agreed agreed = agree(replica, x, {.kind = Kind::all_to_all, .place = axis, .sizes = sent});
  std::vector<int64_t> come;
  for (const Call& call : agreed.calls)
    come.push_back(call.sizes[static_cast<size_t>(replica.rank())]);
  const Map map = [&](const at::Tensor& input) {
    const at::Tensor parts = parts_first(input, axis);
    const at::Tensor y = rows_like(parts, std::accumulate(come.begin(), come.end(), int64_t{0}));
    agreed.group()
        .all_to_all(span_of(parts), span_of(y), elements(sent, parts), elements(come, y),
                    replica.time_limit())
        .wait(replica.time_limit());
    return parts_back(y, axis);
  };
  return apply(agreed, x, map, [replica = replica, axis, come](const at::Tensor& g) mutable {
    return all_to_all(replica, g, axis, come);
  });
}

bool meets_in_forward(const torch::nn::Module& module) {
  if (dynamic_cast<const MeetsInForward*>(&module) != nullptr) return true;
  return std::ranges::any_of(module.children(),
                             [](const auto& child) { return meets_in_forward(*child); });
}

}  // namespace tutti::nn
