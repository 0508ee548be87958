/// What a row of an embedding table is before its first push: a pure function of (seed, table name,
/// key). Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tutti/ps/spec/sparse_spec.h"

namespace tutti::ps::detail {

/// Keys the counters of a table: those that differ in any letter of the name share nothing.
uint64_t table_key(uint64_t seed, std::string_view name);

/// Writes the row of `key`; `table` is the table's table_key().
void fill_initial(const SparseTableSpec& spec, uint64_t table, uint64_t key, std::byte* row);

}  // namespace tutti::ps::detail
