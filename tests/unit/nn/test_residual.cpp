#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tutti/nn/residual.h"

namespace tutti::nn {
namespace {

Value norm(const char* name, const Value& x) { return batch_norm2d().named(name)(x); }

std::vector<std::string> last_norms(const std::function<Value(const Value&)>& body) {
  const auto entry = input({2, 4, 4});
  const Graph graph(entry, body(entry));
  std::vector<std::string> names;
  for (const int place : last_batch_norms(graph))
    names.push_back(graph.nodes()[static_cast<size_t>(place)].name);
  return names;
}

TEST(LastBatchNorms, AreThoseWhereABranchEnds) {
  const auto conv = [](const Value& x) { return conv2d(2, 1)(x); };
  const struct {
    const char* name;
    std::function<Value(const Value&)> body;
    std::vector<std::string> expected;
  } cases[] = {
      {"no addition", [&](const Value& x) { return norm("n", conv(x)); }, {}},
      {"a shortcut", [&](const Value& x) { return add(norm("n", conv(x)), x); }, {"n"}},
      {"the shortcut first", [&](const Value& x) { return add(x, norm("n", conv(x))); }, {"n"}},
      {"a norm before the last convolution",
       [&](const Value& x) { return add(conv(norm("n", x)), x); },
       {}},
      {"a projection",
       [&](const Value& x) {
         return add(norm("n", conv(norm("m", conv(x)))), norm("shortcut", conv(x)));
       },
       {"n"}},
      {"branches of one length",
       [&](const Value& x) { return add(norm("n", conv(x)), norm("m", conv(x))); },
       {}},
      {"the norm of a shortcut beside a branch that ends otherwise",
       [&](const Value& x) { return add(relu()(conv(conv(x))), norm("n", x)); },
       {}},
      {"a norm that something else reads too",
       [&](const Value& x) {
         const Value n = norm("n", conv(x));
         return add(add(n, x), relu()(relu()(n)));
       },
       {}},
      {"a layer that ends a branch in one of its places alone",
       [&](const Value& x) {
         const Layer twice = batch_norm2d().named("n");
         return add(twice(conv(relu()(twice(conv(x))))), x);
       },
       {}},
      {"two blocks",
       [&](const Value& x) {
         const Value y = relu()(add(norm("n", conv(x)), x));
         return add(norm("m", conv(y)), y);
       },
       {"n", "m"}},
  };
  for (const auto& c : cases) EXPECT_EQ(last_norms(c.body), c.expected) << c.name;
}

TEST(LastBatchNorms, ThatAnOutputShowsStay) {
  const auto entry = input({2, 4, 4});
  const Value n = norm("n", conv2d(2, 1)(entry));
  const Graph graph({{"in", entry}}, {{"sum", add(n, entry)}, {"norm", n}});
  EXPECT_THAT(last_batch_norms(graph), ::testing::IsEmpty());
}

}  // namespace
}  // namespace tutti::nn
