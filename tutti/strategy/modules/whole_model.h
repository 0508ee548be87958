/// WholeModel: the tensors of a model whose parts are on several ranks of a mesh.
///
/// Each rank has stages, and pieces of layers in them. This is the list of all that they have
/// together, under the names of the whole model, and how it is put together and taken apart.
/// Thread rule: that of the Strategy; where a function takes a local rank, any thread.
#pragma once

#include <torch/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tutti/strategy/modules/replicated.h"
#include "tutti/sync/piece.h"
#include "tutti/sync/updater.h"

namespace torch::nn {
class Module;
}

namespace tutti {

class WholeModel {
 public:
  /// A parameter or buffer, and the ranks of replica 0 that have it.
  struct Entry {
    std::string name;
    std::vector<int64_t> shape;  ///< whole
    DType dtype = DType::float32;
    bool trained = false;  ///< requires a gradient
    struct Holder {
      int rank = 0;
      Piece piece;
    };
    std::vector<Holder> holders;  ///< one a piece
  };

  /// Collective over the world: what the ranks have. `modules` are those of the local ranks. Throws
  /// Mismatch where ranks have the same name with other shapes.
  WholeModel(Strategy strategy, const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
             const ModelParts& parts);

  const std::vector<Entry>& parameters() const noexcept { return parameters_; }
  const std::vector<Entry>& buffers() const noexcept { return buffers_; }

  /// The tensor of that name which a local rank keeps; asked for those that it has.
  using Own = std::function<at::Tensor(int local, const std::string& name)>;
  /// Collective over the world, between runs: whole tensors of the CPU, the same on every worker.
  NamedTensors gather(const std::vector<Entry>& entries, const Own& own) const;
  NamedTensors gather_parameters() const;

  /// What of that parameter or buffer, which it has, is the local rank's.
  const Piece& piece_of(int local, const std::string& name) const {
    return own_[static_cast<size_t>(local)].at(name).piece;
  }

  /// What a local rank has of a whole parameter: a copy; undefined when it has nothing of it.
  at::Tensor own_part(int local, const std::string& name, const at::Tensor& whole) const;

  /// Gives the local ranks what is theirs of whole parameters and buffers.
  void scatter(const NamedTensors& whole) const;

  /// Names and shapes without values: tensors of device meta.
  static NamedTensors without_values(const std::vector<Entry>& entries);

 private:
  struct Had {
    at::Tensor tensor;
    Piece piece;
  };
  /// A piece on its way from who holds it to every worker's whole tensor.
  struct Part {
    Entry::Holder holder;
    at::Tensor whole;
    at::Tensor piece;  ///< of those here
  };
  bool is_here(const Part& part) const;
  void send_to_all(std::vector<Part>& parts) const;

  mutable Strategy strategy_;
  std::vector<std::map<std::string, Had>> own_;  ///< by local rank
  std::vector<Entry> parameters_;
  std::vector<Entry> buffers_;
};

}  // namespace tutti
