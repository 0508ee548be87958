#include "tutti/data/safetensors.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/data/sample.h"

namespace tutti::data {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr size_t kSpareBytes = 1 << 16;
constexpr size_t kLengthBytes = 8;
constexpr int kDeepest = 8;                       // a header needs 3
constexpr size_t kMostHeaderBytes = 100'000'000;  // the limit of the format's own reader

struct Kind {
  std::string_view name;
  DType dtype;
};
constexpr Kind kKinds[] = {
    {"BOOL", DType::boolean},  {"U8", DType::uint8},   {"I8", DType::int8},
    {"U16", DType::uint16},    {"I16", DType::int16},  {"F16", DType::float16},
    {"BF16", DType::bfloat16}, {"U32", DType::uint32}, {"I32", DType::int32},
    {"F32", DType::float32},   {"U64", DType::uint64}, {"I64", DType::int64},
    {"F64", DType::float64},
};

std::string_view safetensors_name(DType dtype) {
  for (const Kind& kind : kKinds)
    if (kind.dtype == dtype) return kind.name;
  throw Error(fmt::format("dtype {} has no name in safetensors", name_of(dtype)));
}

// Largest elements first, so that each array is aligned for its dtype; then by name.
std::vector<const NamedArray*> layout(std::string_view what,
                                      const std::vector<NamedArray>& arrays) {
  std::vector<const NamedArray*> sorted;
  std::set<std::string_view> names;
  for (const NamedArray& entry : arrays) {
    if (entry.name.empty() || entry.name == kMetadataKey || !names.insert(entry.name).second)
      throw UsageError(
          fmt::format("cannot write {}: array name \"{}\" is empty, reserved or there twice", what,
                      entry.name));
    sorted.push_back(&entry);
  }
  std::sort(sorted.begin(), sorted.end(), [](const NamedArray* a, const NamedArray* b) {
    const auto bytes = [](const NamedArray* entry) { return size_of(entry->array.dtype()); };
    return bytes(a) != bytes(b) ? bytes(a) > bytes(b) : a->name < b->name;
  });
  return sorted;
}

std::span<const std::byte> contents_of(const NamedArray& entry) {
  return {static_cast<const std::byte*>(entry.array.data()),
          static_cast<size_t>(entry.array.num_bytes())};
}

// What a file has before its data: the header's length and the header.
std::string make_beginning(std::string_view what, const std::vector<const NamedArray*>& sorted,
                           const std::map<std::string, std::string>& metadata) {
  // Keys in the order in which the format's own writer puts them: equal content, equal bytes.
  std::string header;
  try {
    if (!metadata.empty())
      header += fmt::format(",\"{}\":{}", kMetadataKey, dump_json(Json(metadata)));
    int64_t offset = 0;
    for (const NamedArray* entry : sorted) {
      const int64_t end = offset + entry->array.num_bytes();
      header += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                            dump_json(Json(entry->name)), safetensors_name(entry->array.dtype()),
                            fmt::join(entry->array.shape(), ","), offset, end);
      offset = end;
    }
  } catch (const JsonError& error) {
    throw UsageError(fmt::format("cannot write {}: a name or metadata is no UTF-8 text: {}", what,
                                 error.what()));
  }
  header = "{" + (header.empty() ? header : header.substr(1)) + "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string length(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  return length + header;
}

// Turns the bytes of a file into a Safetensors, or says what is wrong with them.
class Reader {
 public:
  Reader(const std::filesystem::path& path, MappedFile file)
      : path_(path.string()), file_(std::move(file)) {}

  Safetensors read() {
    const Json header = parse(header_text());
    for (const auto& [key, value] : header.items()) {
      if (key == kMetadataKey) {
        read_metadata(value);
      } else {
        entries_.push_back(read_entry(key, value));
      }
    }
    require_contiguous();
    for (const Entry& entry : entries_) result_.arrays.push_back({entry.name, array_of(entry)});
    return std::move(result_);
  }

 private:
  struct Entry {
    std::string name;
    DType dtype = DType::uint8;
    std::vector<int64_t> shape;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw DataError(fmt::format("{}: no valid safetensors file: {}", path_,
                                fmt::format(format, std::forward<Args>(args)...)));
  }

