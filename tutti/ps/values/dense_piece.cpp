#include "tutti/ps/values/dense_piece.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include "tutti/base/detail/check.h"
#include "tutti/base/json.h"
#include "tutti/comm/engine/reduce_kernels.h"
#include "tutti/ps/spec/detail/json_fields.h"

namespace tutti::ps {
namespace {

// What one thread takes at once, and what it adds up before it updates: sum, parameters and two
// states of 4,096 doubles stay in L2.
constexpr int64_t kChunkElements = 16 << 10;
constexpr int64_t kSumElements = 4 << 10;

template <class T>
void adjust_as(T* sum, const T* now, const T* then, int64_t count, double scale, double lambda) {
  if (scale != 1)
    for (int64_t i = 0; i < count; ++i) sum[i] *= static_cast<T>(scale);
  if (then != nullptr)
    for (int64_t i = 0; i < count; ++i)
      sum[i] += static_cast<T>(lambda) * sum[i] * sum[i] * (now[i] - then[i]);
}

template <class T>
void fill_as(std::byte* to, int64_t bytes, double value) {
  std::fill_n(reinterpret_cast<T*>(to), bytes / static_cast<int64_t>(sizeof(T)),
              static_cast<T>(value));
}

}  // namespace

DensePiece::DensePiece(const Piece& piece, const optim::Rule& rule, const Compute& compute)
    : piece_(piece), rule_(rule), compute_(compute), scalars_(piece.segments.size()) {
  for (int i = 0; i < static_cast<int>(piece_.segments.size()); ++i)
    for (int64_t begin = 0; begin < piece_.segments[i].count(); begin += kChunkElements)
      chunks_.push_back({i, begin, std::min(begin + kChunkElements, piece_.segments[i].count())});
  memory_ = writable();
  std::memset(memory_[0].get(), 0, static_cast<size_t>(piece_.num_bytes));
  for (int state = 0; state < rule_.num_states(); ++state) {
    const auto fill = piece_.dtype == DType::float32 ? fill_as<float> : fill_as<double>;
    fill(memory_[state + 1].get(), piece_.num_bytes, rule_.state_start(state));
    clear_gaps(memory_[state + 1].get());
  }
}

Bytes DensePiece::parameters() const {
  return {{memory_[0].get(), static_cast<size_t>(piece_.num_bytes)}, memory_[0]};
}

void DensePiece::assign(const Bytes& values) {
  if (values.size() != piece_.num_bytes)
    throw Error(
        fmt::format("{} bytes of values for a piece of {}", values.size(), piece_.num_bytes));
  memory_[0] = compute_.allocate(piece_.num_bytes);
  std::memcpy(memory_[0].get(), values.span.data(), values.span.size());
  clear_gaps(memory_[0].get());
}

// Between segments nothing is computed; it is zero, so that equal pieces are equal bytes.
void DensePiece::clear_gaps(std::byte* block) const {
  for (size_t i = 0; i < piece_.segments.size(); ++i) {
    const Segment& segment = piece_.segments[i];
    const int64_t end = segment.offset_bytes + segment.count() * size_of(piece_.dtype);
    const int64_t next =
        i + 1 < piece_.segments.size() ? piece_.segments[i + 1].offset_bytes : piece_.num_bytes;
    std::memset(block + end, 0, static_cast<size_t>(next - end));
  }
}

// Where the next values go: where they are, unless somebody else still reads that.
std::vector<std::shared_ptr<std::byte>> DensePiece::writable() const {
  std::vector<std::shared_ptr<std::byte>> next = memory_;
  next.resize(1 + rule_.num_states());
  // Two: memory_ and next. Shares are made in this thread alone, so that two stay two.
  for (auto& block : next)
    if (!block || block.use_count() > 2) {
      block = compute_.allocate(piece_.num_bytes);
      clear_gaps(block.get());
    }
  return next;
}

void DensePiece::update(const Update& update) {
  ++version_;
  std::vector<uint8_t> used(piece_.segments.size());
  for (const Part* part : update.parts)
    for (size_t i = 0; i < used.size(); ++i) used[i] |= part->used.at(i);
  for (size_t i = 0; i < used.size(); ++i)
    if (used[i] != 0) scalars_[i] = rule_.next(scalars_[i], update.learning_rate);
  std::vector<std::shared_ptr<std::byte>> next = writable();
  compute_.for_each(static_cast<int64_t>(chunks_.size()),
                    [&](int64_t i) { apply(chunks_[i], update, used, next); });
  memory_ = std::move(next);
}

void DensePiece::apply(const Chunk& chunk, const Update& update, const std::vector<uint8_t>& used,
                       const std::vector<std::shared_ptr<std::byte>>& next) {
  alignas(64) std::array<double, kSumElements> scratch;
  const Segment& segment = piece_.segments[chunk.segment];
  const int64_t width = size_of(piece_.dtype);
  std::vector<const void*> inputs(update.shape->replicas());
  for (int64_t begin = chunk.begin; begin < chunk.end; begin += kSumElements) {
    const int64_t count = std::min(kSumElements, chunk.end - begin);
    const int64_t offset = segment.offset_bytes + begin * width;
    std::array<std::byte*, 1 + optim::kMostStates> to{};
    for (size_t i = 0; i < next.size(); ++i) {
      to[i] = next[i].get() + offset;
      if (next[i] != memory_[i])
        std::memcpy(to[i], memory_[i].get() + offset, static_cast<size_t>(count * width));
    }
    if (used[chunk.segment] == 0) continue;
    const void* gradient = update.data[0] + offset;
    if (!update.as_it_came()) {
      for (size_t i = 0; i < update.parts.size(); ++i)
        inputs[update.parts[i]->rank] =
            update.parts[i]->used[chunk.segment] != 0 ? update.data[i] + offset : nullptr;
      reduce_inputs(piece_.dtype, ReduceOp::sum, *update.shape, inputs, scratch.data(), count);
      const std::byte* const then =
          update.computed_on != nullptr ? update.computed_on + offset : nullptr;
      if (piece_.dtype == DType::float32)
        adjust_as(reinterpret_cast<float*>(scratch.data()), reinterpret_cast<const float*>(to[0]),
                  reinterpret_cast<const float*>(then), count, update.scale, update.compensation);
      else
        adjust_as(scratch.data(), reinterpret_cast<const double*>(to[0]),
                  reinterpret_cast<const double*>(then), count, update.scale, update.compensation);
      gradient = scratch.data();
    }
    std::array<void*, optim::kMostStates> states{};
    std::copy(to.begin() + 1, to.end(), states.begin());
    rule_.update(piece_.dtype, to[0], gradient,
                 std::span<void* const>(states.data(), static_cast<size_t>(rule_.num_states())),
                 count, scalars_[chunk.segment]);
  }
}

std::optional<int> DensePiece::not_finite(const Part& part) const {
  for (size_t i = 0; i < piece_.segments.size(); ++i)
    if (part.used.at(i) == Part::not_finite) return piece_.segments[i].variable;
  return std::nullopt;
}

std::vector<Bytes> DensePiece::memory() const {
  std::vector<Bytes> shares;
  for (const auto& block : memory_)
    shares.push_back({{block.get(), static_cast<size_t>(piece_.num_bytes)}, block});
  return shares;
}

std::string DensePiece::facts_of(int64_t version, const std::vector<optim::StepScalars>& scalars) {
  Json list = Json::array();
  for (const optim::StepScalars& s : scalars)
    list.push_back({s.learning_rate, s.beta1_power, s.beta2_power, s.decay_power, s.count});
  return dump_json(Json{{"version", version}, {"scalars", list}});
}

DensePiece::Facts DensePiece::parsed(std::string_view facts) const {
  return detail::read_json(facts, "what a piece knows", [&](const Json& known) {
    const Json& scalars = known.at("scalars");
    if (scalars.size() != scalars_.size()) throw Error("a piece of other segments");
    Facts read{known.at("version"), {}};
    for (const Json& s : scalars)
      read.second.push_back({s.at(0), s.at(1), s.at(2), s.at(3), s.at(4)});
    return read;
  });
}

std::vector<Bytes> DensePiece::blocks_of(const Bytes& payload) const {
  std::vector<Bytes> blocks;
  const auto each = static_cast<size_t>(piece_.num_bytes);
  for (std::span rest = payload.span; !rest.empty(); rest = rest.subspan(blocks.back().span.size()))
    blocks.push_back({rest.first(std::min(each, rest.size())), payload.owner});
  return blocks;
}

void DensePiece::check(std::string_view facts, const std::vector<Bytes>& memory) const {
  parsed(facts);
  if (memory.size() != memory_.size())
    throw Error(
        fmt::format("{} blocks of memory for a piece that has {}", memory.size(), memory_.size()));
  for (const Bytes& block : memory)
    if (block.size() != piece_.num_bytes)
      throw Error(
          fmt::format("a block of {} bytes for a piece of {}", block.size(), piece_.num_bytes));
}

void DensePiece::restore(std::string_view facts, const std::vector<Bytes>& memory) {
  check(facts, memory);
  std::tie(version_, scalars_) = parsed(facts);
  for (size_t i = 0; i < memory_.size(); ++i) {
    memory_[i] = compute_.allocate(piece_.num_bytes);
    std::memcpy(memory_[i].get(), memory[i].span.data(), memory[i].span.size());
  }
}

}  // namespace tutti::ps
