#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <sstream>
#include <typeinfo>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/sync/detail/step_plan.h"
#include "tutti/sync/detail/updater_state.h"
#include "tutti/sync/replicated/detail/stepper.h"
#include "tutti/sync/replicated/detail/torch_state.h"
#include "tutti/sync/tensors.h"

namespace tutti::detail {
namespace {

class TorchStepper final : public Stepper {
 public:
  TorchStepper(TorchOptimizerFactory factory, std::vector<at::Tensor> parameters)
      : factory_(std::move(factory)), optimizer_(factory_(std::move(parameters))) {
    if (!optimizer_) throw UsageError("the optimizer factory returned null");
  }

  void step(double learning_rate) override {
    if (learning_rate != this->learning_rate())
      for (auto& group : optimizer_->param_groups()) group.options().set_lr(learning_rate);
    optimizer_->step();
  }

  double learning_rate() const override {
    return optimizer_->param_groups().at(0).options().get_lr();
  }

  std::string kind() const override { return "torch"; }

  NamedTensors state() const override {
    torch::serialize::OutputArchive archive;
    optimizer_->save(archive);
    std::ostringstream out;
    archive.save_to(out);
    const std::string bytes = out.str();
    at::Tensor tensor = at::empty({std::ssize(bytes)}, at::kByte);
    std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
    return {{kTorchState, tensor}};
  }

  void restore(const UpdaterState& state, const NamedTensors&) override {
    const at::Tensor bytes = tensor_named(state, kTorchState).contiguous();
    torch::serialize::InputArchive archive;
    archive.load_from(static_cast<const char*>(bytes.data_ptr()), bytes.nbytes());
    optimizer_->load(archive);
  }

 private:
  static constexpr const char* kTorchState = "torch_optimizer";
  TorchOptimizerFactory factory_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

class RuleStepper final : public Stepper {
 public:
  RuleStepper(const optim::Recipe& recipe, const Slots& layout, std::vector<at::Tensor> parameters)
      : recipe_(recipe),
        layout_(layout),
        plan_(recipe, layout),
        parameters_(std::move(parameters)),
        scalars_(parameters_.size()),
        squares_(plan_.clips_norms() ? plan_.num_blocks() : 0),
        measured_(plan_.measures() ? plan_.num_blocks() : 0) {
    const optim::Rule& rule = recipe_.rule();
    for (const auto& parameter : parameters_)
      for (int state = 0; state < rule.num_states(); ++state)
        states_.push_back(at::full_like(parameter.detach(), rule.state_start(state), {},
                                        at::MemoryFormat::Contiguous));
  }

  void step(double learning_rate) override {
    clip();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& gradient = parameters_[i].grad();
      if (!gradient.defined()) continue;
      const auto parameter = static_cast<int>(i);
      const optim::Rule& rule = plan_.rule(parameter);
      scalars_[i] = rule.next(scalars_[i], plan_.rate(parameter, learning_rate));
      std::vector<void*> states;
      for (int k = 0; k < rule.num_states(); ++k)
        states.push_back(states_[i * rule.num_states() + k].data_ptr());
      const DType dtype = dtype_of(gradient.scalar_type());
      const int64_t count = parameters_[i].numel();
      if (rule.measures())
        rule.measure(dtype, parameters_[i].data_ptr(), gradient.data_ptr(), states, count,
                     scalars_[i], std::span(measured_).subspan(plan_.block_at(parameter, 0)));
      rule.update(dtype, parameters_[i].data_ptr(), gradient.data_ptr(), states, count, scalars_[i],
                  plan_.trust(parameter, measured_));
    }
    bump_versions(parameters_);
  }

  double learning_rate() const override { return recipe_.rule().learning_rate(); }

  std::string kind() const override { return std::string(recipe_.rule().name()); }

  NamedTensors state() const override {
    NamedTensors state = named_states();
    state.emplace_back(kScalarsName, tensor_of_scalars(scalars_));
    return state;
  }

  void restore(const UpdaterState& state, const NamedTensors& parameters) override {
    NamedTensors own = named_states();
    scalars_ = scalars_of(state, kind(), layout_, parameters, own);
    copy_states(state, own);
  }

