#include "tutti/exported/cut_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

namespace tutti::exported {
namespace {

using Origin = CutValue::Origin;

bool has_gradients(const pt2::TensorMeta* meta) {
  if (meta == nullptr) return true;  // nobody knows
  const auto dtype = dtype_sent(meta->element);
  return !dtype || is_floating(*dtype);
}

bool is_held(const CutValue& value) {
  return value.origin == Origin::parameter || value.origin == Origin::buffer ||
         value.origin == Origin::fixed;
}

/// Whether module `outer` has `inner`, or is it.
bool is_within(std::string_view inner, std::string_view outer) {
  return outer.empty() ||
         (inner.starts_with(outer) && (inner.size() == outer.size() || inner[outer.size()] == '.'));
}

}  // namespace

std::optional<DType> dtype_sent(pt2::Element element) {
  using E = pt2::Element;
  switch (element) {
    case E::uint8: return DType::uint8;
    case E::int8: return DType::int8;
    case E::int16: return DType::int16;
    case E::int32: return DType::int32;
    case E::int64: return DType::int64;
    case E::float16: return DType::float16;
    case E::float32: return DType::float32;
    case E::float64: return DType::float64;
    case E::boolean: return DType::boolean;
    case E::bfloat16: return DType::bfloat16;
    case E::complex64:
    case E::complex128: break;
  }
  return std::nullopt;
}

CutGraph::CutGraph(std::vector<CutValue> values, std::vector<CutCall> calls,
                   std::vector<int> outputs, std::map<std::string, int64_t> sizes)
    : values_(std::move(values)),
      calls_(std::move(calls)),
      outputs_(std::move(outputs)),
      sizes_(std::move(sizes)) {
  const auto input = std::ranges::find(values_, Origin::user, &CutValue::origin);
  if (input != values_.end() && input->meta != nullptr && !input->meta->sizes.empty())
    batch_ = input->meta->sizes.front();
  find_lives();
  find_free();
  find_gradients();
}

void CutGraph::find_lives() {
  for (auto* by_value : {&made_, &first_read_, &last_read_, &last_write_})
    by_value->assign(values_.size(), -1);
  const auto end = static_cast<int>(calls_.size());
  for (int c = 0; c < end; ++c) {
    const CutCall& call = calls_[static_cast<size_t>(c)];
    for (const int made : call.makes) made_[static_cast<size_t>(made)] = c;
    for (const int written : call.writes) last_write_[static_cast<size_t>(written)] = c;
    for (const int read : call.reads) {
      auto& first = first_read_[static_cast<size_t>(read)];
      if (first < 0) first = c;
      // Where the tensor is not there another one of the batch is asked.
      if (!is_size_of_known(call)) last_read_[static_cast<size_t>(read)] = c;
    }
  }
  for (const int output : outputs_) last_read_[static_cast<size_t>(output)] = end;
}

bool CutGraph::is_batch(const pt2::Size& size) const {
  if (!batch_) return false;
  if (batch_->is_known()) return size.is_known() && size.value == batch_->value;
  return !batch_->symbol().empty() && size.symbol() == batch_->symbol();
}

std::optional<int64_t> CutGraph::known(const pt2::Size& size) const {
  if (size.is_known()) return size.value;
  const auto found = sizes_.find(std::string(size.symbol()));
  if (found == sizes_.end() || is_batch(size)) return std::nullopt;
  return found->second;
}

bool CutGraph::is_size_of_known(const CutCall& call) const {
  return call.size_of && (is_batch(*call.size_of) || known(*call.size_of));
}

bool CutGraph::is_written(int number) const {
  return std::ranges::any_of(
      value(number).memory, [this](int one) { return last_write_[static_cast<size_t>(one)] >= 0; });
}

void CutGraph::find_free() {
  free_.assign(values_.size(), false);
  const auto is_changed = [this](int number) { return is_written(number); };
  for (size_t v = 0; v < values_.size(); ++v)
    free_[v] = values_[v].origin == Origin::fixed && !is_changed(static_cast<int>(v));
  for (const CutCall& call : calls_) {
    const bool is_free =
        is_size_of_known(call) ||
        (!call.draws && call.writes.empty() && std::ranges::none_of(call.makes, is_changed) &&
         std::ranges::all_of(call.reads, [&](int read) { return this->is_free(read); }));
    for (const int made : call.makes) free_[static_cast<size_t>(made)] = is_free;
  }
}

void CutGraph::find_gradients() {
  gradient_.assign(values_.size(), false);
  for (size_t v = 0; v < values_.size(); ++v) gradient_[v] = values_[v].trained;
  const auto has = [this](int number) { return has_gradient(number); };
  for (size_t c = 0; c < calls_.size(); ++c) {
    const CutCall& call = calls_[c];
    if (call.stops_gradients || std::ranges::none_of(call.reads, has)) continue;
    for (const int made : call.makes)
      gradient_[static_cast<size_t>(made)] = has_gradients(value(made).meta);
    if (!call.writes.empty()) find_gradients_of_writes(static_cast<int>(c));
  }
}

/// All that is there and shares the memory has them from now on.
void CutGraph::find_gradients_of_writes(int call) {
  const auto& writes = calls_[static_cast<size_t>(call)].writes;
  const auto is_written_here = [&](int one) {
    return std::ranges::find(writes, one) != writes.end();
  };
  for (size_t v = 0; v < values_.size(); ++v)
    if (made_[v] <= call && std::ranges::any_of(values_[v].memory, is_written_here))
      gradient_[v] = has_gradients(values_[v].meta);
}

bool CutGraph::is_beginning(size_t place) const {
  return std::all_of(
      calls_.begin(), calls_.begin() + static_cast<ptrdiff_t>(place), [this](const CutCall& call) {
        return std::ranges::all_of(call.makes, [this](int made) { return is_free(made); });
      });
}

std::vector<int> CutGraph::across(size_t place) const {
  const auto at = static_cast<int>(place);
  std::vector<int> sent;
  for (size_t v = 0; v < values_.size(); ++v)
    if (!free_[v] && !is_held(values_[v]) && made_[v] < at && last_read_[v] >= at)
      sent.push_back(static_cast<int>(v));
  return sent;
}

std::string CutGraph::words_of(int number) const {
  const int made = made_[static_cast<size_t>(number)];
  if (made < 0) return fmt::format("input \"{}\"", value(number).name);
  return fmt::format("what {} gives", calls_[static_cast<size_t>(made)].words);
}

std::string CutGraph::why_no_border(int number) const {
  const pt2::TensorMeta* const meta = value(number).meta;
  if (meta == nullptr) return words_of(number) + " is a number, or of no known type";
  if (!dtype_sent(meta->element))
    return fmt::format("{} is {}, which is not sent", words_of(number), name_of(meta->element));
  if (meta->sizes.empty() || !is_batch(meta->sizes.front()))
    return words_of(number) + " is not of the batch in its first dimension";
  for (size_t d = 1; d < meta->sizes.size(); ++d)
    if (!known(meta->sizes[d]))
      return fmt::format("{} has size {}, which may be any", words_of(number),
                         meta->sizes[d].expression);
  if (!is_dense(*meta)) return words_of(number) + " has gaps in memory, which are not sent";
  return "";
}

/// Kernels choose by strides, which a border keeps where there are no gaps.
bool CutGraph::is_dense(const pt2::TensorMeta& meta) const {
  std::vector<std::pair<int64_t, int64_t>> inner;  // stride and size
  int64_t of_batch = 1;
  for (size_t d = 0; d < meta.sizes.size(); ++d) {
    const auto stride = known(meta.strides[d]);
    if (!stride) return true;  // nobody knows
    if (d == 0)
      of_batch = *stride;
    else if (const int64_t size = *known(meta.sizes[d]); size != 1)
      inner.emplace_back(*stride, size);
  }
  std::ranges::sort(inner);
  int64_t dense = 1;
  for (const auto& [stride, size] : inner) {
    if (stride != dense) return false;
    dense *= size;
  }
  return of_batch == dense;
}

std::string CutGraph::why_no_cut(size_t place) const {
  const auto at = static_cast<int>(place);
  for (size_t v = 0; v < values_.size(); ++v) {
    if (made_[v] >= at) continue;
    if (!is_held(values_[v]) && last_write_[v] >= at)
      return fmt::format("{} writes into {}", calls_[static_cast<size_t>(last_write_[v])].words,
                         words_of(static_cast<int>(v)));
    const bool is_state =
        values_[v].origin == Origin::buffer || (is_held(values_[v]) && last_write_[v] >= 0);
    if (is_state && first_read_[v] >= 0 && first_read_[v] < at &&
        std::max(last_read_[v], last_write_[v]) >= at)
      return fmt::format("{} {} is read on both sides",
                         values_[v].origin == Origin::parameter ? "parameter" : "buffer",
                         values_[v].name);
  }
  const std::vector<int> sent = across(place);
  if (sent.empty()) return "nothing crosses it";
  for (const int one : sent)
    if (std::string why = why_no_border(one); !why.empty()) return why;
  return "";
}

std::vector<CutBorder> CutGraph::borders(size_t place) const {
  std::vector<CutBorder> borders;
  for (const int sent : across(place)) {
    const pt2::TensorMeta& meta = *value(sent).meta;
    CutBorder& border = borders.emplace_back(CutBorder{*dtype_sent(meta.element), {}});
    for (size_t d = 1; d < meta.sizes.size(); ++d) border.shape.push_back(*known(meta.sizes[d]));
  }
  return borders;
}

CutPart CutGraph::part(size_t begin, size_t end) const {
  CutPart part;
  const bool is_last = end == calls_.size();
  if (begin > 0) {
    part.inputs = across(begin);
  } else {
    for (size_t v = 0; v < values_.size(); ++v)
      if (values_[v].origin == Origin::user) part.inputs.push_back(static_cast<int>(v));
  }
  part.outputs = is_last ? outputs_ : across(end);
  std::set<size_t> calls;
  std::set<int> held;
  std::vector<int> wanted = part.outputs;
  for (size_t c = begin; c < end; ++c) {
    calls.insert(c);
    wanted.insert(wanted.end(), calls_[c].reads.begin(), calls_[c].reads.end());
  }
  while (!wanted.empty()) {
    const int one = wanted.back();
    wanted.pop_back();
    if (is_held(value(one))) held.insert(one);
    const int made = made_[static_cast<size_t>(one)];
    if (made < 0 || !is_free(one) || !calls.insert(static_cast<size_t>(made)).second) continue;
    const CutCall& call = calls_[static_cast<size_t>(made)];
    if (!is_size_of_known(call)) wanted.insert(wanted.end(), call.reads.begin(), call.reads.end());
  }
  part.calls.assign(calls.begin(), calls.end());
  part.held.assign(held.begin(), held.end());
  return part;
}

bool CutGraph::owns(size_t begin, size_t end) const {
  std::map<int, int> first;  // by tensor
  for (size_t v = 0; v < values_.size(); ++v) {
    if (!values_[v].trained || first_read_[v] < 0) continue;
    const auto [found, fresh] = first.try_emplace(values_[v].tensor, first_read_[v]);
    if (!fresh) found->second = std::min(found->second, first_read_[v]);
  }
  return std::ranges::any_of(first, [&](const auto& one) {
    return one.second >= static_cast<int>(begin) && one.second < static_cast<int>(end);
  });
}

int CutGraph::reads_of(int parameter, size_t begin, size_t end) const {
  int reads = 0;
  for (size_t c = begin; c < end; ++c)
    for (const int read : calls_[c].reads)
      if (value(read).tensor == parameter) ++reads;
  return reads;
}

namespace {

/// The first call that each module makes, those of modules within it too, in order.
std::vector<std::pair<std::string, size_t>> first_calls(const CutGraph& graph) {
  std::vector<std::pair<std::string, size_t>> firsts;
  std::set<std::string, std::less<>> seen;
  for (size_t c = 0; c < graph.calls().size(); ++c) {
    const CutCall& call = graph.calls()[c];
    if (call.size_of) continue;  // the export puts them where they are first wanted
    const std::string& module = call.module;
    for (size_t dot = 0; !module.empty() && dot != module.npos;) {
      dot = module.find('.', dot + 1);
      std::string name = module.substr(0, dot);
      if (seen.insert(name).second) firsts.emplace_back(std::move(name), c);
    }
  }
  return firsts;
}

/// The call to cut before for a module whose first is `first`: that, or one that its parents have
/// made just before, where a cut is possible. Empty: there is none, for the reason at `first`.
std::optional<size_t> place_before(const CutGraph& graph, const std::string& module, size_t first,
                                   std::string& why) {
  why = graph.why_no_cut(first);
  if (why.empty()) return first;
  for (size_t c = first; c-- > 1;) {
    if (graph.calls()[c].size_of) continue;
    const std::string& other = graph.calls()[c].module;
    if (other == module || !is_within(module, other)) break;
    if (graph.why_no_cut(c).empty()) return c;
  }
  return std::nullopt;
}

}  // namespace

CutPlaces places_of(const CutGraph& training, const CutGraph* evaluation) {
  CutPlaces places;
  std::map<std::string, size_t> others;
  if (evaluation != nullptr)
    for (const auto& [name, first] : first_calls(*evaluation)) others.emplace(name, first);
  std::map<size_t, CutPlace> by_call;
  for (const auto& [name, first] : first_calls(training)) {
    std::string& why = places.whys[name];
    const auto at = place_before(training, name, first, why);
    if (!at || training.is_beginning(*at)) {
      if (at) why = "the model begins with it";
      continue;
    }
    CutPlace place{.training = *at, .evaluation = *at, .names = {}};
    if (evaluation != nullptr) {
      const auto found = others.find(name);
      std::string other_why = "it is not there";
      const auto there = found == others.end()
                             ? std::nullopt
                             : place_before(*evaluation, name, found->second, other_why);
      if (!there || evaluation->borders(*there) != training.borders(*at)) {
        why = "in the graph of evaluation " + (there ? "other tensors cross it" : other_why);
        continue;
      }
      place.evaluation = *there;
    }
    by_call.try_emplace(*at, std::move(place)).first->second.names.push_back(name);
    places.whys.erase(name);
  }
  for (auto& [at, place] : by_call)
    if (places.all.empty() || places.all.back().evaluation < place.evaluation)
      places.all.push_back(std::move(place));
  return places;
}

std::vector<size_t> CutPlaces::with_parameters(const CutGraph& training) const {
  std::vector<size_t> kept;
  size_t end = training.calls().size();
  for (size_t i = all.size(); i-- > 0;)
    if (training.owns(all[i].training, end)) {
      kept.push_back(i);
      end = all[i].training;
    }
  if (!kept.empty() && !training.owns(0, end)) kept.pop_back();
  std::ranges::reverse(kept);
  return kept;
}

}  // namespace tutti::exported