  std::string_view header_text() {
    const size_t size = file_.bytes.size();
    if (size < kLengthBytes)
      fail("truncated: got {} bytes, expected {} of header length", size, kLengthBytes);
    uint64_t length = 0;
    for (size_t i = 0; i < kLengthBytes; ++i)
      length |= std::to_integer<uint64_t>(file_.bytes[i]) << (8 * i);
    if (length > std::min(kMostHeaderBytes, size - kLengthBytes)) refuse_torch_save();
    if (length > kMostHeaderBytes)
      fail("header length {}, expected at most {}", length, kMostHeaderBytes);
    if (length > size - kLengthBytes)
      fail("truncated: got {} bytes, expected {} of header alone", size, length + kLengthBytes);
    const auto* text = reinterpret_cast<const char*>(file_.bytes.data()) + kLengthBytes;
    data_ = file_.bytes.subspan(kLengthBytes + length);
    return {text, length};
  }

  // Which is a zip, or before PyTorch 1.6 pickles, the first of them of a long number.
  void refuse_torch_save() const {
    const std::string_view text(reinterpret_cast<const char*>(file_.bytes.data()),
                                file_.bytes.size());
    if (text.starts_with("PK\3\4") || text.starts_with("\x80\x02\x8a\x0a"))
      fail(
          "it looks like a file of torch.save; in Python: safetensors.torch.save_file("
          "torch.load(\"{}\", map_location=\"cpu\"), \"x.safetensors\")",
          path_);
  }

  Json parse(std::string_view text) const {
    if (!text.starts_with('{')) fail("the header does not start with '{{'");
    try {
      return parse_json_once(text, kDeepest);
    } catch (const JsonError& error) {
      fail("the header is no JSON: {}", error.what());
    }
  }

  void read_metadata(const Json& value) {
    if (!value.is_object()) fail("{} is {}, expected an object", kMetadataKey, value.type_name());
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string())
        fail("{} \"{}\" is {}, expected a string", kMetadataKey, key, text.type_name());
      result_.metadata[key] = text.get<std::string>();
    }
  }

  // A list of numbers >= 0, each within int64.
  std::vector<int64_t> read_numbers(const std::string& name, const char* key,
                                    const Json& value) const {
    std::vector<int64_t> numbers;
    if (!value.is_array()) fail("\"{}\": {} is {}, expected a list", name, key, value.type_name());
    for (const Json& number : value) {
      if (!number.is_number_unsigned() || number.get<uint64_t>() > INT64_MAX)
        fail("\"{}\": {} is {}, expected whole numbers >= 0", name, key, dump_json(value));
      numbers.push_back(number.get<int64_t>());
    }
    return numbers;
  }

  Entry read_entry(const std::string& name, const Json& value) const {
    if (!value.is_object()) fail("\"{}\" is {}, expected an object", name, value.type_name());
    for (const auto& [key, unused] : value.items())
      if (key != "dtype" && key != "shape" && key != "data_offsets")
        fail("\"{}\": unknown key \"{}\", expected dtype, shape, data_offsets", name, key);
    if (value.size() != 3) fail("\"{}\": a key of dtype, shape, data_offsets is missing", name);
    Entry entry{.name = name, .dtype = read_dtype(name, value["dtype"])};
    entry.shape = read_numbers(name, "shape", value["shape"]);
    const auto offsets = read_numbers(name, "data_offsets", value["data_offsets"]);
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      fail("\"{}\": data_offsets are [{}], expected [begin, end]", name, fmt::join(offsets, ", "));
    entry.begin = static_cast<uint64_t>(offsets[0]);
    entry.end = static_cast<uint64_t>(offsets[1]);
    require_size(entry);
    return entry;
  }

  DType read_dtype(const std::string& name, const Json& value) const {
    std::string known;
    for (const Kind& kind : kKinds) {
      if (value == kind.name) return kind.dtype;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", kind.name);
    }
    fail("\"{}\": got dtype {}, expected one of {}", name, dump_json(value), known);
  }

  void require_size(const Entry& entry) const {
    const auto bytes = bytes_of_shape(entry.dtype, entry.shape);
    if (!bytes || entry.end - entry.begin != static_cast<uint64_t>(*bytes))
      fail("\"{}\": got {} bytes by its offsets, expected {} for {} [{}]", entry.name,
           entry.end - entry.begin, bytes ? fmt::to_string(*bytes) : "more than any memory",
           name_of(entry.dtype), fmt::join(entry.shape, ", "));
  }

  // Sorts entries by place; no byte of the file may belong to two of them, or to none.
  void require_contiguous() {
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    uint64_t end = 0;
    for (const Entry& entry : entries_) {
      if (entry.begin != end)
        fail("\"{}\" begins at byte {} of the data, expected {}: arrays overlap or leave a gap",
             entry.name, entry.begin, end);
      end = entry.end;
    }
    if (end != data_.size())
      fail("{}: got {} bytes of data, expected {}", end > data_.size() ? "truncated" : "bytes left",
           data_.size(), end);
  }

  Array array_of(const Entry& entry) const {
    const std::byte* first = data_.data() + entry.begin;
    const auto alignment = static_cast<uintptr_t>(size_of(entry.dtype));
    if (reinterpret_cast<uintptr_t>(first) % alignment == 0)
      return Array::view(const_cast<std::byte*>(first), entry.dtype, entry.shape, file_.owner);
    Array copy = make_array(entry.dtype, entry.shape);
    std::memcpy(copy.data(), first, static_cast<size_t>(copy.num_bytes()));
    return copy;
  }

  std::string path_;
  MappedFile file_;
  std::span<const std::byte> data_;
  std::vector<Entry> entries_;
  Safetensors result_;
};

}  // namespace

