// Reads event files slowly and by themselves: records with their checksums, and protobuf's fields.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::test {

/// The CRC-32C of `bytes`, bit by bit, as TensorFlow masks it.
inline uint32_t masked_crc(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc % 2 != 0 ? crc / 2 ^ 0x82F63B78 : crc / 2;
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xA282EAD8;
}

/// The first bytes of `bytes` as a number of this machine (tests run on little-endian ones).
template <class T>
T number_of(std::string_view bytes) {
  if (bytes.size() < sizeof(T)) throw std::runtime_error("a number is cut off");
  T number;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

inline std::vector<double> doubles_of(std::string_view bytes) {
  std::vector<double> numbers;
  for (; !bytes.empty(); bytes.remove_prefix(8)) numbers.push_back(number_of<double>(bytes));
  return numbers;
}

/// The data of each record; throws when one is cut off or has a wrong checksum.
inline std::vector<std::string> records_of(std::string_view file) {
  std::vector<std::string> records;
  while (!file.empty()) {
    const auto length = number_of<uint64_t>(file);
    if (number_of<uint32_t>(file.substr(8)) != masked_crc(file.substr(0, 8)))
      throw std::runtime_error("wrong checksum of a length");
    const std::string_view data = file.substr(12, length);
    if (number_of<uint32_t>(file.substr(12 + data.size())) != masked_crc(data))
      throw std::runtime_error("wrong checksum of data");
    records.emplace_back(data);
    file.remove_prefix(16 + length);
  }
  return records;
}

/// The fields of a protobuf message by number; of repeated ones the last.
class Message {
 public:
  explicit Message(std::string_view bytes) {
    while (!bytes.empty()) {
      const uint64_t key = varint(bytes);
      size_t length = 0;
      std::string value;
      switch (key & 7) {
        case 0: {
          const uint64_t number = varint(bytes);
          value.assign(reinterpret_cast<const char*>(&number), sizeof number);
          break;
        }
        case 1: length = 8; break;
        case 2: length = varint(bytes); break;
        case 5: length = 4; break;
        default: throw std::runtime_error("unknown wire type");
      }
      if (length > bytes.size()) throw std::runtime_error("a field is cut off");
      value += bytes.substr(0, length);
      bytes.remove_prefix(length);
      fields_[static_cast<int>(key >> 3)] = value;
    }
  }

  bool has(int field) const { return fields_.contains(field); }
  const std::string& text(int field) const { return fields_.at(field); }
  Message inner(int field) const { return Message(text(field)); }
  /// double, float, or uint64_t of a varint.
  template <class T>
  T at(int field) const {
    return number_of<T>(text(field));
  }

 private:
  static uint64_t varint(std::string_view& bytes) {
    uint64_t number = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = number_of<uint8_t>(bytes);
      bytes.remove_prefix(1);
      number |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return number;
    }
  }

  std::map<int, std::string> fields_;
};

}  // namespace tutti::test
