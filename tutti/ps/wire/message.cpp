#include "tutti/ps/wire/message.h"

#include <bit>
#include <cstring>

#include "tutti/base/error.h"

namespace tutti::ps {
namespace {

constexpr uint32_t kMagic = 0x32535054;  // "TPS2"
constexpr uint32_t kMostParts = 1 << 16;
static_assert(std::endian::native == std::endian::little, "frames are little-endian");

constexpr std::string_view kNames[] = {
    "hello",   "assign",   "push",     "pull",       "sparse_push", "sparse_pull", "mark",
    "welcome", "refused",  "settled",  "parameters", "rows",        "lease",       "leased",
    "begins",  "bring",    "brought",  "counts",     "waiting",     "leave",       "logged",
    "copying", "chunk",    "copied",   "join",       "joined",      "view",        "synced",
    "suspect", "progress", "finished", "also",       "over",        "cut",         "written",
    "meet",    "enlist",   "enlisted", "task",       "outcome",     "mapped",      "released"};
constexpr auto kLastKind = Message::Kind::released;
static_assert(std::size(kNames) == static_cast<size_t>(kLastKind) + 1);

class Writer {
 public:
  explicit Writer(std::span<std::byte> to) : to_(to) {}
  template <class T>
  void put(T value) {
    std::memcpy(to_.data(), &value, sizeof value);
    to_ = to_.subspan(sizeof value);
  }

 private:
  std::span<std::byte> to_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> from) : from_(from) {}
  template <class T>
  T get() {
    T value;
    take(&value, sizeof value);
    return value;
  }
  void take(void* to, size_t bytes) {
    if (bytes == 0) return;
    if (bytes > from_.size()) throw Error("a frame of a parameter server ends too early");
    std::memcpy(to, from_.data(), bytes);
    from_ = from_.subspan(bytes);
  }
  size_t left() const noexcept { return from_.size(); }

 private:
  std::span<const std::byte> from_;
};

// In their order in a head, behind the kind.
template <class Message, class Frame, class Action>
void each_number(Message& message, Frame& frame, const Action& action) {
  action(message.flags);
  action(message.partition);
  action(message.worker);
  action(message.piece);
  action(message.view);
  action(message.index);
  action(message.sequence);
  action(message.step);
  action(message.version);
  action(message.learning_rate);
  action(frame.text_bytes);
  action(frame.payload_bytes);
  action(frame.place);
}

void append(std::string& bytes, const void* from, size_t count) {
  bytes.append(static_cast<const char*>(from), count);
}

void append_number(std::string& bytes, uint32_t number) { append(bytes, &number, sizeof number); }

}  // namespace

Bytes Bytes::copy_of(std::span<const std::byte> bytes) {
  auto copy = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  return {*copy, copy};
}

std::string_view name_of(Message::Kind kind) noexcept { return kNames[static_cast<size_t>(kind)]; }

std::array<std::byte, kHeadBytes> encode_head(const Message& message, const FrameHead& frame) {
  std::array<std::byte, kHeadBytes> bytes{};
  Writer writer(bytes);
  writer.put(kMagic);
  writer.put(static_cast<uint32_t>(message.kind));
  each_number(message, frame, [&](const auto& number) { writer.put(number); });
  return bytes;
}

FrameHead decode_head(std::span<const std::byte, kHeadBytes> bytes, uint64_t max_payload_bytes,
                      Message& message) {
  Reader reader(bytes);
  if (reader.get<uint32_t>() != kMagic)
    throw Error("these are no frames of a parameter server of this version");
  const auto kind = reader.get<uint32_t>();
  if (kind > static_cast<uint32_t>(kLastKind))
    throw Error(fmt::format("a frame of unknown kind {}", kind));
  message.kind = static_cast<Message::Kind>(kind);
  FrameHead frame;
  each_number(message, frame, [&](auto& number) { reader.take(&number, sizeof number); });
  if (frame.text_bytes > kMaxTextBytes)
    throw Error(fmt::format("a {} frame announces {} bytes of text; at most {} are taken",
                            name_of(message.kind), frame.text_bytes, kMaxTextBytes));
  if (frame.payload_bytes > max_payload_bytes)
    throw Error(fmt::format("a {} frame announces {} bytes; at most {} are taken",
                            name_of(message.kind), frame.payload_bytes, max_payload_bytes));
  return frame;
}

std::string encode_text(const Message& message) {
  std::string bytes;
  if (message.text.empty() && message.parts.empty()) return bytes;
  append_number(bytes, static_cast<uint32_t>(message.parts.size()));
  for (const Part& part : message.parts) {
    append(bytes, &part.rank, sizeof part.rank);
    append_number(bytes, static_cast<uint32_t>(part.used.size()));
    append(bytes, part.used.data(), part.used.size());
  }
  return bytes + message.text;
}

void decode_text(std::string_view bytes, Message& message) {
  message.parts.clear();
  message.text.clear();
  if (bytes.empty()) return;
  Reader reader(std::as_bytes(std::span(bytes)));
  const auto parts = reader.get<uint32_t>();
  if (parts > kMostParts) throw Error(fmt::format("a frame announces {} parts", parts));
  for (uint32_t i = 0; i < parts; ++i) {
    Part part;
    part.rank = reader.get<int32_t>();
    const auto used = reader.get<uint32_t>();
    if (used > reader.left()) throw Error("a frame of a parameter server ends too early");
    part.used.resize(used);
    reader.take(part.used.data(), used);
    message.parts.push_back(std::move(part));
  }
  message.text.resize(reader.left());
  reader.take(message.text.data(), message.text.size());
}

}  // namespace tutti::ps
