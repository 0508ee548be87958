#include "tutti/nn/sync_batch_norm.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tutti/base/error.h"
#include "tutti/queues/host_copies.h"
#include "tutti/queues/upload.h"
#include "tutti/sync/tensors.h"

namespace tutti::nn {

namespace {

/// Of the values of each channel, over all replicas.
struct Statistics {
  double count = 0;
  std::vector<double> mean;
  std::vector<double> squares;  ///< sum of (x - mean)^2

  void add(double other_count, const double* other_mean, const double* other_squares);
  at::Tensor mean_like(const at::Tensor& one) const { return vector_like(mean, 1.0, one); }
  at::Tensor variance_like(const at::Tensor& one, double divisor) const {
    return vector_like(squares, divisor, one);
  }

 private:
  static at::Tensor vector_like(const std::vector<double>& values, double divisor,
                                const at::Tensor& one) {
    return on_device((at::tensor(values, at::kDouble) / divisor).to(one.scalar_type()),
                     one.device());
  }
};

void Statistics::add(double other_count, const double* other_mean, const double* other_squares) {
  if (other_count == 0) return;
  const double before = count;
  count += other_count;
  for (size_t c = 0; c < mean.size(); ++c) {
    const double apart = other_mean[c] - mean[c];
    mean[c] += apart * (other_count / count);
    squares[c] += other_squares[c] + apart * apart * (before * other_count / count);
  }
}

/// In what statistics are computed; 16 bits are too few.
at::Tensor wide(const at::Tensor& x) {
  const bool half = x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
  return half ? x.to(at::kFloat) : x;
}

Deadline patience(const ReplicaContext& replica) {
  return Deadline(patience_with_device(replica.time_limit()));
}

std::string words(const char* what, const ReplicaContext& replica) {
  return fmt::format("{} of SyncBatchNorm on replica {}", what, replica.rank());
}

Statistics statistics_of_all(ReplicaContext& replica, const at::Tensor& x) {
  const auto channels = static_cast<size_t>(x.size(1));
  std::vector<double> own(1 + 2 * channels);
  if (x.numel() > 0) {
    const auto [mean, variance] = at::batch_norm_update_stats(wide(x), {}, {}, 0.0);
    own[0] = static_cast<double>(x.numel()) / static_cast<double>(channels);
    const auto here = on_host({mean, variance}, patience(replica), words("statistics", replica));
    const at::Tensor means = here[0].to(at::kDouble).contiguous();
    const at::Tensor squares = (here[1].to(at::kDouble) * own[0]).contiguous();
    std::copy_n(means.data_ptr<double>(), channels, own.begin() + 1);
    std::copy_n(squares.data_ptr<double>(), channels,
                own.begin() + 1 + static_cast<int64_t>(channels));
  }
  std::vector<double> all(own.size() * static_cast<size_t>(replica.num_replicas_in_sync()));
  replica.group()
      .all_gather(span_of(std::span(own)), span_of(std::span(all)), replica.time_limit())
      .wait(replica.time_limit());
  Statistics statistics{0, std::vector<double>(channels), std::vector<double>(channels)};
  for (const double* part = all.data(); part != all.data() + all.size(); part += own.size())
    statistics.add(part[0], part + 1, part + 1 + channels);
  return statistics;
}

/// What backward needs beside tensors.
struct Kept : torch::CustomClassHolder {
  ReplicaContext replica;
  double count;  ///< of all replicas
  double epsilon;
  Kept(const ReplicaContext& replica_in, double count_in, double epsilon_in)
      : replica(replica_in), count(count_in), epsilon(epsilon_in) {}
};

/// LibTorch's kernels for evaluation normalise by given statistics, which here are the batch's.
at::Tensor normalised(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& mean, const at::Tensor& variance, double epsilon) {
  if (x.numel() == 0) return x.clone();
  return std::get<0>(at::native_batch_norm(x, weight, bias, mean, variance, false, 0.0, epsilon));
}

struct Normalise : torch::autograd::Function<Normalise> {
  using Context = torch::autograd::AutogradContext;

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const at::Tensor& mean,
                            const at::Tensor& variance, const c10::intrusive_ptr<Kept>& kept) {
    context->save_for_backward({x, weight, mean, variance});
    context->saved_data["kept"] = c10::IValue::make_capsule(kept);
    return normalised(x, weight, bias, mean, variance, kept->epsilon);
  }

