#include "tutti/strategy/mesh/detail/mesh_updater.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/comm/group/host_view.h"
#include "tutti/strategy/mesh/detail/mesh_clip.h"
#include "tutti/sync/detail/gradients.h"
#include "tutti/sync/detail/updater_state.h"

namespace tutti::detail {
namespace {

/// The ranks of one part of the model, those of this worker, as a world of their own.
World world_of_part(const World& world, const std::vector<int>& local_ranks) {
  World part;
  part.generation = world.generation;
  part.size = world.num_replicas();
  part.first_rank = world.replica_of(world.first_rank + local_ranks.front());
  part.local = static_cast<int>(local_ranks.size());
  for (const int local : local_ranks)
    part.groups.push_back(world.mesh_groups[static_cast<size_t>(local)].data);
  part.shape = part.groups.front().reduction_shape();
  const HostView view = host_view(part.groups.front());
  part.here = view.inside.size();
  part.first_rank_here = view.inside.rank();
  part.shares = world.shares;
  part.time_limit = world.time_limit;
  part.chief = world.chief;
  part.job_ranks = world.mesh.members(world.first_rank + local_ranks.front(),
                                      {mesh::Axis::data, mesh::Axis::shard});
  part.mesh = mesh::Mesh::parse(fmt::format("data={},shard={}", world.mesh.size(mesh::Axis::data),
                                            world.mesh.size(mesh::Axis::shard)),
                                part.size);
  return part;
}

/// The name of a tensor of optimizer state, "momentum/conv1.weight", in two: before and behind the
/// slash. Without one it is of no parameter.
std::pair<std::string, std::string> state_and_parameter(const std::string& name) {
  const size_t slash = name.find('/');
  if (slash == std::string::npos) return {name, ""};
  return {name.substr(0, slash), name.substr(slash + 1)};
}

const at::Tensor* find(const NamedTensors& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &NamedTensors::value_type::first);
  return found == tensors.end() ? nullptr : &found->second;
}

/// What an optimizer keeps of each parameter. A part that is frozen whole does not tell.
std::vector<std::string> kinds_of(const optim::Rule& rule) {
  std::vector<std::string> kinds;
  for (int state = 0; state < rule.num_states(); ++state)
    kinds.emplace_back(rule.state_name(state));
  return kinds;
}

class MeshUpdater final : public Updater, public Gathers {
 public:
  MeshUpdater(const World& world, const WholeModel& whole, std::vector<NamedTensors> local_ranks,
              const PartUpdaterFactory& make, const optim::Recipe* recipe)
      : whole_(whole),
        first_rank_(world.first_rank),
        model_ranks_(world.model_ranks()),
        all_(world.groups),
        limit_(world.time_limit) {
    for (int local = 0; local < world.local; ++local) {
      if (local_ranks[static_cast<size_t>(local)].empty())
        throw UsageError(fmt::format(
            "rank {} has no parameters: a stage without any has nothing to train; cut the model "
            "elsewhere",
            world.first_rank + local));
      where_.push_back(part_of(world, local));
    }
    if (recipe != nullptr) kinds_ = kinds_of(recipe->rule());
    const optim::Clip clip = recipe != nullptr ? recipe->clip() : optim::Clip{};
    if (clip.norm > 0 || clip.global_norm > 0) {
      std::vector<std::vector<std::string>> names;
      for (const NamedTensors& rank : local_ranks) names.push_back(names_of(rank));
      clip_.emplace(world, whole, clip, std::move(names));
    }
    for (Part& part : of_model_) {
      std::vector<NamedTensors> ranks;
      for (const int local : part.local_ranks) {
        part.names = names_of(local_ranks[static_cast<size_t>(local)]);
        ranks.push_back(std::move(local_ranks[static_cast<size_t>(local)]));
      }
      part.updater = make(world_of_part(world, part.local_ranks), std::move(ranks));
    }
    if (of_model_[0].updater->parts().gathers != nullptr) parts_.gathers = this;
  }

