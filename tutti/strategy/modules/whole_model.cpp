#include "tutti/strategy/modules/whole_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/queues/upload.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

using Pieces = std::map<std::string, Piece>;

Piece all_of(const at::Tensor& tensor) {
  Piece piece{.whole = tensor.sizes().vec()};
  if (!piece.whole.empty()) piece.size = piece.whole[0];
  return piece;
}

/// What a rank has, as others read it.
Json words_of(const NamedTensors& tensors, const Pieces& pieces) {
  Json all = Json::array();
  for (const auto& [name, tensor] : tensors) {
    const auto cut = pieces.find(name);
    const Piece piece = cut == pieces.end() ? all_of(tensor) : cut->second;
    all.push_back({name, static_cast<int>(dtype_of(tensor.scalar_type())), piece.whole, piece.axis,
                   piece.begin, piece.size, piece.stacked, tensor.requires_grad()});
  }
  return all;
}

/// By rank, what it says. Collective over the world.
std::vector<std::string> told_by_all(Strategy& strategy, const std::vector<std::string>& own) {
  const World& world = strategy.world();
  std::vector<std::string> all(static_cast<size_t>(world.size));
  strategy.run([&](ReplicaContext& replica) {
    Group& group = replica.group();
    std::string mine = own[static_cast<size_t>(replica.local_rank())];
    int64_t length = std::ssize(mine);
    std::vector<int64_t> lengths(all.size());
    group.all_gather(span_of(std::span(&length, 1)), span_of(std::span(lengths)), world.time_limit)
        .wait(world.time_limit);
    std::vector<uint8_t> bytes(
        static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0})));
    std::vector<uint8_t> sent(mine.begin(), mine.end());
    group.all_gather(span_of(std::span(sent)), span_of(std::span(bytes)), lengths, world.time_limit)
        .wait(world.time_limit);
    if (replica.local_rank() != 0) return;
    auto at = bytes.begin();
    for (size_t rank = 0; rank < all.size(); at += lengths[rank++])
      all[rank].assign(at, at + lengths[rank]);
  });
  return all;
}

Piece piece_in(const Json& words) {
  return {.whole = words[2],
          .axis = words[3],
          .begin = words[4],
          .size = words[5],
          .stacked = words[6]};
}

/// Adds what a rank has to the list, but for pieces that an earlier one has.
void add_to(std::vector<WholeModel::Entry>& entries, const Json& told, int rank) {
  for (const Json& words : told) {
    const std::string name = words[0];
    const Piece piece = piece_in(words);
    const auto dtype = static_cast<DType>(words[1].get<int>());
    auto entry = std::ranges::find(entries, name, &WholeModel::Entry::name);
    if (entry == entries.end())
      entry = entries.insert(entries.end(), {name, piece.whole, dtype, words[7], {}});
    if (entry->shape != piece.whole || entry->dtype != dtype)
      throw Mismatch(fmt::format("\"{}\" is {} [{}] on rank {}, and another on rank {}", name,
                                 name_of(dtype), fmt::join(piece.whole, ", "), rank,
                                 entry->holders.front().rank));
    const bool known = std::ranges::any_of(entry->holders, [&](const auto& holder) {
      return holder.piece.begin == piece.begin && holder.piece.axis == piece.axis;
    });
    if (!known) entry->holders.push_back({rank, piece});
  }
}

}  // namespace

