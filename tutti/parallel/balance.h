#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>
namespace tutti::parallel {
struct LayerCost { double seconds = 0; int64_t bytes_out = 0; int64_t bytes_memory = 0; };
struct LinkCost { double latency = 0; double seconds_per_byte = 0; };
std::vector<size_t> balanced(std::span<const LayerCost> layers, int stages, LinkCost link,
                             int64_t memory_limit = std::numeric_limits<int64_t>::max());
}
