#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tutti/base/file.h"
#include "tutti/data/dataset.h"
#include "tutti/data/safetensors.h"

#include "tests/support/expect.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"

namespace tutti::data {
namespace {

// A file in the format's own words: length, header, data.
std::string file_of(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes + header + data;
}

// Written by Python's safetensors 0.8.0: save_file({"b": arange(3, float32), "a": uint8 [[1, 2]],
// "d": float64 7}, metadata={"k": "v"}).
const std::string kFromPython =
    file_of(R"({"__metadata__":{"k":"v"},"d":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
            R"("b":{"dtype":"F32","shape":[3],"data_offsets":[8,20]},)"
            R"("a":{"dtype":"U8","shape":[1,2],"data_offsets":[20,22]}}    )",
            std::string("\0\0\0\0\0\0\x1c\x40\0\0\0\0\0\0\x80\x3f\0\0\0\x40\x01\x02", 22));

TEST(Safetensors, ReadsWhatPythonWrote) {
  const TempFolder folder;
  put_bytes(folder / "a", kFromPython);
  const Safetensors file = read_safetensors(folder / "a");
  ASSERT_EQ(file.arrays.size(), 3u);
  EXPECT_EQ(file.arrays[0].name, "d");
  EXPECT_EQ(file.arrays[0].array.to_string(), "float64 []");
  EXPECT_EQ(file.arrays[0].array.as<double>()[0], 7);
  ASSERT_NE(file.find("b"), nullptr);
  EXPECT_THAT(file.find("b")->as<float>(), ElementsAre(0, 1, 2));
  EXPECT_THAT(file.find("a")->as<uint8_t>(), ElementsAre(1, 2));
  EXPECT_THAT(file.find("a")->shape(), ElementsAre(1, 2));
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_THAT(file.metadata, ElementsAre(Pair("k", "v")));
}

TEST(Safetensors, WritesTheBytesPythonWrites) {
  const TempFolder folder;
  write_safetensors(folder / "a",
                    {{"b", array_of(std::vector<float>{0, 1, 2}, {3})},
                     {"a", array_of(std::vector<uint8_t>{1, 2}, {1, 2})},
                     {"d", array_of(std::vector<double>{7}, {})}},
                    {{"k", "v"}});
  EXPECT_EQ(get_bytes(folder / "a"), kFromPython);
}

TEST(Safetensors, KeepsEveryDtypeAndOddNames) {
  const TempFolder folder;
  std::vector<NamedArray> arrays;
  for (int kind = 0; kind <= static_cast<int>(DType::float64); ++kind) {
    const Array array = Array::zeros(static_cast<DType>(kind), {2, 3});
    std::memset(array.data(), kind == 0 ? 1 : 0x41 + kind, static_cast<size_t>(array.num_bytes()));
    arrays.push_back({"layer \"1\"\\\n\xc3\xa9." + std::to_string(kind), array});
  }
  arrays.push_back({"empty", Array::zeros(DType::float32, {0, 4})});
  write_safetensors(folder / "a", arrays);
  const Safetensors file = read_safetensors(folder / "a");
  ASSERT_EQ(file.arrays.size(), arrays.size());
  for (const auto& [name, array] : arrays) {
    const Array* read = file.find(name);
    ASSERT_NE(read, nullptr) << name;
    EXPECT_EQ(read->to_string(), array.to_string()) << name;
    EXPECT_EQ(std::memcmp(read->data(), array.data(), static_cast<size_t>(array.num_bytes())), 0);
    EXPECT_EQ(
        reinterpret_cast<uintptr_t>(read->data()) % static_cast<uintptr_t>(size_of(read->dtype())),
        0u);
  }
}

TEST(Safetensors, OrderOfArraysDoesNotChangeTheBytes) {
  const TempFolder folder;
  const NamedArray a{"a", array_of(std::vector<float>{1, 2}, {2})};
  const NamedArray b{"b", array_of(std::vector<int64_t>{3}, {1})};
  write_safetensors(folder / "ab", {a, b});
  write_safetensors(folder / "ba", {b, a});
  EXPECT_EQ(get_bytes(folder / "ab"), get_bytes(folder / "ba"));
}

TEST(Safetensors, AnImageHasTheBytesOfTheFile) {
  const TempFolder folder;
  const NamedArray small{"a", array_of(std::vector<float>{1, 2}, {2})};
  const NamedArray large{"b", Array::zeros(DType::int64, {100'000})};
  SafetensorsImage image;
  EXPECT_TRUE(image.bytes().empty());
  const std::byte* before = nullptr;
  for (const auto& arrays : std::vector<std::vector<NamedArray>>{
           {}, {small}, {small, large}, {}, {large}, {large, small}}) {
    const std::vector<Array> places = image.lay_out(arrays, {{"k", "v"}});
    for (size_t i = 0; i < arrays.size(); ++i)
      std::memcpy(places[i].data(), arrays[i].array.data(),
                  static_cast<size_t>(arrays[i].array.num_bytes()));
    write_safetensors(folder / "a", arrays, {{"k", "v"}});
    const auto bytes = image.bytes();
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
              get_bytes(folder / "a"));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % kDirectAlignment, 0u);
    if (arrays.size() == 2 && before == nullptr) before = bytes.data();
    EXPECT_TRUE(before == nullptr || bytes.data() == before);  // there is room for the others now
  }
  image.lay_out({small, large, {"grown", array_of(std::vector<double>(10), {10})}});
  EXPECT_EQ(image.bytes().data(), before);
  EXPECT_THAT(message_of<UsageError>([&] { image.lay_out({small, small}); }),
              HasSubstr("\"a\" is empty, reserved or there twice"));
}

TEST(Safetensors, AFileWithoutArraysIsValid) {
  const TempFolder folder;
  write_safetensors(folder / "a", {}, {{"step", "3"}});
  EXPECT_TRUE(read_safetensors(folder / "a").arrays.empty());
  EXPECT_EQ(read_safetensors(folder / "a").metadata.at("step"), "3");
  put_bytes(folder / "b", file_of("{}", ""));
  EXPECT_TRUE(read_safetensors(folder / "b").arrays.empty());
}

TEST(Safetensors, CopiesWhatTheFileDoesNotAlign) {
  const TempFolder folder;
  put_bytes(folder / "a", file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
                                  std::string("\x07\0\0\x80\x3f", 5)));
  const Safetensors file = read_safetensors(folder / "a");
  EXPECT_EQ(file.find("b")->as<float>()[0], 1.0f);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.find("b")->data()) % alignof(float), 0u);
}