  // With xhat = (x - mean) / s, s = sqrt(var + eps), and sums over all replicas' values:
  //   dx = weight / s * (g - sum(g) / N - xhat * sum(g xhat) / N)
  static torch::autograd::tensor_list backward(Context* context,
                                               const torch::autograd::tensor_list& above) {
    if (at::GradMode::is_enabled())
      throw UsageError("SyncBatchNorm: second derivatives (create_graph) are not supported");
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &variance = saved[3];
    const auto kept =
        c10::static_intrusive_pointer_cast<Kept>(context->saved_data["kept"].toCapsule());

    const at::Tensor& g = above[0];
    auto [dx, dweight, dbias] =
        x.numel() == 0 ? std::tuple(at::zeros_like(x), at::zeros_like(mean), at::zeros_like(mean))
                       : at::native_batch_norm_backward(g, x, weight, mean, variance, {}, {}, false,
                                                        kept->epsilon, {true, true, true});
    at::Tensor sums = on_host(at::stack({dbias, dweight}), patience(kept->replica),
                              words("sums of gradients", kept->replica))
                          .to(at::kDouble)
                          .contiguous();
    const Millis limit = kept->replica.time_limit();
    kept->replica.group().all_reduce(span_of(sums), ReduceOp::sum, limit).wait(limit);
    sums = on_device(sums, x.device());

    const at::Tensor scale =
        weight.to(at::kDouble) / kept->count * at::rsqrt(variance.to(at::kDouble) + kept->epsilon);
    const at::Tensor through_mean = (scale * sums[0]).to(mean.scalar_type());
    const at::Tensor through_variance = (scale * sums[1]).to(mean.scalar_type());
    dx.sub_(normalised(x, through_variance, through_mean, mean, variance, kept->epsilon));
    return {dx, dweight.to(weight.scalar_type()), dbias.to(weight.scalar_type()), {}, {}, {}};
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options)
    : torch::nn::BatchNormImplBase<0, SyncBatchNormImpl>(options) {}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& x) {
  if (!x.defined() || x.dim() < 2 || x.size(1) != options.num_features())
    throw UsageError(fmt::format("SyncBatchNorm: got {}, expected [batch, {}, ...]",
                                 x.defined() ? c10::str(x.sizes()) : "an undefined tensor",
                                 options.num_features()));
  const at::ScalarType expected = weight.defined()         ? weight.scalar_type()
                                  : running_mean.defined() ? running_mean.scalar_type()
                                                           : wide(x).scalar_type();
  if (!x.is_floating_point() || (x.scalar_type() != expected && wide(x).scalar_type() != expected))
    throw UsageError(fmt::format("SyncBatchNorm: got {}, expected {}{}",
                                 c10::toString(x.scalar_type()), c10::toString(expected),
                                 expected == at::kFloat ? " or 16 bits" : ""));
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& x) {
  if (!is_training()) return BatchNormImplBase::forward(x);
  ReplicaContext* const replica = ReplicaContext::current();
  if (replica == nullptr)
    throw UsageError(
        "SyncBatchNorm: a forward pass in training outside of Strategy::run has no other replicas; "
        "call it inside, or where an OnGroup lives, or eval() first");
  _check_input_dim(x);
  if (replica->group_of_all("SyncBatchNorm").size() == 1) return BatchNormImplBase::forward(x);
  if (replica->shares_device())
    throw UsageError(fmt::format(
        "SyncBatchNorm on replica {} ({}): another replica shares its device, where backward "
        "passes "
        "take turns on one thread and cannot wait for each other; give each a device of its own",
        replica->rank(), replica->device().str()));
  replica->meets_in_backward();
  const Statistics all = statistics_of_all(*replica, x.detach());
  if (all.count < 2)
    throw UsageError(fmt::format(
        "SyncBatchNorm: {} value a channel in the global batch, and one value has no variance; "
        "expected 2 or more",
        all.count));
  const at::Tensor like = weight.defined() ? weight.detach() : wide(x.detach());
  const at::Tensor mean = all.mean_like(like);
  update_running(*replica, mean, all.variance_like(like, all.count - 1));
  return Normalise::apply(x, weight.defined() ? weight : at::ones_like(mean),
                          bias.defined() ? bias : at::zeros_like(mean), mean,
                          all.variance_like(like, all.count),
                          c10::make_intrusive<Kept>(*replica, all.count, options.eps()));
}

void SyncBatchNormImpl::update_running(const ReplicaContext& replica, const at::Tensor& mean,
                                       const at::Tensor& variance) {
  if (!options.track_running_stats()) return;
  const at::NoGradGuard no_grad;
  num_batches_tracked += 1;
  const double share = options.momentum() ? *options.momentum()
                                          : 1.0 / on_host(num_batches_tracked, patience(replica),
                                                          words("batches so far", replica))
                                                      .item<double>();
  running_mean.mul_(1 - share).add_(mean, share);
  running_var.mul_(1 - share).add_(variance, share);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "tutti::nn::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ")";
}

}  // namespace tutti::nn