 private:
  NamedTensors named_states() const {
    const optim::Rule& rule = recipe_.rule();
    NamedTensors states;
    for (int k = 0; k < rule.num_states(); ++k)
      for (size_t i = 0; i < parameters_.size(); ++i)
        if (layout_.slots[i].trained)
          states.emplace_back(
              state_tensor_name(rule.state_name(k), layout_.slots[i].name),
              states_[i * static_cast<size_t>(rule.num_states()) + static_cast<size_t>(k)]);
    return states;
  }

  // In place: these are the sums, which no two parameters share.
  void clip() {
    std::vector<uint8_t> used(parameters_.size());
    const auto for_each_used = [&](auto&& visit) {
      for (size_t i = 0; i < parameters_.size(); ++i)
        if (const at::Tensor& sum = parameters_[i].grad(); sum.defined())
          visit(static_cast<int>(i), dtype_of(sum.scalar_type()), sum.data_ptr(), sum.numel());
    };
    if (plan_.clips_values())
      for_each_used([&](int, DType dtype, void* sum, int64_t count) {
        plan_.clip_values(dtype, sum, count);
      });
    if (!plan_.clips_norms()) return;
    for_each_used([&](int parameter, DType dtype, const void* sum, int64_t count) {
      used[parameter] = 1;
      optim::square_blocks(dtype, sum, count,
                           std::span(squares_).subspan(plan_.block_at(parameter, 0)));
    });
    const std::vector<double> scales = plan_.scales(squares_, used);
    for_each_used([&](int parameter, DType dtype, void* sum, int64_t count) {
      scale_gradient(dtype, sum, count, scales[parameter]);
    });
  }

