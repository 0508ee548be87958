#include "tutti/pt2/tree.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/json.h"

namespace tutti::pt2 {
namespace {

constexpr int kDeepest = 64;
constexpr std::string_view kDefaultDictionary = "collections.defaultdict";

std::string key_text(const Json& key) { return key.is_string() ? key.text() : key.dump(); }

/// Keys, where a container has one for each of its children; none: it has numbers.
std::vector<std::string> keys_of(const Json& tree, size_t children) {
  Json context = tree.at("context");
  if (context.is_string()) {
    if (!is_json(context.text())) return {};
    context = parse_json(context.text(), kDeepest);
  }
  // A defaultdict has what makes its values before its keys.
  if (tree.at("type") == kDefaultDictionary && context.is_array() && context.size() == 2)
    context = Json(context.at(1));
  if (!context.is_array() || context.size() != children) return {};
  std::vector<std::string> keys;
  for (const Json& key : context) {
    if (!key.is_string() && !key.is_number()) return {};
    keys.push_back(key_text(key));
  }
  return keys;
}

Tree tree_of(const Json& json) {
  Tree tree;
  if (json.at("type").is_null()) return tree;
  for (const Json& child : json.at("children_spec").elements())
    tree.children.push_back(tree_of(child));
  tree.keys = keys_of(json, tree.children.size());
  tree.kind = tree.keys.empty() ? Tree::Kind::list : Tree::Kind::dictionary;
  return tree;
}

void add_names(const Tree& tree, const std::string& name, std::vector<std::string>& names) {
  if (tree.kind == Tree::Kind::leaf) names.push_back(name);
  for (size_t i = 0; i < tree.children.size(); ++i) {
    const std::string step = tree.kind == Tree::Kind::dictionary ? tree.keys[i] : std::to_string(i);
    add_names(tree.children[i], name.empty() ? step : name + "." + step, names);
  }
}

}  // namespace

size_t Tree::leaves() const {
  if (kind == Kind::leaf) return 1;
  return std::accumulate(children.begin(), children.end(), size_t{0},
                         [](size_t sum, const Tree& child) { return sum + child.leaves(); });
}

Tree read_tree(std::string_view text, std::string_view what) {
  try {
    const Json json = parse_json(text, kDeepest);
    if (json.at(0) != 1)
      throw DataError(fmt::format("{}: a tree of version {}, expected 1", what, json.at(0).dump()));
    return tree_of(json.at(1));
  } catch (const JsonError& error) {
    throw DataError(fmt::format("{}: no tree of containers: {}", what, error.what()));
  }
}

std::vector<std::string> leaf_names(const Tree& tree, std::string_view alone) {
  std::vector<std::string> names;
  add_names(tree, tree.kind == Tree::Kind::leaf ? std::string(alone) : "", names);
  return names;
}

std::vector<std::string> argument_names(const Tree& tree,
                                        const std::vector<std::string>& arguments) {
  std::vector<std::string> names;
  if (tree.children.size() != 2) return leaf_names(tree, "input");
  const auto& positional = tree.children[0].children;
  for (size_t i = 0; i < positional.size(); ++i)
    add_names(positional[i], i < arguments.size() ? arguments[i] : fmt::format("input{}", i),
              names);
  add_names(tree.children[1], "", names);
  return names;
}

}  // namespace tutti::pt2
