/// A graph made ready to run: operators found, arguments in the order of their schemas, defaults
/// filled in, values numbered, and for each call the values that nobody needs behind it.
/// Thread rule: const once made; replicas share one.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tutti/exported/detail/numbers.h"
#include "tutti/exported/report.h"
#include "tutti/pt2/program.h"

namespace tutti::exported::detail {

struct CallPlan;

/// Where an argument comes from.
struct Operand {
  enum class Kind : uint8_t {
    constant,          ///< `value`
    slot,              ///< a value of the graph
    tensor_or_number,  ///< the same, where a number becomes a tensor that does not promote types
    device,            ///< the replica's, whichever the file names
    tensors,           ///< a list of `items`, and the three below
    optional_tensors,
    integers,
    reals,
    plan,  ///< a graph within
  };
  Kind kind = Kind::constant;
  int slot = -1;
  c10::IValue value{};
  std::vector<Operand> items{};
  std::shared_ptr<const CallPlan> plan{};
};

struct CallOutput {
  bool is_list = false;
  std::vector<int> slots;  ///< -1: nobody wants it
};

enum class Region : uint8_t { none, cond, set_grad, autocast };

struct Call {
  std::optional<c10::OperatorHandle> op{};  ///< one of these three
  const NumberOperator* number = nullptr;
  Region region = Region::none;
  std::vector<Operand> inputs{};
  std::vector<CallOutput> outputs{};
  std::vector<int> dead{};  ///< slots that are emptied behind it
  std::string words{};      ///< for errors: "aten::conv2d, net.py:12, in forward: ..."
  // For who cuts the graph (cut_graph.h):
  std::vector<int> reads{};   ///< slots, each once
  std::vector<int> writes{};  ///< those in whose memory it writes, or may
  bool draws = false;         ///< random numbers
  uint64_t draw = 0;          ///< which of the calls of its graph that do so, from 0
};

/// Slots in whose memory a value lies.
struct Memory {
  int root = -1;            ///< surely: it is this one, or a view of it
  std::set<int> perhaps{};  ///< all of which it may be that, itself and `root` among them
};

struct CallPlan {
  int num_slots = 0;
  std::vector<int> inputs;
  std::vector<Operand> outputs;
  std::vector<Call> calls;
  /// Inputs that calls write to, or to a view of them; and all to which they may.
  std::set<size_t> written_inputs, perhaps_written;
  std::vector<std::string> names;  ///< by slot
  std::vector<Memory> memory;      ///< by slot
  std::vector<size_t> nodes;       ///< by call: of the graph
};

/// What planning found beside.
struct PlanNotes {
  struct Write {
    size_t input = 0;  ///< of the graph, whose memory the node changes
    NotServed node;
  };
  std::vector<NotServed> not_served{}, by_mode{};  ///< by_mode: what behaves otherwise in training
  std::vector<Write> writes{};                     ///< the first to each input
};

/// A plan of a graph that pt2 has read. What it cannot run stands in `notes`, and there is then no
/// plan to run.
std::shared_ptr<const CallPlan> make_call_plan(const pt2::Graph& graph, PlanNotes& notes);

/// LibTorch's name of an element type.
at::ScalarType scalar_type_of(pt2::Element element);

}  // namespace tutti::exported::detail