  const optim::Recipe recipe_;
  const Slots layout_;
  const StepPlan plan_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> states_;
  std::vector<optim::StepScalars> scalars_;
  std::vector<double> squares_;  // of every block
  std::vector<optim::Squares> measured_;
};

}  // namespace

StepperFactory torch_steppers(TorchOptimizerFactory factory) {
  return [factory = std::move(factory)](std::vector<at::Tensor> parameters) {
    return std::make_unique<TorchStepper>(factory, std::move(parameters));
  };
}

StepperFactory rule_steppers(const optim::Recipe& recipe, const Slots& layout) {
  return [recipe, layout](std::vector<at::Tensor> parameters) {
    return std::make_unique<RuleStepper>(recipe, layout, std::move(parameters));
  };
}

// ---- what a torch optimizer keeps, by itself ----

namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

// What an archive is once it was written.
InputArchive read_back(OutputArchive& written) {
  std::ostringstream out;
  written.save_to(out);
  const std::string bytes = out.str();
  InputArchive archive;
  archive.load_from(bytes.data(), bytes.size());
  return archive;
}

Json json_of(double number) {
  if (std::isfinite(number)) return number;
  return Json{{"double", std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"}};
}

// `path` names the tensors of the value, which go to `tensors`.
Json json_of(const c10::IValue& value, const std::string& path, NamedTensors& tensors) {
  const auto of_list = [&](const char* key, const auto& list) {
    Json all = Json::array();
    for (const auto& element : list) all.push_back(json_of(c10::IValue(element), path, tensors));
    Json json = Json::object();
    json[key] = std::move(all);
    return json;
  };
  if (value.isNone()) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return json_of(value.toDouble());
  if (value.isString()) return value.toStringRef();
  if (value.isIntList()) return of_list("ints", value.toIntVector());
  if (value.isDoubleList()) return of_list("doubles", value.toDoubleVector());
  if (value.isTuple()) return of_list("tuple", value.toTupleRef().elements().vec());
  if (value.isTensorList()) {
    Json json = Json::object();
    json["tensors"] = Json::array();
    for (const at::Tensor& tensor : value.toTensorVector())
      json["tensors"].push_back(json_of(tensor.defined() ? c10::IValue(tensor) : c10::IValue(),
                                        fmt::format("{}.{}", path, json["tensors"].size()),
                                        tensors));
    return json;
  }
  if (!value.isTensor())
    throw UsageError(
        fmt::format("the torch optimizer keeps {} of type {}, which checkpoints have no words for",
                    path, value.tagKind()));
  tensors.emplace_back(path, value.toTensor());
  Json json = Json::object();
  json["tensor"] = path;
  return json;
}

class ValueOfJson {
 public:
  ValueOfJson(const std::map<std::string, at::Tensor>& tensors, at::Device device)
      : tensors_(tensors), device_(device) {}

  c10::IValue operator()(const Json& json) const {
    if (json.is_null()) return {};
    if (json.is_boolean()) return json.get<bool>();
    if (json.is_number_integer()) return json.get<int64_t>();
    if (json.is_number_float()) return json.get<double>();
    if (json.is_string()) return json.text();
    const auto& [key, of] = json.items().at(0);
    if (key == "double") return of.text() == "nan" ? std::nan("") : infinite(of.text());
    if (key == "tensor") return tensor(of);
    if (key == "ints") return of.get<std::vector<int64_t>>();
    if (key == "doubles") return doubles(of);
    if (key == "tuple") return tuple(of);
    if (key == "tensors") return list(of);
    throw JsonError("\"" + key + "\" is no kind of value");
  }

 private:
  static double infinite(const std::string& word) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    return word == "-inf" ? -kInfinity : kInfinity;
  }
  at::Tensor tensor(const Json& json) const {
    const auto found = tensors_.find(json.text());
    if (found == tensors_.end()) throw JsonError("there is no tensor \"" + json.text() + "\"");
    return found->second.to(device_);
  }
  std::vector<double> doubles(const Json& json) const {
    std::vector<double> all;
    for (const Json& element : json.elements()) all.push_back((*this)(element).toDouble());
    return all;
  }
  c10::IValue tuple(const Json& json) const {
    std::vector<c10::IValue> all;
    for (const Json& element : json.elements()) all.push_back((*this)(element));
    return c10::ivalue::Tuple::create(std::move(all));
  }
  c10::IValue list(const Json& json) const {
    c10::List<at::Tensor> all;
    for (const Json& element : json.elements())
      all.push_back(element.is_null() ? at::Tensor() : (*this)(element).toTensor());
    return all;
  }

  const std::map<std::string, at::Tensor>& tensors_;
  at::Device device_;
};

constexpr const char *kGroups = "groups", *kOptions = "options", *kParameters = "parameters",
                     *kStates = "states";

std::map<std::string, at::Tensor> parameters_by_name(const torch::optim::Optimizer& optimizer,
                                                     const NameOf& name_of) {
  std::map<std::string, at::Tensor> all;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) all.emplace(name_of(parameter), parameter);
  return all;
}

Json json_of_all(InputArchive& archive, const std::string& of, NamedTensors& tensors) {
  Json all = Json::object();
  for (const std::string& key : archive.keys()) {
    c10::IValue value;
    archive.read(key, value);
    all[key] = json_of(value, of.empty() ? key : key + "/" + of, tensors);
  }
  return all;
}

// An archive cannot be asked to hold what it is given: it is written into `to` as `key`.
void write_all(OutputArchive& to, const std::string& key, const Json& values,
               const ValueOfJson& value_of) {
  OutputArchive own(to.compilation_unit());
  for (const auto& [name, value] : values.items()) own.write(name, value_of(value));
  to.write(key, own);
}

}  // namespace

std::string kind_of(const torch::optim::Optimizer& optimizer) {
  return c10::demangle(typeid(optimizer).name());
}

TorchState torch_state_of(torch::optim::Optimizer& optimizer, const NameOf& name_of) {
  OutputArchive written;
  optimizer.save(written);
  InputArchive archive = read_back(written), states, groups;
  archive.read("state", states);
  archive.read("param_groups", groups);
  TorchState state;
  Json words = {{kGroups, Json::array()}, {kStates, Json::object()}};
  int64_t number = 0;
  for (const auto& group : optimizer.param_groups()) {
    InputArchive own, options;
    groups.read("param_groups/" + std::to_string(number++), own);
    own.read("options", options);
    Json names = Json::array();
    for (const at::Tensor& parameter : group.params()) {
      const std::string name = name_of(parameter);
      names.push_back(name);
      const auto key = reinterpret_cast<size_t>(parameter.unsafeGetTensorImpl());
      InputArchive kept;
      if (states.try_read(std::to_string(key), kept))
        words[kStates][name] = json_of_all(kept, name, state.tensors);
    }
    Json json = Json::object();
    json[kOptions] = json_of_all(options, "", state.tensors);
    json[kParameters] = std::move(names);
    words[kGroups].push_back(std::move(json));
  }
  state.words = dump_json(words);
  return state;
}

