#include "tutti/coordinator/detail/values.h"

#include <cstring>

#include "tutti/base/error.h"

namespace tutti::coordinator {
namespace {

std::string_view name_of_kind(char letter) {
  switch (letter) {
    case 'i': return "a whole number";
    case 'r': return "a real number";
    case 's': return "a string";
    case 'a': return "a tensor";
    case 'v': return "a vector";
    case 't': return "a tuple";
    case 'p': return "a per-worker value";
    default: return "nothing known";
  }
}

constexpr int64_t kMostDimensions = 64;

}  // namespace

void ValueWriter::number(int64_t value) { raw(&value, sizeof value); }

void ValueWriter::real(double value) { raw(&value, sizeof value); }

void ValueWriter::raw(const void* from, int64_t num_bytes) {
  if (num_bytes > 0) bytes_.append(static_cast<const char*>(from), static_cast<size_t>(num_bytes));
}

void ValueReader::kind(char letter) {
  char got = 0;
  raw(&got, 1);
  if (got != letter)
    throw Error(
        fmt::format("values of a step: got {}, expected {}; both sides must be of one build",
                    name_of_kind(got), name_of_kind(letter)));
}

int64_t ValueReader::number() {
  int64_t value = 0;
  raw(&value, sizeof value);
  return value;
}

double ValueReader::real() {
  double value = 0;
  raw(&value, sizeof value);
  return value;
}

int64_t ValueReader::count(int64_t least_bytes) {
  const int64_t value = number();
  if (value < 0 || value > std::ssize(left_) / least_bytes)
    throw Error(fmt::format("values of a step: {} elements in {} bytes", value, left_.size()));
  return value;
}

void ValueReader::raw(void* to, int64_t num_bytes) {
  if (num_bytes > std::ssize(left_)) throw Error("values of a step end too early");
  if (num_bytes > 0) std::memcpy(to, left_.data(), static_cast<size_t>(num_bytes));
  left_ = left_.subspan(static_cast<size_t>(num_bytes));
}

void ValueReader::end() const {
  if (!left_.empty())
    throw Error(fmt::format("values of a step: {} bytes are left over", left_.size()));
}

void Codec<std::string>::write(ValueWriter& writer, const std::string& value) {
  writer.kind('s');
  writer.number(std::ssize(value));
  writer.raw(value.data(), std::ssize(value));
}

std::string Codec<std::string>::read(ValueReader& reader) {
  reader.kind('s');
  std::string value(static_cast<size_t>(reader.count()), '\0');
  reader.raw(value.data(), std::ssize(value));
  return value;
}

void Codec<Array>::write(ValueWriter& writer, const Array& value) {
  writer.kind('a');
  writer.number(static_cast<int64_t>(value.dtype()));
  writer.number(std::ssize(value.shape()));
  for (const int64_t size : value.shape()) writer.number(size);
  writer.number(value.num_bytes());
  writer.raw(value.data(), value.num_bytes());
}

Array Codec<Array>::read(ValueReader& reader) {
  reader.kind('a');
  const int64_t dtype = reader.number();
  if (dtype < 0 || dtype > static_cast<int64_t>(DType::float64))
    throw Error(fmt::format("values of a step: a tensor of dtype number {}", dtype));
  std::vector<int64_t> shape(static_cast<size_t>(reader.count(sizeof(int64_t))));
  if (std::ssize(shape) > kMostDimensions)
    throw Error(fmt::format("values of a step: a tensor of {} dimensions", shape.size()));
  for (int64_t& size : shape) size = reader.number();
  const int64_t num_bytes = reader.count();
  if (bytes_of_shape(static_cast<DType>(dtype), shape) != num_bytes)
    throw Error(fmt::format("values of a step: {} bytes for a tensor of {} dimensions", num_bytes,
                            shape.size()));
  Array value = Array::zeros(static_cast<DType>(dtype), std::move(shape));
  reader.raw(value.data(), num_bytes);
  return value;
}

void wrong_count(int64_t expected, int64_t got) {
  throw Error(fmt::format("values of a step: a tuple of {}, expected {}", got, expected));
}

}  // namespace tutti::coordinator
