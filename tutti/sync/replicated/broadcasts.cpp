#include "tutti/sync/replicated/broadcasts.h"

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <sstream>
#include <unordered_set>

#include "tutti/base/detail/failed_elsewhere.h"
#include "tutti/comm/group/objects.h"
#include "tutti/queues/host_copies.h"
#include "tutti/queues/upload.h"
#include "tutti/sync/detail/bucket_sums.h"
#include "tutti/sync/replicated/detail/loop_parameters.h"
#include "tutti/sync/replicated/detail/torch_state.h"
#include "tutti/sync/tensors.h"

namespace tutti {

namespace detail {
namespace {

void add_sparse_tables(const torch::nn::Module& module, std::unordered_set<const void*>& tables) {
  const auto add = [&](const auto* table) {
    if (table != nullptr && table->options.sparse())
      tables.insert(table->weight.unsafeGetTensorImpl());
  };
  add(dynamic_cast<const torch::nn::EmbeddingImpl*>(&module));
  add(dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module));
  for (const auto& child : module.children()) add_sparse_tables(*child, tables);
}

}  // namespace

LoopParameters parameters_of(const torch::nn::Module& module,
                             const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> known, tables;
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) known.insert(parameter.unsafeGetTensorImpl());
  add_sparse_tables(module, tables);
  LoopParameters all;
  for (auto& [name, tensor] : unique_parameters(module)) {
    const void* const own = tensor.unsafeGetTensorImpl();
    NamedTensors& kind = known.erase(own) == 0  ? all.others
                         : tables.contains(own) ? all.sparse
                                                : all.dense;
    kind.emplace_back(name, tensor);
  }
  if (!known.empty())
    throw UsageError(
        fmt::format("DistributedOptimizer: the optimizer trains {} tensors that are no "
                    "parameters of the module",
                    known.size()));
  if (all.dense.empty() && all.sparse.empty())
    throw UsageError("DistributedOptimizer: the optimizer trains no parameter");
  return all;
}

void check_loop(const DistributedOptimizerOptions& options) {
  check_replicated(options.buckets);
  if (options.adasum && (options.buckets.compression.on() || options.buckets.reduction))
    throw UsageError(
        "DistributedOptimizer: adasum beside compression or another reduction; take one of them");
  if (options.adasum && options.average_losses)
    throw UsageError(
        "DistributedOptimizer: adasum beside average_losses: what Adasum makes of gradients is no "
        "gradient of a loss that an optimizer could be shown; take op = mean");
  const auto fail = [](const char* what, const auto& got, const char* expected) {
    throw UsageError(
        fmt::format("DistributedOptimizer: {} is {}, expected {}", what, got, expected));
  };
  if (options.op != ReduceOp::mean && options.op != ReduceOp::sum)
    fail("op", name_of(options.op), "mean or sum");
  if (options.backward_passes_per_step < 1)
    fail("backward_passes_per_step", options.backward_passes_per_step, "1 or more");
  for (const auto& [name, factor] :
       {std::pair("prescale", options.prescale), std::pair("postscale", options.postscale)})
    if (!std::isfinite(factor) || factor == 0) fail(name, factor, "a finite number other than 0");
}

// Names all fields, so that a new one does not compile until it has a line here, or the reason why
// it has none: the limit is each rank's own.
std::string described(const LoopParameters& all, const DistributedOptimizerOptions& options,
                      const torch::optim::Optimizer& optimizer) {
  const auto& [op, buckets, time_limit, passes, prescale, postscale, adasum, average_losses] =
      options;
  const auto& [bucket_bytes, first_bucket_bytes, compression, reduction] = buckets;
  const auto& [kind, ratio, rank, start_step, min_elements, seed] = compression;
  std::string text = fmt::format(
      "{}, {} backward passes a step, prescale {}, postscale {}, average_losses {}, adasum {}\n"
      "buckets of {} bytes, the first of {}, reduction {}, compression {}\n",
      name_of(op), passes, prescale, postscale, average_losses, adasum, bucket_bytes,
      first_bucket_bytes, make_reduction(buckets)->name(), to_string(compression));
  if (compression.on())
    text += fmt::format("compression of {}, {}, from step {} on, of {} elements or more, seed {}\n",
                        ratio, rank, start_step, min_elements, seed);
  text += fmt::format("the optimizer {}\n", kind_of(optimizer));
  const auto add = [&](const NamedTensors& tensors, const char* how) {
    for (const auto& [name, tensor] : tensors)
      text += fmt::format("\"{}\" {} {}{}{}\n", name, c10::toString(tensor.scalar_type()),
                          c10::str(tensor.sizes()), how, tensor.requires_grad() ? "" : ", frozen");
  };
  add(all.dense, "");
  add(all.sparse, ", of sparse gradients");
  return text;
}