// Against what it has of that now, where it has been updated; else LibTorch's own states are all of
// their parameters' shapes.
static std::string why_no_tensor_of(const at::Tensor& then, const c10::IValue& now,
                                    const at::Tensor& parameter, bool own) {
  const auto words = [](const at::Tensor& of) {
    return c10::str(of.scalar_type(), " ", of.sizes());
  };
  if (now.isTensor()) {
    const at::Tensor& present = now.toTensor();
    if (then.sizes() == present.sizes() && then.scalar_type() == present.scalar_type()) return "";
    return fmt::format("{}, here {}", words(then), words(present));
  }
  if (!own || then.dim() == 0 || then.sizes() == parameter.sizes()) return "";
  return fmt::format("{}, the parameter is {}", c10::str(then.sizes()),
                     c10::str(parameter.sizes()));
}

std::string why_no_state_of(torch::optim::Optimizer& optimizer, const TorchState& state,
                            const NameOf& name_of) {
  try {
    const Json words = parse_json(state.words);
    const TorchState here = torch_state_of(optimizer, name_of);
    const Json now = parse_json(here.words);
    const auto& groups = words.at(kGroups).elements();
    const auto& groups_now = now.at(kGroups).elements();
    if (groups.size() != groups_now.size())
      return fmt::format("{} groups of parameters, here there are {}", groups.size(),
                         groups_now.size());
    for (size_t i = 0; i < groups.size(); ++i)
      if (groups[i].at(kParameters) != groups_now[i].at(kParameters))
        return fmt::format("group {} has parameters {}, here {}", i, groups[i][kParameters].dump(),
                           groups_now[i][kParameters].dump());
    const std::map<std::string, at::Tensor> tensors(state.tensors.begin(), state.tensors.end());
    const auto parameters = parameters_by_name(optimizer, name_of);
    const std::map<std::string, at::Tensor> tensors_now(here.tensors.begin(), here.tensors.end());
    const ValueOfJson value_of(tensors, at::kCPU), value_now(tensors_now, at::kCPU);
    const bool own = kind_of(optimizer).starts_with("torch::optim::");
    for (const auto& [name, values] : words.at(kStates).items()) {
      if (!parameters.contains(name))
        return fmt::format("states of \"{}\", which is not here", name);
      const Json& states_now = now.at(kStates);
      for (const auto& [key, json] : values.items()) {
        const c10::IValue value = value_of(json);
        if (!value.isTensor()) continue;
        const bool has = states_now.contains(name) && states_now.at(name).contains(key);
        const auto present = has ? value_now(states_now.at(name).at(key)) : c10::IValue();
        if (const std::string why =
                why_no_tensor_of(value.toTensor(), present, parameters.at(name), own);
            !why.empty())
          return fmt::format("{} of \"{}\" is {}", key, name, why);
      }
    }
    return "";
  } catch (const JsonError& error) {
    return error.what();
  }
}

// Parameters are known by numbers in what the optimizer reads.
void restore(torch::optim::Optimizer& optimizer, const TorchState& state, const NameOf& name_of) {
  const Json words = parse_json(state.words);
  const std::map<std::string, at::Tensor> tensors(state.tensors.begin(), state.tensors.end());
  OutputArchive archive, states(archive.compilation_unit()), groups(archive.compilation_unit());
  const auto& all = optimizer.param_groups();
  groups.write("param_groups/size", torch::tensor(std::ssize(all)));
  int64_t number = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    OutputArchive group(archive.compilation_unit());
    group.write("params/size", torch::tensor(std::ssize(all[i].params())));
    for (size_t place = 0; place < all[i].params().size(); ++place) {
      const at::Tensor& parameter = all[i].params()[place];
      const std::string key = std::to_string(++number);
      group.write("params/" + std::to_string(place), c10::IValue(key));
      const Json& kept = words.at(kStates);
      if (const auto found = name_of(parameter); kept.contains(found))
        write_all(states, key, kept.at(found), ValueOfJson(tensors, parameter.device()));
    }
    write_all(group, "options", words.at(kGroups).at(i).at(kOptions),
              ValueOfJson(tensors, at::kCPU));
    groups.write("param_groups/" + std::to_string(i), group);
  }
  archive.write("pytorch_version", c10::IValue("1.5.0"));
  archive.write("state", states);
  archive.write("param_groups", groups);
  InputArchive read = read_back(archive);
  optimizer.state().clear();
  optimizer.load(read);
}

}  // namespace tutti::detail