  void ready(int local, const Deadline& deadline) override {
    at(local).ready(number(local), deadline);
  }
  GradientListener* begin(int local, Overlap) override {
    return at(local).begin(number(local), Overlap::off);
  }
  Verdict step(int local, std::span<const at::Tensor> gradients, const Vote& vote,
               const Deadline& deadline) override {
    Vote own = vote;
    // A part may be frozen whole, and others train.
    if (own.part == kComputes &&
        std::ranges::none_of(parameters(local), &at::Tensor::requires_grad))
      own.part = kAbstains;
    if (parts_.gathers != nullptr) meet(local, Until::all_done);
    const Verdict all = agree(local, own);
    if (all.left_out) own.part = kLeavesOut;
    own.overflows = all.overflowed;
    if (!clip_ || all.left_out || all.overflowed) {
      at(local).step(number(local), gradients, own, deadline);
      return all;
    }
    const auto sums = clip_->sums(local, gradients, own.part == kComputes);
    const std::vector<at::Tensor> none(sums.size());
    const bool first = first_rank_ + local < model_ranks_;  // which brings what all have together
    if (first && std::ranges::any_of(sums, &at::Tensor::defined)) own.part = kComputes;
    at(local).step(number(local), first ? sums : none, own, deadline);
    return all;
  }
  void meet(int local, Until until) override {
    at(local).parts().gathers->meet(number(local), until);
  }
  void fail(int local, const std::string& reason) noexcept override {
    at(local).parts().gathers->fail(number(local), reason);
  }
  void rethrow_failure() const override {
    for (const Part& part : of_model_) part.updater->parts().gathers->rethrow_failure();
  }

  UpdaterView view(int local) const override {
    return of_model_[where_[static_cast<size_t>(local)].first].updater->view(number(local));
  }
  void set_learning_rate(double learning_rate) override {
    for (Part& part : of_model_) part.updater->set_learning_rate(learning_rate);
  }
  void require_whole() const override {
    for (const Part& part : of_model_) part.updater->require_whole();
  }
  int64_t wire_bytes_per_step() const override {
    int64_t bytes = 0;
    for (const Part& part : of_model_)
      bytes += part.updater->wire_bytes_per_step() * std::ssize(part.local_ranks);
    return bytes / std::ssize(where_);
  }

  void rebind(const World&, std::vector<NamedTensors>) override {
    throw UsageError("a world on a mesh cannot be resized while it runs");
  }

  UpdaterState state() const override;
  void restore(const UpdaterState& state, const NamedTensors& parameters) override;

 private:
  struct Part {
    mesh::Place place;  ///< on stage and tensor
    std::vector<int> local_ranks;
    std::vector<std::string> names;  ///< of its parameters
    std::shared_ptr<Updater> updater;
  };

  static std::vector<std::string> names_of(const NamedTensors& tensors) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors) names.push_back(name);
    return names;
  }

  /// Adds the local rank to the part that it has; which that is, and its number there.
  std::pair<size_t, int> part_of(const World& world, int local) {
    mesh::Place place = world.mesh.place_of(world.first_rank + local);
    for (const mesh::Axis axis : {mesh::Axis::data, mesh::Axis::shard})
      place[static_cast<size_t>(axis)] = 0;
    auto part = std::ranges::find(of_model_, place, &Part::place);
    if (part == of_model_.end()) part = of_model_.insert(of_model_.end(), {place, {}, {}, nullptr});
    part->local_ranks.push_back(local);
    return {static_cast<size_t>(part - of_model_.begin()),
            static_cast<int>(part->local_ranks.size()) - 1};
  }

  /// Collective: parts of the model do not meet otherwise, and one's loss may be another's bad
  /// step.
  Verdict agree(int local, const Vote& vote) {
    VoteWords words = vote_words(vote);
    all_[static_cast<size_t>(local)].all_reduce_now(tutti::span_of(std::span(words)), ReduceOp::max,
                                                    limit_);
    return verdict_of(words);
  }

  Updater& at(int local) { return *of_model_[where_[static_cast<size_t>(local)].first].updater; }
  int number(int local) const { return where_[static_cast<size_t>(local)].second; }

  at::Tensor scalars_of(const std::vector<UpdaterState>& of_parts) const;
  /// What restore() gives a part.
  UpdaterState state_of(const Part& part, const UpdaterState& state) const;
  NamedTensors values_of(const Part& part, const NamedTensors& parameters) const;

  const WholeModel& whole_;
  int first_rank_;
  int model_ranks_;
  std::vector<Group> all_;  ///< by local rank: the whole job
  Millis limit_;
  std::optional<std::vector<std::string>> kinds_;  // none: of a torch optimizer
  std::optional<MeshClip> clip_;                   // by norm
  std::vector<Part> of_model_;
  std::vector<std::pair<size_t, int>> where_;  ///< by local rank
};

UpdaterState MeshUpdater::state() const {
  if (!kinds_)
    throw UsageError(
        "the state of a torch optimizer is one lump, which cannot be put together from the "
        "stages and pieces of a mesh; use tutti's own rules (optim::adam() and so on)");
  std::vector<UpdaterState> of_parts;
  for (const Part& part : of_model_) of_parts.push_back(part.updater->state());
  UpdaterState all{of_parts[0].kind, version(), learning_rate()};
  std::vector<WholeModel::Entry> trained = whole_.parameters();
  std::erase_if(trained, [](const auto& entry) { return !entry.trained; });
  for (const std::string& kind : *kinds_)
    for (auto& [name, tensor] : whole_.gather(trained, [&](int local, const std::string& name) {
           return tensor_named(of_parts[where_[static_cast<size_t>(local)].first],
                               state_tensor_name(kind, name));
         }))
      all.tensors.emplace_back(state_tensor_name(kind, name), std::move(tensor));
  all.tensors.emplace_back(kScalarsName, scalars_of(of_parts));
  return all;
}

