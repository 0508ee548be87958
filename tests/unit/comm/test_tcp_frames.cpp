// Headers of the tcp engine: what is written is read back, and everything else is refused with
// what was got and expected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tutti/comm/engine/detail/call.h"
#include "tutti/comm/tcp/frame.h"

namespace tutti::detail::tcp {
namespace {

using testing::HasSubstr;
using Bytes = std::array<std::byte, kHeaderBytes>;

Bytes encoded(const FrameHeader& header) {
  Bytes bytes;
  encode_header(header, bytes);
  return bytes;
}

TEST(TcpFrames, AreReadBackAsTheyWereWritten) {
  for (int kind = static_cast<int>(FrameKind::data); kind <= static_cast<int>(FrameKind::answer);
       ++kind) {
    const FrameHeader header{.kind = static_cast<FrameKind>(kind),
                             .call = 0x12345678,
                             .aux = 0x9abcdef0,
                             .number = 0x0123456789abcdef,
                             .elements = kMostBytes,
                             .length = kind == 1 ? uint64_t{kMostBytes} : 0};
    FrameHeader back;
    EXPECT_EQ(decode_header(encoded(header), back), "");
    EXPECT_EQ(back.kind, header.kind);
    EXPECT_EQ(back.call, header.call);
    EXPECT_EQ(back.aux, header.aux);
    EXPECT_EQ(back.number, header.number);
    EXPECT_EQ(back.elements, header.elements);
    EXPECT_EQ(back.length, header.length);
  }
}

TEST(TcpFrames, AreTheSameBytesOnEveryMachine) {
  const Bytes bytes = encoded({.kind = FrameKind::data, .call = 0x01020304});
  const char* const expected = "utt1\1\0\0\0\4\3\2\1";
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(static_cast<char>(bytes[i]), expected[i]) << i;
}

TEST(TcpFrames, OutsideTheirBoundsAreRefused) {
  struct Case {
    FrameHeader header;
    const char* words;
  };
  const Case cases[] = {
      {{.kind = static_cast<FrameKind>(0)}, "a frame of kind 0; expected 1 to 10"},
      {{.kind = static_cast<FrameKind>(11)}, "a frame of kind 11"},
      {{.elements = -1}, "counts -1 elements"},
      {{.elements = kMostBytes + 1}, "elements; expected 0 to 2^50"},
      {{.length = uint64_t{kMostBytes} + 1}, "expected at most"},
      {{.kind = FrameKind::message, .length = 65'537}, "65537 bytes; expected at most 65536"},
      {{.kind = FrameKind::part, .length = 1 << 20}, "expected at most 262144"},
      {{.kind = FrameKind::failure, .length = 5'000}, "expected at most 4096"},
      {{.kind = FrameKind::grant, .length = 1}, "expected at most 0"},
      {{.kind = FrameKind::leave, .length = ~uint64_t{0}}, "expected at most 0"},
  };
  for (const Case& row : cases) {
    FrameHeader header;
    EXPECT_THAT(decode_header(encoded(row.header), header), HasSubstr(row.words));
  }
  Bytes bytes = encoded({});
  bytes[3] = std::byte{'2'};
  FrameHeader header;
  EXPECT_THAT(decode_header(bytes, header), HasSubstr("a frame begins with 0x32747475"));
}

TEST(TcpFrames, CallsHaveWords) {
  struct Case {
    Operation operation;
    const char* words;
  };
  const MemorySpan ten{nullptr, 10, DType::float32};
  const Case cases[] = {
      {{}, "barrier"},
      {{.collective = Collective::all_reduce, .output = ten}, "all_reduce (sum) of 10 float32"},
      {{.collective = Collective::reduce, .reduce = ReduceOp::max, .root = 3, .output = ten},
       "reduce (max) of 10 float32 to rank 3"},
      {{.collective = Collective::broadcast, .root = 700, .output = ten},
       "broadcast of 10 float32 from rank 700"},
      {{.collective = Collective::scatter, .root = 1, .output = ten},
       "scatter of 40 float32 from rank 1"},
      {{.collective = Collective::gather, .input = ten, .output = {.dtype = DType::float32}},
       "gather of 40 float32 to rank 0"},
      {{.collective = Collective::all_to_all,
        .input = ten,
        .output = ten,
        .input_counts = {1, 2, 3, 4}},
       "all_to_all of float32, in parts of given lengths"},
      {{.collective = Collective::reduce_scatter,
        .input = {nullptr, 10, DType::bfloat16},
        .output = ten,
        .partial = true},
       "reduce_scatter (sum) of 10 bfloat16, not rounded"},
  };
  for (const Case& row : cases)
    EXPECT_EQ(call_words(pack_call(row.operation), call_elements(row.operation, 4)), row.words);
  EXPECT_EQ(call_words(0xffffffff, 1), "an unknown operation (0xffffffff)");
}

}  // namespace
}  // namespace tutti::detail::tcp