std::string learning_rates_of(const torch::optim::Optimizer& optimizer) {
  std::string text;
  int number = 0;
  try {
    for (const auto& group : optimizer.param_groups())
      text += fmt::format("learning rate {} of group {}\n", group.options().get_lr(), number++);
  } catch (const c10::Error&) {  // options of a user's own that have none
    return {};
  }
  return text;
}

void require_alike(Group& group, const std::string& own, Millis limit,
                   const std::exception_ptr& failure) {
  constexpr std::string_view kFailed = "!";
  const std::vector<std::string> all =
      all_gather_bytes(group, failure ? kFailed : std::string_view(own), limit);
  if (failure) std::rethrow_exception(failure);
  if (const auto failed = std::ranges::find(all, kFailed); failed != all.end())
    throw FailedElsewhere(fmt::format(
        "DistributedOptimizer: rank {} could not make its own; its own message says why",
        failed - all.begin()));
  const auto base = std::ranges::find_if(all, [](const auto& text) { return !text.empty(); });
  for (auto each = base; each != all.end(); ++each) {
    std::istringstream first(*base), other(*each);
    std::string left, right;
    while (!each->empty() && *each != *base) {
      if (!std::getline(first, left)) left = "nothing more";
      if (!std::getline(other, right)) right = "nothing more";
      if (left != right)
        throw Mismatch(fmt::format(
            "DistributedOptimizer: rank {} has {}, rank {} has {}; every rank gives its optimizer "
            "the same parameters and options, and freezes and thaws the same ones",
            base - all.begin(), left, each - all.begin(), right));
    }
  }
}

}  // namespace detail

void broadcast_parameters(const torch::nn::Module& module, Group group, int root) {
  detail::compare_over_group(group, detail::describe(module), kDefaultTimeLimit);
  detail::broadcast_values(group, module, root, kDefaultTimeLimit);
}

void broadcast_buffers(const torch::nn::Module& module, Group group, int root) {
  detail::compare_over_group(group, detail::describe(module), kDefaultTimeLimit);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : unique_buffers(module)) {
    const at::Tensor values =
        on_host(tensor.detach(), Deadline(patience_with_device(kDefaultTimeLimit)),
                "the value of " + name + " for all ranks")
            .contiguous();
    group.broadcast(span_of(values), root).wait();
    copy_queued(tensor, values);
  }
}

// Every rank has what all have brought, and so throws the same.
static void require_same_optimizers(Group& group, const std::string& own) {
  const std::vector<std::string> all = all_gather_bytes(group, own);
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw Mismatch(fmt::format(
          "broadcast_optimizer_state: rank 0 has {}, rank {} has {}; every rank makes the same "
          "optimizer",
          all[0], rank, all[rank]));
}

// LBFGS has places for what it computes within a step, which it cannot write once they are made,
// and makes again.
static void clear_places(torch::optim::Optimizer& optimizer) {
  for (const auto& [parameter, state] : optimizer.state())
    if (auto* const own = dynamic_cast<torch::optim::LBFGSParamState*>(state.get()))
      own->al(std::nullopt);
}

static std::string saved_bytes_of(torch::optim::Optimizer& optimizer) {
  clear_places(optimizer);
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return out.str();
}

// What it had is there again where that throws.
static void load_state(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size(),
                    optimizer.param_groups().at(0).params().at(0).device());
  auto before = std::move(optimizer.state());
  optimizer.state().clear();
  try {
    optimizer.load(archive);
  } catch (...) {
    optimizer.state() = std::move(before);
    throw;
  }
}

void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, Group group, int root) {
  std::string own = detail::kind_of(optimizer) + " with groups of";
  for (const auto& each : optimizer.param_groups()) own += fmt::format(" {}", each.params().size());
  own += " parameters";
  require_same_optimizers(group, own);
  std::string bytes;
  std::exception_ptr failure;
  if (group.rank() == root) try {
      bytes = saved_bytes_of(optimizer);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  auto length = failure ? int64_t{-1} : std::ssize(bytes);
  group.broadcast(span_of(std::span(&length, 1)), root).wait();
  if (failure) std::rethrow_exception(failure);
  if (length < 0)
    throw detail::FailedElsewhere(fmt::format(
        "broadcast_optimizer_state: rank {} could not save its optimizer; its own message says why",
        root));
  bytes.resize(static_cast<size_t>(length));
  group.broadcast({bytes.data(), length, DType::uint8}, root).wait();
  if (group.rank() != root) try {
      load_state(optimizer, bytes);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  int64_t failed = failure ? 1 : 0;
  std::vector<int64_t> all(static_cast<size_t>(group.size()));
  group.all_gather(span_of(std::span(&failed, 1)), span_of(std::span(all))).wait();
  if (failure) std::rethrow_exception(failure);
  if (const auto other = std::ranges::find(all, 1); other != all.end())
    throw detail::FailedElsewhere(fmt::format(
        "broadcast_optimizer_state: rank {} could not load it; its own message says why",
        other - all.begin()));
}

}  // namespace tutti
