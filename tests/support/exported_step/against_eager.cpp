#include "tests/support/exported_step/against_eager.h"

#include <torch/torch.h>

#include <set>

#include "tutti/base/json.h"
#include "tutti/data/safetensors.h"
#include "tutti/exported/from_export.h"
#include "tutti/exported/module.h"
#include "tutti/sync/tensors.h"

namespace tutti::test {
namespace {

class Comparison {
 public:
  Comparison(const std::filesystem::path& net, const std::filesystem::path& reference)
      : reference_(data::read_safetensors(reference)) {
    auto eval = net;
    eval.replace_extension(".eval.pt2");
    has_eval_ = std::filesystem::exists(eval);
    module_ = from_export(net, {.eval = has_eval_ ? eval : std::filesystem::path()})();
    module_->train();
  }

  AgainstEager run() {
    const auto trained = parameters();
    torch::optim::SGD sgd(trained, torch::optim::SGDOptions(std::stod(said("rate"))));
    torch::manual_seed(std::stoull(said("seed")));
    const at::Tensor losses = wanted("loss");
    for (int64_t step = 0; step < losses.numel(); ++step) {
      sgd.zero_grad();
      const auto outputs = module_->forward_all(inputs(step));
      const at::Tensor loss = loss_of(outputs.at(0), wanted(name(step, "target")));
      loss.backward();
      compare(result_.loss, loss.detach().to(at::kDouble), losses[step]);
      if (step == 0) compare_first(outputs);
      sgd.step();
    }
    compare_final();
    compare_evaluation(losses.numel() - 1);
    return result_;
  }

 private:
  static std::string name(int64_t step, const std::string& what) {
    return "step" + std::to_string(step) + "." + what;
  }
  const std::string& said(const std::string& key) const { return reference_.metadata.at(key); }
  bool has(const std::string& key) const { return reference_.find(key) != nullptr; }
  at::Tensor wanted(const std::string& key) const {
    const Array* array = reference_.find(key);
    if (array == nullptr) throw std::out_of_range("the reference has no " + key);
    return tensor_of(*array).clone();
  }

  std::vector<at::Tensor> inputs(int64_t step) const {
    std::vector<at::Tensor> all;
    for (int i = 0; has(name(step, "input." + std::to_string(i))); ++i)
      all.push_back(wanted(name(step, "input." + std::to_string(i))));
    return all;
  }

  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> all;
    for (const auto& parameter : module_->parameters())
      if (parameter.requires_grad()) all.push_back(parameter);
    return all;
  }

  at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) const {
    if (said("loss") == "mse") return at::mse_loss(output, target);
    return at::cross_entropy_loss(output.flatten(0, -2), target.flatten());
  }

  void compare(double& worst, const at::Tensor& got, const at::Tensor& expected,
               double largest = 1e-30) {
    ++result_.tensors;
    if (got.sizes() != expected.sizes() || got.dtype() != expected.dtype()) {
      worst = std::numeric_limits<double>::infinity();
      result_.equal = false;
      return;
    }
    if (got.numel() == 0 || at::equal(got, expected)) return;
    result_.equal = false;
    const auto wide = expected.to(at::kDouble);
    largest = std::max(wide.abs().max().item<double>(), largest);
    const double apart = (got.to(at::kDouble) - wide).abs().max().item<double>() / largest;
    worst = std::max(worst, std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart);
  }

  // Of all gradients: one in front of a norm may be what is left of a sum that cancels.
  double largest_gradient() const {
    double largest = 0;
    for (const data::NamedArray& named : reference_.arrays)
      if (named.name.starts_with("gradient.") && named.array.num_elements() > 0)
        largest = std::max(largest, tensor_of(named.array).abs().max().item<double>());
    return largest;
  }

  void compare_first(const std::vector<at::Tensor>& outputs) {
    for (size_t i = 0; has("step0.output." + std::to_string(i)); ++i)
      compare(result_.outputs, outputs.at(i).detach(), wanted("step0.output." + std::to_string(i)));
    std::set<std::string> seen;
    const double largest = largest_gradient();
    for (const auto& item : module_->named_parameters()) {
      const std::string key = "gradient." + item.key();
      const at::Tensor& gradient = item.value().grad();
      if (gradient.defined() != has(key)) result_.missing.push_back(key);
      if (!gradient.defined() || !has(key)) continue;
      seen.insert(key);
      compare(result_.gradients, gradient.to_dense(), wanted(key), largest);
    }
    require_all("gradient.", seen);
  }

  void compare_final() {
    std::set<std::string> seen;
    const auto compare_each = [&](const auto& items) {
      for (const auto& item : items) {
        const std::string key = "final." + item.key();
        if (!has(key)) continue;  // a buffer that no state dict has
        seen.insert(key);
        compare(result_.final, item.value().detach(), wanted(key));
      }
    };
    compare_each(module_->named_parameters());
    compare_each(module_->named_buffers());
    require_all("final.", seen);
  }

  /// A tied weight stands in the reference under each of its names, in the module under the first.
  void require_all(const std::string& prefix, const std::set<std::string>& seen) {
    for (const data::NamedArray& named : reference_.arrays) {
      if (!named.name.starts_with(prefix) || seen.contains(named.name)) continue;
      const bool tied = std::ranges::any_of(seen, [&](const std::string& other) {
        return at::equal(tensor_of(*reference_.find(other)), tensor_of(named.array));
      });
      if (!tied) result_.missing.push_back(named.name);
    }
  }

  void compare_evaluation(int64_t step) {
    if (!has("evaluation.output.0")) return;
    module_->eval();
    const torch::NoGradGuard no_grad;
    const auto outputs = module_->forward_all(inputs(step));
    for (size_t i = 0; has("evaluation.output." + std::to_string(i)); ++i)
      compare(result_.evaluation, outputs.at(i), wanted("evaluation.output." + std::to_string(i)));
  }

  data::Safetensors reference_;
  std::shared_ptr<ExportedModule> module_;
  bool has_eval_ = false;
  AgainstEager result_;
};

}  // namespace

std::string AgainstEager::json() const {
  OrderedJson line = OrderedJson::object();
  line["loss"] = loss;
  line["outputs"] = outputs;
  line["gradients"] = gradients;
  line["final"] = final;
  line["evaluation"] = evaluation;
  line["tensors"] = tensors;
  line["equal"] = equal;
  line["missing"] = missing;
  return line.dump();
}

AgainstEager against_eager(const std::filesystem::path& net,
                           const std::filesystem::path& reference) {
  at::set_num_threads(1);  // as eager had: bits depend on it
  return Comparison(net, reference).run();
}

}  // namespace tutti::test
