/// Plan: which layers of a graph are cut into blocks, and along what.
///
///   const parallel::Plan plan = {{"*.wte", parallel::rows()},
///                                {"*.attn.c_attn", parallel::columns()},
///                                {"*.attn.attention", parallel::heads()},
///                                {"*.c_proj", parallel::rows()},
///                                {"lm_head", parallel::columns()}};
///
/// Columns and heads give *Blocks*, of which only heads, rows and layers that work element by
/// element (relu, gelu, tanh) read; rows give the whole again (docs/design/model_parallel.md).
/// Everything is checked before anything is made. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tutti/nn/graph.h"

namespace tutti::parallel {

/// How the blocks of a layer are cut.
enum class Role : uint8_t {
  whole,    ///< not at all: each rank computes all of it
  columns,  ///< units of linear, words of a tied head: whole to Blocks
  rows,     ///< features of linear (Blocks, or parts of a whole), words of embedding: to whole
  heads,    ///< of attention, whose queries, keys and values are columns: Blocks to Blocks
};
constexpr Role columns() { return Role::columns; }
constexpr Role rows() { return Role::rows; }
constexpr Role heads() { return Role::heads; }

/// Patterns of layers' names, in which * stands for any characters, and the role of those that
/// match. The first that matches a layer counts; others stay whole.
using Plan = std::vector<std::pair<std::string, Role>>;

/// What a plan makes of a node.
struct NodeRole {
  Role role = Role::whole;
  /// Of columns that attention reads: 3, since each block has queries, keys and values.
  int64_t stacked = 1;
  /// The layer whose columns or heads this node's value are blocks of, or were until an element by
  /// element layer; "": the value is whole.
  std::string blocks_of{};
  bool operator==(const NodeRole&) const = default;
};

/// The role of each of graph.nodes(). With one block nothing is cut: all are whole, once the plan
/// is found to be right.
///
/// A head that is tied to an embedding has the embedding's words: where these are cut (rows), it is
/// cut into columns. An output of the graph that is Blocks will be put together along its last
/// dimension.
///
/// Throws UsageError that names the layer and what to try: a pattern that matches no layer, a role
/// that the layer cannot have, fewer units, features or words than blocks, heads that do not divide
/// by `blocks` ("layer X: 6 heads on tensor = 4 (possible: 1, 2, 3, 6)"), a layer that reads Blocks
/// and cannot (dropout among them: its masks are those of whole samples), heads that do not read
/// the columns of one linear layer, or such a layer that others read too.
std::vector<NodeRole> roles_of(const nn::Graph& graph, const Plan& plan, int blocks);

/// A plan for `blocks` that roles_of() takes, by the graph's form: linear, attention, linear are
/// columns, heads and rows, where the heads divide by `blocks`; linear, layers element by element,
/// linear are columns and rows; an embedding is rows, and so its tied head columns; a last linear
/// layer with more units than features is columns (logits of a vocabulary). Each value between them
/// must have one reader. All other layers, those of fewer elements than blocks, and layers that are
/// applied twice stay whole.
Plan default_plan(const nn::Graph& graph, int blocks);

/// Why the graph cannot be cut before node `place`, that is, between the columns and rows of a
/// plan: a sentence that names both layers. "": it can.
std::string why_no_cut(const nn::Graph& graph, const std::vector<NodeRole>& roles, size_t place);

}  // namespace tutti::parallel
