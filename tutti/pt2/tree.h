/// Trees of Python's containers ("pytrees"): how a .pt2 file says which arguments forward takes and
/// what it gives. Thread rule: values, and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::pt2 {

struct Tree {
  enum class Kind : uint8_t { leaf, list, dictionary };
  Kind kind = Kind::leaf;  ///< list: tuples, and what else has no names
  std::vector<Tree> children;
  std::vector<std::string> keys;  ///< of a dictionary, one for each child

  size_t leaves() const;
};

/// What "in_spec" and "out_spec" say. Containers of any type are read: those with a key for each
/// child are dictionaries, as the outputs of transformers are. DataError, which begins with `what`,
/// for another text.
Tree read_tree(std::string_view text, std::string_view what);

/// A name for each leaf: keys and numbers on the way, with dots ("loss", "hidden.0"); of a tree
/// that is a leaf, `alone`.
std::vector<std::string> leaf_names(const Tree& tree, std::string_view alone);

/// The same for arguments: a tree of (positional, by name), where positional ones are called as
/// `arguments` says.
std::vector<std::string> argument_names(const Tree& tree,
                                        const std::vector<std::string>& arguments);

}  // namespace tutti::pt2
