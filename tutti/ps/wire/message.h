/// What workers, servers and the view service say to each other, and its bytes.
///
/// A frame is a head of fixed length, a text, and a payload, which may lie in memory that both ends
/// map (frame_stream.h). Every frame carries the number of the view that its sender goes by, so
/// that whoever was replaced is told so by its first word. docs/design/parameter_server.md.
/// Thread rule: plain values; encode and decode are pure.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::ps {

/// Bytes and what keeps them alive. Copies share them; nobody writes to them.
struct Bytes {
  std::span<const std::byte> span;
  std::shared_ptr<const void> owner;

  static Bytes copy_of(std::span<const std::byte> bytes);
  int64_t size() const noexcept { return static_cast<int64_t>(span.size()); }
};

/// Whom a message comes from or goes to, and over which connection: two servers that follow each
/// other have two.
struct Peer {
  enum class Kind : uint8_t {
    view_service,
    server,   ///< of a worker; of a primary, where it sends its log
    primary,  ///< of a server that gets a log
    worker,
  };
  Kind kind = Kind::view_service;
  int number = 0;  ///< of the server or worker
  auto operator<=>(const Peer&) const = default;
};
inline Peer server_peer(int number) { return {Peer::Kind::server, number}; }
inline Peer worker_peer(int number) { return {Peer::Kind::worker, number}; }

/// One partial sum of a push: of the replicas that `rank` stands for in the reduction shape.
struct Part {
  int32_t rank = 0;
  enum Use : uint8_t {
    left_out,
    counts,
    not_finite,  ///< infinite or NaN somewhere, as whoever added it up has seen: never applied
  };
  std::vector<uint8_t> used;  ///< a Use for each segment of the piece
  bool operator==(const Part&) const = default;
};

