// Archives that are sound: what is read of them, and checksums of large records.
#include <gtest/gtest.h>

#include "tutti/base/random.h"
#include "tutti/pt2/archive.h"
#include "tutti/pt2/program.h"

#include "tests/support/expect.h"
#include "tests/support/pt2_files.h"

namespace tutti::pt2 {
namespace {

const std::string kSoundFile = "tests/tables/exported/pictures.pt2";

Archive archive_in(const std::string& bytes) {
  return Archive(MappedFile{std::as_bytes(std::span(bytes)), nullptr}, "memory.pt2");
}

TEST(Archives, RecordsAreThoseOfTheFile) {
  const Archive archive{std::filesystem::path(kSoundFile)};
  EXPECT_EQ(archive.text("archive_format"), "pt2");
  EXPECT_EQ(archive.text("byteorder"), "little");
  EXPECT_TRUE(archive.has("models/model.json"));
  EXPECT_FALSE(archive.has("pictures/models/model.json")) << "without the root folder";
  const ZipFile zip = read_zip(kSoundFile);
  EXPECT_EQ(archive.records().size(), zip.records.size());
  for (const ZipRecord& record : zip.records)
    EXPECT_EQ(archive.text(record.name.substr(zip.root().size())), record.bytes);
  EXPECT_THAT(message_of<DataError>([&] { archive.read("none"); }),
              HasSubstr("pictures.pt2: has no record \"none\""));
}

TEST(Archives, ChecksumsOfLargeRecordsAreOfAllTheirBytes) {
  ZipFile zip = read_zip(kSoundFile);
  RandomStream random(1);
  std::string large((13u << 20) + 7, '\0');
  for (char& byte : large) byte = static_cast<char>(random.below(256));
  zip.add("extra/large", large);
  std::string bytes = zip.bytes();
  EXPECT_EQ(archive_in(bytes).text("extra/large").size(), large.size());
  const size_t begin = bytes.find(large.substr(0, 64));
  for (const size_t at : {size_t{0}, large.size() / 2, large.size() / 2 + 1, large.size() - 1}) {
    bytes[begin + at] ^= 1;
    EXPECT_THAT(message_of<DataError>([&] { archive_in(bytes).read("extra/large"); }),
                HasSubstr("is damaged: its CRC-32 is"))
        << at;
    bytes[begin + at] ^= 1;
  }
}

TEST(Programs, SayWhatAModelIsMadeOf) {
  const Program program = read_program(Archive{std::filesystem::path(kSoundFile)});
  EXPECT_THAT(program.order,
              ElementsAre("conv.weight", "norm.weight", "norm.bias", "head.weight", "head.bias",
                          "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"));
  EXPECT_TRUE(program.tensors.at("conv.weight").is_parameter);
  EXPECT_FALSE(program.tensors.at("norm.running_var").is_parameter);
  EXPECT_EQ(program.tensors.at("norm.num_batches_tracked").meta.element, Element::int64);
  EXPECT_THAT(program.input_names, ElementsAre("x"));
  EXPECT_THAT(program.output_names, ElementsAre("output"));
  const auto& input = std::get<ValueName>(program.graph.inputs.back().value).name;
  const TensorMeta& meta = program.graph.tensors.at(input);
  ASSERT_EQ(meta.sizes.size(), 4u);
  EXPECT_FALSE(meta.sizes[0].is_known());
  EXPECT_TRUE(program.ranges.contains(std::string(meta.sizes[0].symbol())));
  EXPECT_EQ(meta.sizes[3].value, 12);
  const auto dropout =
      std::ranges::find(program.graph.nodes, "torch.ops.aten.dropout.default", &Node::target);
  ASSERT_NE(dropout, program.graph.nodes.end());
  EXPECT_EQ(dropout->module, "drop");
  EXPECT_THAT(dropout->line, MatchesRegex("make_for_model.py:[0-9]+, in forward: .*drop.*"));
}

}  // namespace
}  // namespace tutti::pt2
