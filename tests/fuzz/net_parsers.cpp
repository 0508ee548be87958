#include "tests/fuzz/net_parsers.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/comm/engine/detail/call.h"
#include "tutti/comm/tcp/frame.h"
#include "tutti/net/address.h"
#include "tutti/net/descriptor_channel.h"
#include "tutti/net/handshake.h"
#include "tutti/net/text_stream.h"
#include "tutti/ps/snapshot/snapshot_manifest.h"
#include "tutti/ps/wire/message.h"

#include "tests/fuzz/checkpoint_manifest.h"
#include "tests/fuzz/exported_files.h"
#include "tests/fuzz/record_formats.h"
#include "tests/fuzz/table_files.h"

namespace tutti::test {
namespace {

/// A promise of the parser is broken: ends the process, which both drivers report with the input.
void promise(bool kept) {
  if (!kept) std::abort();
}

const Token& token() {
  static const Token fixed = Token::parse(std::string(64, '5'), "the fuzzer's token");
  return fixed;
}

/// Gives bytes in pieces as the machine wants them.
void give(Handshake& handshake, std::string_view bytes) {
  while (!bytes.empty() && handshake.wanted() > 0) {
    const size_t part = std::min(bytes.size(), handshake.wanted());
    promise(handshake.wanted() <= kMaxFactsBytes + 64);
    handshake.receive(bytes.substr(0, part));
    bytes.remove_prefix(part);
  }
}

/// No bytes from outside are ever believed: whoever writes them does not know the nonce of this
/// run.
void run_handshake(Handshake::Role role, std::string_view bytes) {
  Handshake handshake(role, token(), {.job = "job", .to = "me"});
  try {
    give(handshake, bytes);
  } catch (const Error&) {
    promise(handshake.wanted() == 0);
  }
  promise(!handshake.done());
}

void server(std::string_view bytes) { run_handshake(Handshake::Role::server, bytes); }
void client(std::string_view bytes) { run_handshake(Handshake::Role::client, bytes); }

/// What follows an honest hello.
void server_after_hello(std::string_view bytes) {
  const Handshake honest(Handshake::Role::client, token(), {.job = "job"});
  run_handshake(Handshake::Role::server, std::string(honest.to_send()) + std::string(bytes));
}
void client_after_hello(std::string_view bytes) {
  Handshake first(Handshake::Role::client, token(), {.job = "job"});
  Handshake honest(Handshake::Role::server, token(), {.job = "job"});
  give(honest, first.to_send());
  run_handshake(Handshake::Role::client, std::string(honest.to_send()) + std::string(bytes));
}

void facts(std::string_view bytes) {
  const Facts read = parse_facts(bytes);
  promise(encode_facts(read) == bytes);
}

void host_port(std::string_view bytes) {
  const HostPort read = parse_host_port(bytes, "fuzzer");
  promise(read.port != 0 && !read.host.empty());
  promise(parse_host_port(read.text(), "fuzzer").port == read.port);
}

void address(std::string_view bytes) {
  const auto read = Address::from_number(bytes, 7);
  if (!read) return;
  promise(Address::from_number(read->number(), 7) == read);
}

void subnet(std::string_view bytes) {
  const Subnet read = parse_subnet(bytes, "fuzzer");
  promise(read.contains(read.first));
}

void token_text(std::string_view bytes) { Token::parse(bytes, "fuzzer"); }

/// One packet on a socket of a DescriptorChannel.
void descriptor_channel(std::string_view bytes) {
  auto [first, second] = DescriptorChannel::make_pair("fuzzer", "fuzzer");
  if (send(first.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
  first.close();
  while (true) promise(second.receive(Deadline(Millis(0))).text.size() <= bytes.size());
}

/// Frames of a TextStream: at most 100 bytes each are allowed.
void text_stream(std::string_view bytes) {
  auto [first, second] = make_link_pair("fuzzer", "fuzzer");
  const iovec piece{const_cast<char*>(bytes.data()), std::min<size_t>(bytes.size(), 4096)};
  first->write_some({&piece, 1});
  first.reset();
  TextStream stream(std::move(second), 100);
  while (const auto text = stream.receive()) promise(text->size() <= 100);
}

/// A header of the tcp engine, whose every field comes from a peer.
void tcp_frame(std::string_view bytes) {
  if (bytes.size() < detail::tcp::kHeaderBytes) return;
  const auto* const start = reinterpret_cast<const std::byte*>(bytes.data());
  detail::tcp::FrameHeader header;
  const std::span<const std::byte, detail::tcp::kHeaderBytes> given(start,
                                                                    detail::tcp::kHeaderBytes);
  if (!detail::tcp::decode_header(given, header).empty()) return;
  promise(header.elements >= 0 && header.length <= static_cast<uint64_t>(detail::tcp::kMostBytes));
  promise(header.kind == detail::tcp::FrameKind::data ||
          header.length <= static_cast<uint64_t>(detail::tcp::kMessagePartBytes));
  promise(!detail::call_words(header.call, header.elements).empty());
  std::byte again[detail::tcp::kHeaderBytes];
  detail::tcp::encode_header(header, again);
  promise(std::equal(given.begin(), given.end(), again));
}

/// Head and text of a parameter server's frame.
void ps_frame(std::string_view bytes) {
  constexpr uint64_t kMostPayload = 1 << 20;
  const auto all = std::as_bytes(std::span(bytes));
  if (all.size() < ps::kHeadBytes) return;
  ps::Message message;
  const auto head = all.first<ps::kHeadBytes>();
  const ps::FrameHead frame = ps::decode_head(head, kMostPayload, message);
  promise(frame.payload_bytes <= kMostPayload && frame.text_bytes <= ps::kMaxTextBytes);
  promise(!ps::name_of(message.kind).empty());
  const auto again = ps::encode_head(message, frame);
  promise(std::equal(head.begin(), head.end(), again.begin()));
  const std::string_view text = bytes.substr(ps::kHeadBytes);
  ps::decode_text(text, message);
  promise(message.text.size() <= text.size());
  const bool nothing = message.text.empty() && message.parts.empty();
  promise(nothing || ps::encode_text(message) == text);
}

/// A manifest as it lies in its folder, and once more under a digest that is right: whoever can
/// write it can do that, too.
void snapshot_manifest(std::string_view bytes) {
  const auto read = [](std::string_view text) {
    const ps::SnapshotManifest manifest = ps::manifest_from(text, "fuzzer");
    promise(std::ssize(manifest.partitions) == manifest.spec.num_partitions);
    promise(manifest.step >= 0 && manifest.step <= ps::Staleness::kMost);
    for (const auto& partition : manifest.partitions)
      for (const auto& file : partition.files)
        promise(file.name.find('/') == std::string::npos && file.bytes >= 0);
  };
  try {
    read(bytes);
  } catch (const Error&) {
    read(ps::sealed_manifest(bytes));
  }
}

/// The metadata of a file of one variable and one table.
void snapshot_content(std::string_view bytes) {
  static const ps::Spec spec = [] {
    ps::Spec made;
    made.variables = {{"w", {3, 5}, DType::float32}};
    made.tables = {{.name = "t", .width = 2}};
    made.num_partitions = 2;
    return made;
  }();
  const ps::SavedContent content = ps::content_from(bytes, spec, "fuzzer");
  promise(content.partition >= 0 && content.partition < 2 && content.table <= 0);
  for (const ps::SavedRange& range : content.ranges)
    promise(range.variable == 0 && range.begin >= 0 && range.begin < range.end && range.end <= 15 &&
            range.version >= 0 && range.scalars.count >= 0);
}

/// A text of which the piece between \x01 and \x02 comes so often that it is deeper than any stack:
/// so few bytes are enough for one.
std::string deepened(std::string_view bytes) {
  constexpr size_t kBytes = 200'000;
  const size_t begin = bytes.find('\x01'), end = bytes.find('\x02');
  if (end == std::string_view::npos || begin >= end) return std::string(bytes);
  const std::string_view piece = bytes.substr(begin + 1, end - begin - 1);
  std::string text(bytes.substr(0, begin));
  while (!piece.empty() && text.size() < kBytes) text += piece;
  return text.append(bytes.substr(end + 1));
}

/// What is done with values everywhere: they are printed, copied and compared.
void json_text(std::string_view bytes) {
  try {
    const Json read = parse_json(deepened(bytes));
    const Json copy = read;
    promise(dump_json_lossy(copy).size() > 0);
    promise(copy == read);
    promise(OrderedJson(copy) == OrderedJson(read));
  } catch (const JsonError&) {
  }
}
void jsonl_deep(std::string_view bytes) { jsonl_file(deepened(bytes)); }
void pt2_program_deep(std::string_view bytes) { pt2_program(deepened(bytes)); }
void mds_index_deep(std::string_view bytes) { record_mds_index(deepened(bytes)); }

struct Parser {
  std::string_view name;
  void (*run)(std::string_view);
};
constexpr std::array kParsers = {
    Parser{"handshake-server", server},
    Parser{"handshake-client", client},
    Parser{"handshake-server-after-hello", server_after_hello},
    Parser{"handshake-client-after-hello", client_after_hello},
    Parser{"facts", facts},
    Parser{"host-port", host_port},
    Parser{"address", address},
    Parser{"subnet", subnet},
    Parser{"token", token_text},
    Parser{"descriptor-channel", descriptor_channel},
    Parser{"text-stream", text_stream},
    Parser{"tcp-frame", tcp_frame},
    Parser{"ps-frame", ps_frame},
    Parser{"checkpoint-manifest", checkpoint_manifest},
    Parser{"checkpoint-state", checkpoint_state},
    Parser{"snapshot-manifest", snapshot_manifest},
    Parser{"snapshot-content", snapshot_content},
    Parser{"example", record_example},
    Parser{"tfrecord", record_tfrecord},
    Parser{"record-index", record_index_file},
    Parser{"tar", record_tar},
    Parser{"mds-index", record_mds_index},
    Parser{"mds-shard", record_mds_shard},
    Parser{"csv", csv_file},
    Parser{"idx", idx_file},
    Parser{"jsonl", jsonl_file},
    Parser{"json", json_text},
    Parser{"jsonl-deep", jsonl_deep},
    Parser{"mds-index-deep", mds_index_deep},
    Parser{"mds-packed", record_mds_packed},
    Parser{"kept-sample", record_kept_sample},
    Parser{"npy-header", record_npy_header},
    Parser{"safetensors", record_safetensors},
    Parser{"pt2-archive", pt2_archive},
    Parser{"pt2-program", pt2_program},
    Parser{"pt2-weights", pt2_weights},
    Parser{"pt2-program-deep", pt2_program_deep},
    Parser{"stroke-lines", stroke_lines},
    Parser{"stroke-rows", stroke_rows},
    Parser{"stroke-records", stroke_records},
};

}  // namespace

void parse_as_from_network(std::span<const uint8_t> input) {
  if (input.empty()) return;
  const std::string_view bytes(reinterpret_cast<const char*>(input.data()), input.size());
  try {
    kParsers[input[0] % kParsers.size()].run(bytes.substr(1));
  } catch (const Error&) {  // a refusal is the right answer
  }
}

std::span<const std::string_view> parser_names() {
  static const auto names = [] {
    std::array<std::string_view, kParsers.size()> all;
    std::transform(kParsers.begin(), kParsers.end(), all.begin(),
                   [](const Parser& parser) { return parser.name; });
    return all;
  }();
  return names;
}

}  // namespace tutti::test