/// What the fields mean stands beside each kind; others are 0.
struct Message {
  enum class Kind : uint8_t {
    // A worker to the primary of a partition.
    hello,   ///< I am `worker`; `text` is the specification that I train by (spec.h)
    assign,  ///< `payload`: where `piece` begins; the first that comes counts. With a `text` it
             ///< goes on from a snapshot: DensePiece::restore(). `piece` kRest: the rest of
             ///< that, of the whole partition (Restored)
    push,    ///< gradients of `piece` in `step`, computed on `version`: `parts`, one after the
             ///< other in `payload`; number `sequence` of `worker`; `learning_rate`; `flags`
    pull,    ///< wants the parameters of `piece` to begin `step` with; `sequence`: how often it
             ///< has asked so beside its pushes, 0 where a push has asked
    sparse_push,  ///< gradients of rows of table `piece`: `payload` is keys, each once, then a row
                  ///< for each; else as push, and numbered with those
    sparse_pull,  ///< wants the rows of the keys in `payload`, of table `piece`, to begin `step`
                  ///< with; number `sequence` among those of `worker`
    mark,         ///< what `worker` has sent up to here belongs to cut `version`, what comes from
                  ///< `step` on does not (cut.h); numbered with its pushes; `text`: the folder;
                  ///< `piece`: number of the view in which the cut began
    // A primary to a worker.
    welcome,     ///< answer to hello: `sequence`: of its pushes this many are in the log; `version`
                 ///< 1: values were assigned, so that none have to be; `step`: number of its last
                 ///< request for a batch; `index`: in a replay, how often the worker has left
    refused,     ///< `text` says why; the worker is to give up
    settled,     ///< its push `sequence` is through: `flags`; `version` of the piece after it
    parameters,  ///< `payload`: those of `piece`, of `version`
    rows,        ///< answer to sparse_pull `sequence`: `payload` is a row a key, of `version`
    lease,       ///< wants a batch: `text` is a LeaseRequest (cursor.h); number `sequence`
    leased,      ///< answer: `text` is a Lease; `sequence` as in the question
    begins,      ///< `worker` has come again and begins with `step` (meetings.h)
    bring,    ///< brings `payload` to meeting `sequence` of those after `step` steps; once begun,
              ///< again: asks whom it waits for
    brought,  ///< answer: `text` and `payload` are what all have brought; the meeting as asked
    counts,   ///< asks; answers: `text` has the partition's counts (partition_state.h)
    waiting,  ///< its pull of `piece` for `step` waits for the workers in `text`; `sequence`:
              ///< its sparse_pull of that number does; 0: its pull. `piece` kMeeting: what it
              ///< has brought
    // Between the primary of a partition and its backup. Orders (hello, assign, push,
    // sparse_push, pull, lease, begins, bring, leave) go on as they are, with their place in the
    // log in `index`.
    leave,    ///< an order: `worker` is gone
    logged,   ///< backup: everything up to `index` is in my log
    copying,  ///< primary: what follows, up to copied, is all that I know at `index`
    chunk,    ///< `text` says of what, `payload` has it
    copied,   ///< that was all
    // With the view service.
    join,      ///< server (`sequence` -1: any number) or worker, of training `index` of the job:
               ///< `text` says where it listens
    joined,    ///< answer: the number is `sequence`, the silence limit `step` ms
    view,      ///< `text` is the view that counts from now on (view.h)
    synced,    ///< primary of `partition`: server `sequence` has caught up with me
    suspect,   ///< primary of `partition`: its backup, server `sequence`, does not answer; `text`
    progress,  ///< both: still there; a process's `text` says what it did last
    finished,  ///< worker: ends in order; service: the job is over, `text` says why if it failed,
               ///< or this training, unless it is the first;
               ///< coordinator to the service: no step is handed out any more, and the answer
    also,      ///< service to a server of training 0: be in a thread of your own, too, server
               ///< `sequence` (-1: any) of training `index`
    over,      ///< service to a server of training 0: it is over; others may come
    cut,       ///< service: to a worker: mark cut `sequence`, which began in this view and is to be
    ///< written to folder `text`; to a server, when no worker is left: write what you have
    written,  ///< primary: `partition` of cut `sequence` is on disk, `text` says what
              ///< (snapshot_writer.h); with not_written: it is not, `text` says why
    // Of a job with a coordinator (tutti/coordinator).
    meet,      ///< to the service: the coordinator listens at `text`; "": a worker asks where.
               ///< Answer: the place; the silence limit is `step` ms. Or `finished`
    enlist,    ///< a worker to the coordinator: I run the build and have the name in `text`
    enlisted,  ///< answer: be ready; the silence limit is `step` ms
    task,      ///< coordinator: run the step `text` on the values in `payload`; number `sequence`
    outcome,   ///< answer: `payload` is the result, or, `flags` being failed, `text` says why not
    mapped,    ///< of Streams alone: your memory can be read here
    released,  ///< of FrameStream alone: the payload at `index` of your memory is not read any more
  };
  /// Bits of `flags`.
  enum : uint32_t {
    last_of_step = 1,  ///< push: the last to this partition in this step
    then_pull = 2,     ///< push: wants the parameters for the next step, too
    dropped = 4,       ///< settled: came after the round was over, and was left out
    not_finite = 8,    ///< settled: left out, since `text` was not finite
    not_written = 16,  ///< written
    failed = 32,       ///< outcome: the step threw
    exactly = 64,      ///< pull: of version `step`, the newest or the one before, and no other
    in_order = 128,    ///< leave: its worker has finished, and was not lost
    replayed = 256,    ///< refused: in the order that is replayed the worker is lost here
  };
  /// As `piece` of an assign: what a partition has beside its pieces.
  static constexpr int32_t kRest = -1;
  /// As `piece` of waiting: the meeting to which its worker has brought something.
  static constexpr int32_t kMeeting = -2;

  Kind kind = Kind::progress;
  uint32_t flags = 0;
  int32_t partition = 0;
  int32_t worker = -1;
  int32_t piece = 0;
  int64_t view = 0;
  int64_t index = 0;
  int64_t sequence = 0;
  int64_t step = 0;
  int64_t version = 0;
  double learning_rate = 0;
  std::string text;
  std::vector<Part> parts;
  Bytes payload;
};

std::string_view name_of(Message::Kind kind) noexcept;

/// Whether the bytes of the payload follow the frame, or lie in memory of its sender's.
struct FrameHead {
  uint64_t text_bytes = 0;  ///< of text and parts, encoded
  uint64_t payload_bytes = 0;
  uint64_t place = 0;  ///< inline_payload, or where in the sender's shared file it begins
  static constexpr uint64_t inline_payload = ~uint64_t{0};
};

inline constexpr size_t kHeadBytes = 96;
inline constexpr uint64_t kMaxTextBytes = uint64_t{64} << 20;

/// The head of a frame: all numbers, little-endian.
std::array<std::byte, kHeadBytes> encode_head(const Message& message, const FrameHead& frame);
/// Text and parts behind it.
std::string encode_text(const Message& message);

/// Back; `message` keeps its text, parts and payload. Throws Error that says what is wrong with
/// bytes that encode_head() does not write or that announce more than the limits.
FrameHead decode_head(std::span<const std::byte, kHeadBytes> bytes, uint64_t max_payload_bytes,
                      Message& message);
void decode_text(std::string_view bytes, Message& message);

}  // namespace tutti::ps