WholeModel::WholeModel(Strategy strategy,
                       const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                       const ModelParts& parts)
    : strategy_(std::move(strategy)) {
  std::vector<std::string> own;
  for (const auto& module : modules) {
    const Pieces pieces = parts.pieces_of ? parts.pieces_of(*module) : Pieces();
    const NamedTensors parameters = unique_parameters(*module);
    const NamedTensors buffers = unique_buffers(*module);
    own.push_back(dump_json(Json{words_of(parameters, pieces), words_of(buffers, pieces)}));
    auto& had = own_.emplace_back();
    for (const NamedTensors* const tensors : {&parameters, &buffers})
      for (const auto& [name, tensor] : *tensors) {
        const auto cut = pieces.find(name);
        had[name] = {tensor, cut == pieces.end() ? all_of(tensor) : cut->second};
      }
  }
  const auto told = told_by_all(strategy_, own);
  for (int rank = 0; rank < strategy_.world().model_ranks(); ++rank) {
    const Json both = parse_json(told[static_cast<size_t>(rank)]);
    add_to(parameters_, both[0], rank);
    add_to(buffers_, both[1], rank);
  }
  if (!parts.order) return;
  const std::vector<std::string> order = parts.order();
  const auto place = [&](const Entry& entry) { return std::ranges::find(order, entry.name); };
  std::ranges::stable_sort(parameters_, {}, place);
  std::ranges::stable_sort(buffers_, {}, place);
}

bool WholeModel::is_here(const Part& part) const {
  const World& world = strategy_.world();
  const int local = part.holder.rank - world.first_rank;
  return local >= 0 && local < world.local;
}

// In one run, since parameters may be given up in each.
void WholeModel::send_to_all(std::vector<Part>& parts) const {
  const World& world = strategy_.world();
  strategy_.run([&](ReplicaContext& replica) {
    for (Part& part : parts) {
      const Entry::Holder& holder = part.holder;
      const bool here = is_here(part);
      const bool puts = replica.rank() == (here ? holder.rank : world.first_rank);
      const at::Tensor piece = here && puts ? std::exchange(part.piece, {})
                                            : at::empty(holder.piece.shape(), part.whole.options());
      replica.group()
          .broadcast(span_of(piece), holder.rank, world.time_limit)
          .wait(world.time_limit);
      if (puts) put_piece(part.whole, holder.piece, piece);
    }
  });
}

NamedTensors WholeModel::gather(const std::vector<Entry>& entries, const Own& own) const {
  const at::NoGradGuard no_grad;
  const World& world = strategy_.world();
  const bool alone = strategy_.membership().alone();
  NamedTensors all;
  std::vector<Part> parts;
  for (const Entry& entry : entries) {
    all.emplace_back(entry.name, at::empty(entry.shape, scalar_type_of(entry.dtype)));
    for (const Entry::Holder& holder : entry.holders) {
      Part& part = parts.emplace_back(Part{holder, all.back().second, {}});
      if (!is_here(part)) continue;
      part.piece = at::empty(holder.piece.shape(), part.whole.options());
      part.piece.copy_(own(holder.rank - world.first_rank, entry.name));
      if (alone) put_piece(part.whole, holder.piece, std::exchange(part.piece, {}));
    }
  }
  if (!alone) send_to_all(parts);
  return all;
}

NamedTensors WholeModel::gather_parameters() const {
  return gather(parameters_, [this](int local, const std::string& name) {
    return own_[static_cast<size_t>(local)].at(name).tensor.detach();
  });
}

at::Tensor WholeModel::own_part(int local, const std::string& name, const at::Tensor& whole) const {
  const auto& had = own_[static_cast<size_t>(local)];
  const auto found = had.find(name);
  return found == had.end() ? at::Tensor() : tutti::piece_of(whole, found->second.piece);
}

void WholeModel::scatter(const NamedTensors& whole) const {
  const at::NoGradGuard no_grad;
  for (size_t local = 0; local < own_.size(); ++local)
    for (const auto& [name, tensor] : whole)
      if (const at::Tensor part = own_part(static_cast<int>(local), name, tensor); part.defined())
        own_[local].at(name).tensor.detach().copy_(part);
}

NamedTensors WholeModel::without_values(const std::vector<Entry>& entries) {
  NamedTensors all;
  for (const Entry& entry : entries)
    all.emplace_back(
        entry.name,
        at::empty(entry.shape, at::TensorOptions(at::kMeta).dtype(scalar_type_of(entry.dtype))));
  return all;
}

}  // namespace tutti