const Array* Safetensors::find(const std::string& name) const noexcept {
  for (const NamedArray& entry : arrays)
    if (entry.name == name) return &entry.array;
  return nullptr;
}

int64_t write_safetensors(const std::filesystem::path& path, const std::vector<NamedArray>& arrays,
                          const std::map<std::string, std::string>& metadata, Sha256* digest) {
  const auto sorted = layout(path.string(), arrays);
  const std::string beginning = make_beginning(path.string(), sorted, metadata);
  std::vector<std::span<const std::byte>> pieces{std::as_bytes(std::span(beginning))};
  for (const NamedArray* entry : sorted) pieces.push_back(contents_of(*entry));
  write_file_atomically(path, pieces, digest);
  int64_t bytes = 0;
  for (const auto& piece : pieces) bytes += std::ssize(piece);
  return bytes;
}

std::vector<Array> SafetensorsImage::lay_out(const std::vector<NamedArray>& arrays,
                                             const std::map<std::string, std::string>& metadata) {
  constexpr std::string_view kWhat = "a file in memory";
  const auto sorted = layout(kWhat, arrays);
  const std::string beginning = make_beginning(kWhat, sorted, metadata);
  size_t size = beginning.size();
  for (const NamedArray* entry : sorted) size += static_cast<size_t>(entry->array.num_bytes());
  if (size > room_) make_room(size);
  size_ = size;
  std::memcpy(memory_.get(), beginning.data(), beginning.size());
  std::byte* place = memory_.get() + beginning.size();
  std::vector<Array> places(arrays.size());
  for (const NamedArray* entry : sorted) {
    const Array& array = entry->array;
    places[static_cast<size_t>(entry - arrays.data())] =
        Array::view(place, array.dtype(), array.shape(), memory_);
    place += array.num_bytes();
  }
  return places;
}

// With some more, for files that grow a little each time; it is not touched before.
void SafetensorsImage::make_room(size_t bytes) {
  bytes += bytes / 16 + kSpareBytes;
  constexpr std::align_val_t kAlignment{kDirectAlignment};
  memory_.reset();  // first: both at once may be too much
  room_ = size_ = 0;
  memory_ =
      std::shared_ptr<std::byte>(static_cast<std::byte*>(::operator new(bytes, kAlignment)),
                                 [](std::byte* memory) { ::operator delete(memory, kAlignment); });
  room_ = bytes;
}

Safetensors read_safetensors(const std::filesystem::path& path) {
  return parse_safetensors(map_file(path), path);
}

Safetensors parse_safetensors(MappedFile file, const std::filesystem::path& path) {
  return Reader(path, std::move(file)).read();
}

}  // namespace tutti::data