TEST(Safetensors, RejectsBadFilesWithTheReason) {
  const std::string good = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  const auto entry = [](const std::string& text) { return "{\"a\":" + text + "}"; };
  const auto four_bytes_of = [&](const char* text) { return file_of(entry(text), "abcd"); };
  const struct {
    std::string bytes;
    const char* reason;
  } cases[] = {
      {"", "got 0 bytes, expected 8"},
      {"\x01\x02", "got 2 bytes, expected 8"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8), "header length 18446744073709551615"},
      {std::string("\x00\x10\0\0\0\0\0\0{}", 10), "got 10 bytes, expected 4104"},
      {"PK\3\4" + std::string("\0\0\x08\x08", 4),
       "torch.save; in Python: safetensors.torch.save_file"},
      {"PK\3\4" + std::string(60, '\0'), "torch.save"},
      {"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20", "torch.save"},
      {file_of("", ""), "does not start with '{'"},
      {file_of(" {}", ""), "does not start with '{'"},
      {file_of("[]", ""), "does not start with '{'"},
      {file_of("{\"a\":", ""), "no JSON"},
      {file_of("{} {}", ""), "no JSON"},
      {file_of("{\"\xff\":1}", ""), "no JSON"},
      {file_of(good.substr(0, good.size() - 1) + "," + good.substr(1), "abcd"),
       "\"a\" is there twice"},
      {four_bytes_of(R"({"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]})"),
       "\"dtype\" is there twice"},
      {file_of(entry("3"), ""), "is number, expected an object"},
      {four_bytes_of(R"({"dtype":"U8","shape":[4]})"), "is missing"},
      {four_bytes_of(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1})"),
       "unknown key \"x\""},
      {four_bytes_of(R"({"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]})"),
       "got dtype \"F8_E4M3\", expected one of BOOL, U8"},
      {four_bytes_of(R"({"dtype":1,"shape":[4],"data_offsets":[0,4]})"), "got dtype 1"},
      {four_bytes_of(R"({"dtype":"U8","shape":4,"data_offsets":[0,4]})"), "expected a list"},
      {four_bytes_of(R"({"dtype":"U8","shape":[-4],"data_offsets":[0,4]})"),
       "shape is [-4], expected whole numbers >= 0"},
      {four_bytes_of(R"({"dtype":"U8","shape":[4.0],"data_offsets":[0,4]})"), "whole numbers"},
      {four_bytes_of(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4]})"),
       "whole numbers"},
      {four_bytes_of(R"({"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,4]})"),
       "more than any memory"},
      {four_bytes_of(R"({"dtype":"U8","shape":[5],"data_offsets":[0,4]})"),
       "got 4 bytes by its offsets, expected 5 for uint8 [5]"},
      {four_bytes_of(R"({"dtype":"U8","shape":[4],"data_offsets":[4,0]})"),
       "data_offsets are [4, 0]"},
      {four_bytes_of(R"({"dtype":"U8","shape":[4],"data_offsets":[0,2,4]})"),
       "data_offsets are [0, 2, 4]"},
      {four_bytes_of(R"({"dtype":"U8","shape":[3],"data_offsets":[1,4]})"),
       "begins at byte 1 of the data, expected 0"},
      {file_of(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
               R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
               "abcd"),
       "begins at byte 2 of the data, expected 3: arrays overlap"},
      {file_of(good, "abc"), "truncated: got 3 bytes of data, expected 4"},
      {file_of(good, "abcde"), "bytes left: got 5 bytes of data, expected 4"},
      {file_of(R"({"__metadata__":{"k":1}})", ""), "\"k\" is number, expected a string"},
      {file_of(R"({"__metadata__":[]})", ""), "is array, expected an object"},
  };
  const TempFolder folder;
  for (const auto& [bytes, reason] : cases) {
    put_bytes(folder / "bad", bytes);
    EXPECT_THAT(message_of<DataError>([&] { read_safetensors(folder / "bad"); }),
                AllOf(HasSubstr((folder / "bad").string()), HasSubstr(reason)))
        << bytes;
  }
  EXPECT_THAT(message_of<DataError>([&] { read_safetensors(folder / "none"); }),
              HasSubstr("No such file"));
}