// A row a parameter, in the order of the whole model.
at::Tensor MeshUpdater::scalars_of(const std::vector<UpdaterState>& of_parts) const {
  std::vector<WholeModel::Entry> rows = whole_.parameters();
  const int64_t width = tensor_named(of_parts[0], kScalarsName).size(1);
  for (WholeModel::Entry& row : rows)
    row = {
        row.name, {width}, DType::float64, false, {{row.holders[0].rank, {{width}, 0, 0, width}}}};
  std::vector<at::Tensor> values;
  for (const auto& [name, value] : whole_.gather(rows, [&](int local, const std::string& name) {
         const size_t part = where_[static_cast<size_t>(local)].first;
         const auto& names = of_model_[part].names;
         return tensor_named(of_parts[part],
                             kScalarsName)[std::ranges::find(names, name) - names.begin()];
       }))
    values.push_back(value);
  return at::stack(values);
}

NamedTensors MeshUpdater::values_of(const Part& part, const NamedTensors& parameters) const {
  NamedTensors values;
  for (const std::string& name : part.names) {
    const at::Tensor* const whole = find(parameters, name);
    if (whole == nullptr) throw UsageError(fmt::format("the state lacks parameter \"{}\"", name));
    values.emplace_back(name, whole_.own_part(part.local_ranks.front(), name, *whole));
  }
  return values;
}

UpdaterState MeshUpdater::state_of(const Part& part, const UpdaterState& state) const {
  UpdaterState own{state.kind, state.version, state.learning_rate};
  for (const auto& [name, tensor] : state.tensors) {
    const auto [kind, parameter] = state_and_parameter(name);
    if (parameter.empty()) continue;
    if (std::ranges::find(part.names, parameter) != part.names.end())
      own.tensors.emplace_back(name, whole_.own_part(part.local_ranks.front(), parameter, tensor));
  }
  const at::Tensor& rows = tensor_named(state, kScalarsName);
  std::vector<at::Tensor> own_rows;
  for (const std::string& name : part.names) {
    const auto& all = whole_.parameters();
    const auto place = std::ranges::find(all, name, &WholeModel::Entry::name) - all.begin();
    if (rows.dim() != 2 || place >= rows.size(0))
      throw UsageError(
          fmt::format("the state of optimizer {} is of {} parameters, the model has {}", state.kind,
                      rows.dim() > 0 ? rows.size(0) : 0, all.size()));
    own_rows.push_back(rows[place]);
  }
  own.tensors.emplace_back(kScalarsName, at::stack(own_rows));
  return own;
}

void MeshUpdater::restore(const UpdaterState& state, const NamedTensors& parameters) {
  if (parameters.size() != whole_.parameters().size())
    throw UsageError(fmt::format("{} parameters, the model has {}", parameters.size(),
                                 whole_.parameters().size()));
  for (Part& part : of_model_)
    part.updater->restore(state_of(part, state), values_of(part, parameters));
}

bool fits_any(const optim::Group& group, const std::vector<std::string>& names) {
  return std::ranges::any_of(
      names, [&](const std::string& name) { return optim::fits(group.pattern, name); });
}

}  // namespace

std::shared_ptr<Updater> make_mesh_updater(const World& world, const WholeModel& whole,
                                           std::vector<NamedTensors> local_ranks,
                                           const PartUpdaterFactory& make,
                                           const optim::Recipe* recipe) {
  return std::make_shared<MeshUpdater>(world, whole, std::move(local_ranks), make, recipe);
}

optim::Recipe recipe_of_part(const optim::Recipe& recipe, const WholeModel& whole,
                             const NamedTensors& part) {
  if (recipe.rule().measures())
    throw UsageError(
        fmt::format("optimizer {}: measures whole parameters, of which ranks of a mesh may have "
                    "pieces; take an "
                    "elementwise rule (sgd, adam, adamw, ...)",
                    recipe.rule().name()));
  std::vector<std::string> all, own;
  for (const WholeModel::Entry& entry : whole.parameters()) all.push_back(entry.name);
  for (const auto& [name, tensor] : part) own.push_back(name);
  std::vector<optim::Group> groups;
  for (const optim::Group& group : recipe.groups())
    if (fits_any(group, own) || !fits_any(group, all)) groups.push_back(group);
  return {recipe.rule(), {.value = recipe.clip().value}, groups};
}

}  // namespace tutti::detail
