/// CompiledModel: a Graph's values on the devices of a PJRT plugin, a copy on each, and what it
/// gives in evaluation.
///
///   CompiledModel model(graph, client, {.replicas = 2});
///   model.load(values);                                  // parameters and buffers, by name
///   auto outputs = model.predict({{images0}, {images1}});   // outputs[replica][number]
///
/// A program is compiled once for a number of rows that a replica has, and serves fewer rows, too,
/// filled up. docs/design/pjrt.md. Thread rule: one thread at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/nn/graph.h"
#include "tutti/pjrt/client.h"
#include "tutti/train/lowered/step.h"

namespace tutti {

struct CompiledOptions {
  int replicas = 1;                 ///< from 1 to the client's devices; of all processes (below)
  DType product = DType::float32;   ///< or bfloat16: of what products are made
  uint64_t seed = 0;                ///< of dropouts' masks
  bool outputs = false;             ///< steps give the model's outputs too, for metrics
  bool leaves_out_bad = false;      ///< CompiledTrainer::take_back_left_out()
  Millis limit{kDefaultTimeLimit};  ///< of the waits in values() and predict()

  /// Of several processes that share the client, where each has the replicas of its own devices and
  /// all devices are replicas: returns what each has brought, in their order. Collective; empty:
  /// one process. What is said of replicas below is then of those here, by their number among them.
  using Exchange = std::function<std::vector<std::string>(std::string_view own)>;
  Exchange exchange{};
};

class CompiledModel {
 public:
  /// All is 0 until load(). UsageError for more replicas than devices, and for an operator that
  /// cannot be compiled.
  CompiledModel(nn::Graph graph, pjrt::Client client, const CompiledOptions& options);
  ~CompiledModel();
  CompiledModel(CompiledModel&&) noexcept;

  /// Puts values in their places on every device: parameters, buffers and, in a trainer, states
  /// ("conv1.weight.exp_avg") by name; others stay. UsageError for a name that is not there, and
  /// for another type or shape.
  void load(const std::map<std::string, Array>& values);

  /// All of them, from the first replica; floating buffers are the mean over replicas. Waits for
  /// the steps that are on their way.
  std::map<std::string, Array> values() const;

  /// Of several processes: what floating buffers are in evaluation, until the next step or load(),
  /// is the mean over the replicas of all, in place of those here. Collective.
  void average_buffers();

  /// What the model gives in evaluation, computed by all devices at once. inputs[replica] are those
  /// of graph.inputs(), [rows, shape...] each, where replicas may have different numbers of rows,
  /// also none, but not all. Returns outputs[replica][number], [rows, ...]; none without rows.
  std::vector<std::vector<Array>> predict(const std::vector<std::vector<Array>>& inputs);
  /// The same of one batch, which is cut into a part for each device: each output, [rows, ...].
  std::vector<Array> predict(const std::vector<Array>& inputs);

  const nn::Graph& graph() const noexcept;
  const pjrt::Client& client() const noexcept;
  const CompiledOptions& options() const noexcept;
  int replicas_here() const noexcept;
  /// What each process has brought by the exchange, of as many bytes each: Mismatch.
  std::vector<std::string> exchanged(std::string_view own) const;

  // ---- for a trainer ----
  /// These are on the devices too from now on, with zeros.
  void keep(const std::vector<SlotOf>& slots);
  const pjrt::Buffer& value(int replica, const std::string& name) const;
  /// What a step has made of it.
  void become(int replica, const std::string& name, pjrt::Buffer value);
  /// UsageError for inputs of other types and shapes, whatever their rows, and for tokens that an
  /// embedding does not have.
  void check_inputs(const std::vector<Array>& inputs) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
