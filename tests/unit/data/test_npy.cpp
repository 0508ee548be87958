#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tutti/data/npy.h"

#include "tests/support/expect.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data/gzip_support.h"

namespace tutti::data {
namespace {

// A file as the format's own words describe it: magic, version, length, dictionary, data.
std::string npy(int version, const std::string& dictionary, const std::string& data,
                size_t alignment = 64) {
  std::string text = "\x93NUMPY";
  text += {static_cast<char>(version), '\0'};
  const size_t prefix = version == 1 ? 10 : 12;
  std::string header = dictionary;
  while ((prefix + header.size() + 1) % alignment != 0) header += ' ';
  header += '\n';
  for (size_t i = 0; i < prefix - 8; ++i) text += static_cast<char>(header.size() >> (8 * i));
  return text + header + data;
}

std::string dictionary(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
}

// Small enough to damage every byte.
const std::string kSmall = npy(1, dictionary("|u1", "(3, 5)"), "abcdefghijklmno");

template <class T>
std::string raw(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST(Npy, ReadsAllVersions) {
  const TempFolder folder;
  const std::vector<float> values{1.5f, -2, 3, 4, 5, 6};
  for (int version : {1, 2, 3}) {
    put_bytes(folder / "a.npy", npy(version, dictionary("<f4", "(2, 3)"), raw(values)));
    const Array array = read_npy(folder / "a.npy");
    EXPECT_EQ(array.to_string(), "float32 [2, 3]");
    EXPECT_TRUE(std::ranges::equal(array.as<float>(), values));
  }
}

struct KindCase {
  const char* descr;
  DType dtype;
};
class NpyKinds : public testing::TestWithParam<KindCase> {};

TEST_P(NpyKinds, GoThereAndBackAndSwap) {
  const TempFolder folder;
  const auto [descr, dtype] = GetParam();
  const auto size = static_cast<size_t>(size_of(dtype));
  std::string bytes(6 * size, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i % 2);
  put_bytes(folder / "a.npy", npy(1, dictionary(descr, "(2, 3)"), bytes));
  const Array array = read_npy(folder / "a.npy");
  EXPECT_EQ(array.dtype(), dtype);
  EXPECT_THAT(array.shape(), ElementsAre(2, 3));
  EXPECT_EQ(std::memcmp(array.data(), bytes.data(), bytes.size()), 0);

  write_npy(folder / "b.npy", array);
  const Array again = read_npy(folder / "b.npy");
  EXPECT_EQ(again.to_string(), array.to_string());
  EXPECT_EQ(std::memcmp(again.data(), bytes.data(), bytes.size()), 0);
  const std::string written = get_bytes(folder / "b.npy");
  EXPECT_EQ(parse_npy_header(std::as_bytes(std::span(written)), "b").data_offset % 64, 0);

  if (size == 1) return;
  std::string big = bytes;
  for (size_t i = 0; i < big.size(); i += size)
    std::reverse(big.begin() + static_cast<long>(i), big.begin() + static_cast<long>(i + size));
  put_bytes(folder / "c.npy", npy(1, dictionary(">" + std::string(descr + 1), "(2, 3)"), big));
  put_bytes(folder / "c.npy.gz", gzip(get_bytes(folder / "c.npy")));
  for (const char* name : {"c.npy", "c.npy.gz"})
    EXPECT_EQ(std::memcmp(read_npy(folder / name).data(), bytes.data(), bytes.size()), 0) << name;
}

INSTANTIATE_TEST_SUITE_P(
    All, NpyKinds,
    testing::Values(KindCase{"|b1", DType::boolean}, KindCase{"|u1", DType::uint8},
                    KindCase{"|i1", DType::int8}, KindCase{"<u2", DType::uint16},
                    KindCase{"<i2", DType::int16}, KindCase{"<u4", DType::uint32},
                    KindCase{"<i4", DType::int32}, KindCase{"<u8", DType::uint64},
                    KindCase{"<i8", DType::int64}, KindCase{"<f2", DType::float16},
                    KindCase{"<f4", DType::float32}, KindCase{"<f8", DType::float64}));

TEST(Npy, MapsWhatIsAlignedAndCopiesWhatIsNot) {
  const TempFolder folder;
  const std::vector<double> values{1, 2, 3};
  // A header of 16-byte steps keeps doubles aligned; one of odd length does not.
  put_bytes(folder / "aligned.npy", npy(1, dictionary("<f8", "(3,)"), raw(values), 16));
  put_bytes(folder / "odd.npy", npy(1, dictionary("<f8", "(3,)"), raw(values), 75));
  for (const char* name : {"aligned.npy", "odd.npy"}) {
    const Array array = read_npy(folder / name);
    EXPECT_TRUE(std::ranges::equal(array.as<double>(), values)) << name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array.data()) % alignof(double), 0u) << name;
  }
}

TEST(Npy, TakesOddButValidHeaders) {
  const struct {
    const char* text;
    std::vector<int64_t> shape;
  } cases[] = {
      {"{'descr': '|u1', 'fortran_order': False, 'shape': ()}", {}},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}", {1}},
      {"{\"shape\":(1,1,1,),\"fortran_order\":False,\"descr\":\"|u1\"}", {1, 1, 1}},
      {"{ 'descr' : '<u1' , 'fortran_order' : True , 'shape' : ( 1L , ) , } ", {1}},
  };
  const TempFolder folder;
  for (const auto& [text, shape] : cases) {
    put_bytes(folder / "a.npy", npy(1, text, "x"));
    EXPECT_EQ(read_npy(folder / "a.npy").shape(), shape) << text;
  }
  put_bytes(folder / "a.npy", npy(1, dictionary("<f4", "(0, 7)"), ""));
  EXPECT_EQ(read_npy(folder / "a.npy").to_string(), "float32 [0, 7]");
}

