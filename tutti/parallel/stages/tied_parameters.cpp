#include "tutti/parallel/stages/detail/tied_parameters.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/sync/before_use.h"
#include "tutti/sync/tensors.h"

namespace tutti::parallel::detail {
namespace {

at::Tensor tied_at(const mesh::Schedule& schedule, int rank, int stage, const TieEnd& tie,
                   const std::vector<Stage>& chunks) {
  if (schedule.rank_of(stage) != rank) return {};
  for (const Tie& one : chunks[static_cast<size_t>(schedule.chunk_of(stage))].ties)
    if (one.name == tie.name && one.owner == tie.owner && one.reader == tie.reader)
      return one.parameter;
  return {};
}

}  // namespace

TiedParameters::TiedParameters(const Group& group, const mesh::Schedule& schedule,
                               const std::vector<TieEnd>& all, const std::vector<Stage>& chunks,
                               int first_tag, Millis limit) {
  for (size_t i = 0; i < all.size(); ++i) {
    const TieEnd& tie = all[i];
    const at::Tensor owners = tied_at(schedule, group.rank(), tie.owner, tie, chunks);
    const at::Tensor readers = tied_at(schedule, group.rank(), tie.reader, tie, chunks);
    const at::Tensor& here = owners.defined() ? owners : readers;
    if (!here.defined()) continue;
    const Channel::End owner{tie.owner, schedule.rank_of(tie.owner)};
    const Channel::End reader{tie.reader, schedule.rank_of(tie.reader)};
    const Border border{here.sizes().vec(), dtype_of(here.scalar_type())};
    const int tag = first_tag + 2 * static_cast<int>(i);
    const auto channel = [&](const std::string& what, Channel::End from, Channel::End to, int of) {
      return Channel(group,
                     {fmt::format("{} of \"{}\"", what, tie.name),
                      from,
                      to,
                      of,
                      {border},
                      /*by_sample=*/false},
                     limit);
    };
    if (owners.defined() && owners.requires_grad()) {
      if (owned_.empty() || !owned_.back().parameter.is_same(owners))
        owned_.push_back({.stage = tie.owner, .parameter = owners});
      owned_.back().links.push_back(links_.size());
    }
    links_.push_back({tie, owners, readers, channel("the gradient", reader, owner, tag),
                      channel("the value", owner, reader, tag + 1)});
  }
}

void TiedParameters::open(std::span<const int64_t> sizes) {
  for (Link& link : links_)
    if ((link.owners.defined() ? link.owners : link.readers).requires_grad())
      link.gradients.open(sizes);
  sizes_.assign(sizes.begin(), sizes.end());
}

void TiedParameters::pass(int stage, int microbatch, const std::vector<at::Tensor>& parameters,
                          std::vector<at::Tensor>& gradients) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    for (Link& link : links_)
      if (link.tie.reader == stage && parameters[i].is_same(link.readers))
        link.gradients.put(microbatch, {.tensors = {std::exchange(gradients[i], {})}});
    for (Owned& owned : owned_)
      if (owned.stage == stage && parameters[i].is_same(owned.parameter))
        owned.waiting.emplace_back(microbatch, std::exchange(gradients[i], {}));
  }
  for (Owned& owned : owned_) add_arrived(owned, /*wait=*/false);
}

void TiedParameters::pass_none(int stage, int microbatch) {
  for (Owned& owned : owned_)
    if (owned.stage == stage) owned.waiting.emplace_back(microbatch, at::Tensor());
}

void TiedParameters::add_arrived(Owned& owned, bool wait) {
  const at::NoGradGuard no_gradient;
  const auto arrived = [&](size_t link) { return links_[link].gradients.arrived(); };
  while (!owned.waiting.empty()) {
    const int microbatch = owned.waiting.front().first;
    const bool empty = sizes_[static_cast<size_t>(microbatch)] == 0;
    if (!empty && !wait && !std::ranges::all_of(owned.links, arrived)) return;
    at::Tensor sum;
    const auto add = [&](const at::Tensor& gradient) {
      if (gradient.defined()) sum = sum.defined() ? at::add(sum, gradient) : gradient;
    };
    if (!empty)
      for (const size_t link : owned.links) add(links_[link].gradients.take(microbatch).tensors[0]);
    add(owned.waiting.front().second);
    owned.waiting.pop_front();
    owned.sum.add({sum});
  }
}

void TiedParameters::finish() {
  for (Owned& owned : owned_) add_arrived(owned, /*wait=*/true);
  for (Link& link : links_) link.gradients.finish();
}

void TiedParameters::put_sums(int stage, const std::vector<at::Tensor>& parameters,
                              std::vector<at::Tensor>& sums) {
  for (Owned& owned : owned_) {
    if (owned.stage != stage) continue;
    for (size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].is_same(owned.parameter)) sums[i] = owned.sum.take().at(0);
  }
}

void TiedParameters::send_values() {
  const at::NoGradGuard no_gradient;
  constexpr int64_t kOnce[] = {1};
  for (Link& link : links_) link.values.open(kOnce);
  // All at once, so that none is given up while its memory is sent.
  for (const Link& link : links_)
    if (link.owners.defined()) require_ready(link.owners);
  for (Link& link : links_)
    if (link.owners.defined()) link.values.put(0, {.tensors = {link.owners}});
  for (Link& link : links_)
    if (link.readers.defined()) {
      const at::Tensor value = link.values.take(0).tensors[0];
      if (!link.readers.is_same(link.owners)) link.readers.copy_(value);
    }
  for (Link& link : links_) link.values.finish();
}

}  // namespace tutti::parallel::detail
