// Lines from pieces of output, and the messages between workers and launcher.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "tutti/cluster/launch/detail/guard.h"
#include "tutti/cluster/launch/detail/news.h"
#include "tutti/cluster/launch/detail/output.h"
#include "tutti/cluster/rendezvous/detail/messages.h"

#include "tests/support/expect.h"

namespace tutti::detail {
namespace {

using Lines = std::vector<std::string>;

Lines lines_of(const std::vector<std::string>& pieces, bool finish = true) {
  LineSplitter splitter;
  Lines lines;
  const auto take = [&](std::string_view line) { lines.emplace_back(line); };
  for (const std::string& piece : pieces) splitter.append(piece, take);
  if (finish) splitter.finish(take);
  return lines;
}

TEST(LineSplitter, CutsHoweverThePiecesCome) {
  const std::string text = "one\n\ntwo words\nlast";
  const Lines expected = {"one", "", "two words", "last"};
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(lines_of({text.substr(0, cut), text.substr(cut)}), expected) << cut;
  }
  std::vector<std::string> letters;
  for (char letter : text) letters.emplace_back(1, letter);
  EXPECT_EQ(lines_of(letters), expected);
}

TEST(LineSplitter, GivesAPartialLineOnlyWhenFinished) {
  EXPECT_THAT(lines_of({"no end"}, false), ElementsAre());
  EXPECT_THAT(lines_of({"an end\n"}), ElementsAre("an end"));
  EXPECT_THAT(lines_of({}), ElementsAre());
}

TEST(LineSplitter, CutsALineThatNeverEnds) {
  const std::string piece(LineSplitter::kMaxLineBytes / 2, 'x');
  const Lines lines = lines_of({piece, piece, piece, "\n"});
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].size(), LineSplitter::kMaxLineBytes);
  EXPECT_EQ(lines[1], piece);
}

TEST(LastLines, KeepsTheLast) {
  LastLines last;
  for (int i = 0; i < 25; ++i) last.add(std::to_string(i));
  const Lines kept = last.lines();
  ASSERT_EQ(kept.size(), LastLines::kKept);
  EXPECT_EQ(kept.front(), "15");
  EXPECT_EQ(kept.back(), "24");
}

TEST(Outlet, KeepsWhatItsReaderDoesNotTake) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Outlet outlet(ends[1]);
  EXPECT_EQ(outlet.blocked_on(), -1);
  const std::string text(Outlet::kMostWaiting + 100'000, 'x');  // 100,000: more than a pipe holds
  outlet.add(text);
  outlet.write_some();  // returns
  EXPECT_TRUE(outlet.full());
  EXPECT_GE(outlet.blocked_on(), 0);
  EXPECT_EQ(fcntl(ends[1], F_GETFL) & O_NONBLOCK, 0) << "it is not ours alone";
  size_t total = 0;
  std::string bytes(4096, '\0');
  while (total < text.size()) {
    const ssize_t got = read(ends[0], bytes.data(), bytes.size());
    ASSERT_GT(got, 0);
    total += static_cast<size_t>(got);
    outlet.write_some();
  }
  EXPECT_EQ(total, text.size());
  EXPECT_TRUE(outlet.empty());
  close(ends[0]);
  close(ends[1]);
}

TEST(Outlet, DropsWhatCannotBeWritten) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  const int closed = dup(full);
  close(closed);
  for (const int descriptor : {full, closed}) {
    Outlet outlet(descriptor);
    outlet.add("dropped");
    outlet.write_some();
    EXPECT_TRUE(outlet.empty());
  }
  close(full);
}

TEST(Messages, ComeBackAsTheyWere) {
  for (const Notice& message :
       {Notice{Notice::Kind::joined, 3, 0, ""}, Notice{Notice::Kind::share, 0, 17, ""},
        Notice{Notice::Kind::lost, 2, 0, "was killed by SIGKILL"},
        Notice{Notice::Kind::refused, 0, 1, "needs 2 GiB\n  of memory"},
        Notice{Notice::Kind::failed, 1, 0, " leading space"},
        Notice{Notice::Kind::replicas, 0, 4, ""}}) {
    EXPECT_EQ(decode(encode(message)), message) << encode(message);
  }
}

TEST(Messages, OtherTextIsNone) {
  for (const char* text :
       {"", "joined", "joined 1", "joined one 0 ", "hello 1 2 text", "joined 1x 0 "}) {
    EXPECT_EQ(decode(text), std::nullopt) << text;
  }
}

TEST(Messages, ALongErrorIsCutToFit) {
  const Notice message{Notice::Kind::failed, 0, 0, std::string(1 << 20, 'x')};
  EXPECT_LT(encode(message).size(), size_t{16} << 10);
}