TEST(Npy, RejectsBadHeadersWithTheReason) {
  const struct {
    const char* text;
    const char* reason;
  } cases[] = {
      {"", "expected '{'"},
      {"[]", "expected '{'"},
      {"{}", "is missing"},
      {"{'descr': '|u1', 'shape': (1,)}", "is missing"},
      {"{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (1,)}", "twice"},
      {"{'extra': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (1,)}", "unknown"},
      {"{'descr': '|u1', 'fortran_order': 0, 'shape': (1,)}", "expected True or False"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': (1)}", "no tuple"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': (-1,)}", "number >= 0"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': (1 1)}", "expected"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999,)}", "too large"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': (9223372036854775807, 3)}", "memory"},
      {"{'descr': '<f8', 'fortran_order': False, 'shape': (2305843009213693952,)}", "memory"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': (1,)} x", "follows"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': (1,)", "expected '}'"},
      {"{'descr': '|u1, 'fortran_order': False, 'shape': (1,)}", "expected"},
      {"{'descr': '|u1", "not closed"},
      {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "record"},
      {"{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", "got dtype '<c8'"},
      {"{'descr': '<U4', 'fortran_order': False, 'shape': (1,)}", "got dtype '<U4'"},
      {"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "got dtype '|O'"},
      {"{'descr': '|f4', 'fortran_order': False, 'shape': (1,)}", "got dtype '|f4'"},
      {"{'descr': '', 'fortran_order': False, 'shape': (1,)}", "got dtype ''"},
      {"{'descr': '|u1', 'fortran_order': True, 'shape': (1, 1)}", "Fortran order"},
  };
  const TempFolder folder;
  for (const auto& [text, reason] : cases) {
    put_bytes(folder / "bad.npy", npy(1, text, "x"));
    EXPECT_THAT(message_of<DataError>([&] { read_npy(folder / "bad.npy"); }),
                AllOf(HasSubstr("bad.npy"), HasSubstr(reason)))
        << text;
  }
}