TEST(Safetensors, EveryTruncationIsAnErrorAndNoFlipCrashes) {
  const TempFolder folder;
  for (size_t size = 0; size < kFromPython.size(); ++size) {
    put_bytes(folder / "a", kFromPython.substr(0, size));
    EXPECT_THROW(read_safetensors(folder / "a"), DataError) << size;
  }
  const size_t header_end = kFromPython.size() - 22;
  int errors = 0;
  for (size_t at = 0; at < header_end; ++at) {
    for (int mask : {0x01, 0x02, 0x20, 0x80, 0xff}) {
      std::string damaged = kFromPython;
      damaged[at] = static_cast<char>(damaged[at] ^ mask);
      put_bytes(folder / "a", damaged);
      try {
        // Another name or dtype of the same size is not damage that can be seen.
        EXPECT_LE(read_safetensors(folder / "a").arrays.size(), 3u) << at;
      } catch (const DataError&) {
        ++errors;
      }
    }
  }
  EXPECT_GT(errors, static_cast<int>(header_end) * 4);
}

TEST(Safetensors, DeepNestingIsAnError) {
  const TempFolder folder;
  std::string header = "{\"a\":";
  header += std::string(100'000, '[') + std::string(100'000, ']') + "}";
  put_bytes(folder / "a", file_of(header, ""));
  EXPECT_THROW(read_safetensors(folder / "a"), DataError);
}

TEST(Safetensors, RejectsNamesThatCannotBeWritten) {
  const TempFolder folder;
  const Array array = Array::zeros(DType::float32, {1});
  put_bytes(folder / "a", "old");
  EXPECT_THROW(write_safetensors(folder / "a", {{"", array}}), UsageError);
  EXPECT_THROW(write_safetensors(folder / "a", {{"__metadata__", array}}), UsageError);
  EXPECT_THROW(write_safetensors(folder / "a", {{"x", array}, {"x", array}}), UsageError);
  EXPECT_THROW(write_safetensors(folder / "a", {{"\xff", array}}), UsageError);
  EXPECT_THROW(write_safetensors(folder / "a", {}, {{"k", "\xff"}}), UsageError);
  EXPECT_THAT(message_of<Error>([&] { write_safetensors(folder / "no/a", {{"x", array}}); }),
              HasSubstr("No such file or directory"));
  EXPECT_EQ(get_bytes(folder / "a"), "old");
  EXPECT_THAT(folder.names(), ElementsAre("a"));
}

TEST(SafetensorsPython, TheyAndWeReadEachOther) {
  const Python python("numpy, safetensors.numpy");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  const TempFolder folder;
  const std::string path = folder.path().string();
  write_safetensors(folder / "ours",
                    {{"conv.weight", array_of(std::vector<float>{1, 2, 3, 4}, {2, 2})},
                     {"steps", array_of(std::vector<int64_t>{-7}, {})},
                     {"mask", Array::zeros(DType::boolean, {3})},
                     {"none", Array::zeros(DType::float16, {0, 2})}},
                    {{"made by", "tutti"}});
  python.run(
      "from safetensors import safe_open\n"
      "from safetensors.numpy import load_file\n"
      "t = load_file('" +
      path +
      "/ours')\n"
      "assert sorted(t) == ['conv.weight', 'mask', 'none', 'steps'], t\n"
      "assert t['conv.weight'].tolist() == [[1, 2], [3, 4]]\n"
      "assert t['conv.weight'].dtype == 'float32' and t['steps'].dtype == 'int64'\n"
      "assert t['steps'].shape == () and t['steps'] == -7\n"
      "assert t['mask'].tolist() == [False] * 3 and t['none'].shape == (0, 2)\n"
      "assert safe_open('" +
      path + "/ours', 'np').metadata() == {'made by': 'tutti'}\n");
  python.run(
      "import numpy as np\n"
      "from safetensors.numpy import save_file\n"
      "save_file({'b': np.arange(3, dtype=np.float32), 'a': np.array([[1, 2]], np.uint8),\n"
      "           'd': np.array(7.0)}, '" +
      path + "/theirs', {'k': 'v'})\n");
  const Safetensors file = read_safetensors(folder / "theirs");
  EXPECT_THAT(file.find("b")->as<float>(), ElementsAre(0, 1, 2));
  EXPECT_EQ(file.metadata.at("k"), "v");
}

}  // namespace
}  // namespace tutti::data