TEST(Messages, SeveralThatJoinedAreOneMessage) {
  std::vector<int> workers;
  for (int w = 0; w < 1024; ++w) workers.push_back(1023 - w);
  const auto all = decode(encode(joined_notice(workers)));
  ASSERT_TRUE(all);
  EXPECT_EQ(joined_workers(*all), workers);
  EXPECT_THAT(joined_workers(joined_notice({7})), ElementsAre(7));
}

/// What a worker that listens from now on has been sent.
std::vector<Notice> read_all(DescriptorChannel& channel, std::vector<FileDescriptor>* descriptors) {
  std::vector<Notice> messages;
  pollfd entry{channel.descriptor(), POLLIN, 0};
  while (poll(&entry, 1, 0) > 0) {
    auto received = channel.receive(Deadline(Millis{0}));
    messages.push_back(decode(received.text).value());
    for (FileDescriptor& fd : received.descriptors) descriptors->push_back(std::move(fd));
  }
  return messages;
}

TEST(News, WhoComesLateGetsThemInOneGo) {
  News news(1024);
  for (int w = 1; w < 1024; ++w) news.add({.kind = Notice::Kind::joined, .worker = w});
  news.add({.kind = Notice::Kind::lost, .worker = 3, .text = "how"});
  news.add({.kind = Notice::Kind::joined, .worker = 0});
  auto [ours, theirs] = DescriptorChannel::make_pair("worker", "launcher");
  EXPECT_TRUE(news.tell(0, ours));
  const auto messages = read_all(theirs, nullptr);
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(joined_workers(messages[0]).size(), 1023U);
  EXPECT_EQ(messages[1].worker, 3);
  EXPECT_THAT(joined_workers(messages[2]), ElementsAre(0));
  EXPECT_TRUE(news.tell(0, ours));
  EXPECT_TRUE(read_all(theirs, nullptr).empty()) << "told once";
}

TEST(News, NothingIsDroppedWhileAReaderIsSlow) {
  News news(2);
  auto [ours, theirs] = DescriptorChannel::make_pair("worker", "launcher");
  constexpr int kMany = 5000;  // more than a socket holds
  for (int i = 0; i < kMany; ++i) news.add({.kind = Notice::Kind::lost, .worker = 1, .number = i});
  EXPECT_FALSE(news.tell(0, ours));
  std::vector<Notice> got;
  for (bool all = false; !all && got.size() < kMany;) {
    for (Notice& message : read_all(theirs, nullptr)) got.push_back(std::move(message));
    all = news.tell(0, ours);
  }
  for (Notice& message : read_all(theirs, nullptr)) got.push_back(std::move(message));
  ASSERT_EQ(got.size(), size_t{kMany});
  for (int i = 0; i < kMany; ++i) EXPECT_EQ(got[static_cast<size_t>(i)].number, i);
}

TEST(News, DescriptorsReachTheOthersAndAreLetGo) {
  News news(3);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  std::vector<FileDescriptor> given;
  given.emplace_back(ends[1]);
  news.add({.kind = Notice::Kind::share, .worker = 0, .number = 4}, std::move(given));
  auto [ours, theirs] = DescriptorChannel::make_pair("worker", "launcher");
  std::vector<FileDescriptor> received;
  EXPECT_TRUE(news.tell(0, ours));
  EXPECT_TRUE(read_all(theirs, &received).empty()) << "its own";
  EXPECT_TRUE(news.tell(1, ours));
  EXPECT_EQ(read_all(theirs, &received).size(), 1U);
  ASSERT_EQ(received.size(), 1U);
  received.clear();
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), -1) << "kept for worker 2";
  news.leave(2);
  EXPECT_EQ(read(ends[0], &byte, 1), 0) << "nobody holds the other end";
  close(ends[0]);
}

TEST(Guard, DismissedItDoesNothing) {
  const pid_t bystander = fork();
  if (bystander == 0) {
    while (true) pause();
  }
  {
    Guard guard("TUTTI_LAUNCH=of the test");
    guard.add(bystander);
    EXPECT_THAT(children_of_this_process(), Contains(guard.pid()));
    EXPECT_FALSE(is_stopped(guard.pid()));
    guard.dismiss();
    EXPECT_EQ(guard.pid(), -1);
  }
  EXPECT_EQ(kill(bystander, 0), 0) << "not killed";
  EXPECT_EQ(kill_members("TUTTI_LAUNCH=of nobody", false, {}), 0);
  EXPECT_THAT(children_of_this_process(), Contains(bystander));
  EXPECT_EQ(kill_members("TUTTI_LAUNCH=of nobody", true, {}), 1) << "an orphan of the job";
  // What was killed is a zombie only a moment later, and reaped then.
  const auto is_there = [&] { return std::ranges::count(children_of_this_process(), bystander); };
  for (const Deadline deadline(Millis{10'000}); is_there() && !deadline.passed();)
    kill_members("TUTTI_LAUNCH=of nobody", true, {});
  EXPECT_THAT(children_of_this_process(), Not(Contains(bystander))) << "killed and reaped";
}

}  // namespace
}  // namespace tutti::detail