TEST(Npy, RejectsMagicVersionAndSizesWithGotAndExpected) {
  const TempFolder folder;
  const auto why = [&](const std::string& bytes) {
    put_bytes(folder / "a.npy", bytes);
    return message_of<DataError>([&] { read_npy(folder / "a.npy"); });
  };
  EXPECT_THAT(why("PK\x03\x04 zip"),
              AllOf(HasSubstr("got 50 4b 03 04"), HasSubstr("expected 93 4e 55 4d 50 59")));
  std::string version = kSmall;
  version[6] = 4;
  EXPECT_THAT(why(version), HasSubstr("got .npy version 4.0, expected 1.0, 2.0 or 3.0"));
  EXPECT_THAT(why(npy(2, std::string(70'000, ' '), "")), HasSubstr("got a length of"));
  EXPECT_THAT(
      why(kSmall.substr(0, kSmall.size() - 1)),
      HasSubstr("truncated: got 142 bytes, expected 143 (128 of header, 15 for uint8 [3, 5])"));
  EXPECT_THAT(why(kSmall + "!"), HasSubstr("bytes left over: got 144 bytes, expected 143"));
  EXPECT_THAT(message_of<DataError>([&] { read_npy(folder / "none.npy"); }),
              AllOf(HasSubstr("none.npy"), HasSubstr("No such file")));
  EXPECT_THAT(message_of<DataError>([&] { read_npy(folder.path()); }), HasSubstr("a folder"));
}

TEST(Npy, EveryTruncationIsAnError) {
  const TempFolder folder;
  const std::string packed = gzip(kSmall);
  for (size_t size = 0; size < kSmall.size(); ++size) {
    put_bytes(folder / "a.npy", kSmall.substr(0, size));
    put_bytes(folder / "a.npy.gz", gzip(kSmall.substr(0, size)));
    EXPECT_THROW(read_npy(folder / "a.npy"), DataError) << size;
    EXPECT_THROW(read_npy(folder / "a.npy.gz"), DataError) << size;
  }
  for (size_t size = 0; size < packed.size(); ++size) {
    put_bytes(folder / "b.npy.gz", packed.substr(0, size));
    EXPECT_THROW(read_npy(folder / "b.npy.gz"), DataError) << size;
  }
}

TEST(Npy, FlippedBytesNeverCrash) {
  const TempFolder folder;
  const std::string packed = gzip(kSmall);
  int errors = 0;
  for (size_t at = 0; at < 128; ++at) {
    for (int mask : {0x01, 0x10, 0x80, 0xff}) {
      std::string damaged = kSmall;
      damaged[at] = static_cast<char>(damaged[at] ^ mask);
      put_bytes(folder / "a.npy", damaged);
      try {
        EXPECT_EQ(read_npy(folder / "a.npy").num_bytes(), 15) << at;  // as int8, or as (5, 3)
      } catch (const DataError&) {
        ++errors;
      }
    }
  }
  EXPECT_GT(errors, 400);  // of 512; blanks may turn into line ends, u1 into i1
  for (size_t at = 10; at < packed.size(); ++at) {  // the first ten bytes hold time and system
    std::string damaged = packed;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    put_bytes(folder / "a.npy.gz", damaged);
    try {
      // Bits that fill up the last byte before the checksum mean nothing.
      EXPECT_EQ(std::memcmp(read_npy(folder / "a.npy.gz").data(), "abcdefghijklmno", 15), 0);
      EXPECT_EQ(at, packed.size() - 9);
    } catch (const DataError&) {
      ++errors;
    }
  }
  EXPECT_GE(errors, 400 + static_cast<int>(packed.size()) - 11);
}

TEST(NpyGz, ReadsOneMemberAndSeveral) {
  const TempFolder folder;
  put_bytes(folder / "one.npy.gz", gzip(kSmall));
  put_bytes(folder / "three.npy.gz",
            gzip(kSmall.substr(0, 9)) + gzip(kSmall.substr(9, 121)) + gzip(kSmall.substr(130)));
  put_bytes(folder / "empty_member.npy.gz", gzip(kSmall) + gzip(""));
  for (const char* name : {"one.npy.gz", "three.npy.gz", "empty_member.npy.gz"}) {
    const Array array = read_npy(folder / name);
    EXPECT_EQ(array.to_string(), "uint8 [3, 5]") << name;
    EXPECT_EQ(std::memcmp(array.data(), "abcdefghijklmno", 15), 0) << name;
  }
  put_bytes(folder / "v2.npy.gz", gzip(npy(2, dictionary("|u1", "(0,)"), "")));
  EXPECT_EQ(read_npy(folder / "v2.npy.gz").to_string(), "uint8 [0]");
}

TEST(NpyGz, RejectsWhatIsNoWholeGzipFile) {
  const TempFolder folder;
  const auto why = [&](const std::string& bytes) {
    put_bytes(folder / "a.npy.gz", bytes);
    return message_of<DataError>([&] { read_npy(folder / "a.npy.gz"); });
  };
  EXPECT_THAT(why(kSmall), AllOf(HasSubstr("a.npy.gz"), HasSubstr("no gzip file")));
  EXPECT_THAT(why(""), HasSubstr("truncated"));
  EXPECT_THAT(why(gzip(kSmall) + "garbage"), HasSubstr("no gzip file"));
  EXPECT_THAT(why(gzip(kSmall) + '\x1f'), HasSubstr("truncated"));
  EXPECT_THAT(why(gzip(kSmall + "!")), HasSubstr("bytes left over"));
  EXPECT_THAT(why(gzip(kSmall) + gzip("!")), HasSubstr("bytes left over"));
  EXPECT_THAT(why(gzip(kSmall.substr(0, 140))), HasSubstr("got 140 bytes, expected 143"));
}

TEST(NpyGz, AnAbsurdShapeTakesNoMemory) {
  const TempFolder folder;
  // Zeros, a member a mebibyte: packed a thousandfold, and so no more than a claim.
  const std::string zeros = gzip(std::string(1 << 20, '\0'));
  std::string packed = gzip(npy(1, dictionary("|u1", "(300000000,)"), ""));
  for (int i = 0; i < 300; ++i) packed += zeros;
  put_bytes(folder / "b.npy.gz", packed);
  EXPECT_THAT(message_of<DataError>([&] { read_npy(folder / "b.npy.gz"); }),
              AllOf(HasSubstr("unpacks to 300000000 bytes or more"), HasSubstr("gunzip")));
  put_bytes(folder / "a.npy.gz", gzip(npy(1, dictionary("|u1", "(9000000000000000,)"), "abc")));
  EXPECT_THAT(message_of<DataError>([&] { read_npy(folder / "a.npy.gz"); }),
              HasSubstr("9000000000000000 bytes"));
}

TEST(Npy, WriteRejectsWhatTheFormatLacks) {
  const TempFolder folder;
  EXPECT_THROW(write_npy(folder / "a.npy", Array::zeros(DType::bfloat16, {2})), UsageError);
  EXPECT_TRUE(folder.names().empty());
}

TEST(NpyPython, NumpyAndWeReadEachOther) {
  const Python python("numpy");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  const TempFolder folder;
  const std::string path = folder.path().string();
  python.run(
      "import numpy as np\n"
      "np.save('" +
      path +
      "/a.npy', np.arange(12, dtype='>i4').reshape(3, 4) - 5)\n"
      "np.save('" +
      path +
      "/b.npy', np.float16(2.5))\n"
      "np.lib.format.write_array(open('" +
      path + "/c.npy', 'wb'), np.ones((2, 3), bool), (3, 0))\n");
  EXPECT_THAT(read_npy(folder / "a.npy").as<int32_t>(),
              ElementsAre(-5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(read_npy(folder / "b.npy").to_string(), "float16 []");
  EXPECT_EQ(read_npy(folder / "c.npy").to_string(), "bool [2, 3]");

  write_npy(folder / "ours.npy", read_npy(folder / "a.npy"));
  python.run(
      "import numpy as np\n"
      "a = np.load('" +
      path +
      "/ours.npy')\n"
      "assert a.dtype == np.int32 and (a == np.arange(12).reshape(3, 4) - 5).all()\n");
}

}  // namespace
}  // namespace tutti::data
