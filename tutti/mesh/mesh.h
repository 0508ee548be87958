/// Mesh: the replicas of a job as a box with an axis for each way to deal its work out.
///
/// A replica's place on each axis says which part of the work is its: which samples (data, shard),
/// which layers (stage), which piece inside of a layer (tensor). Axes stand in the order below, the
/// first outermost: ranks that differ in the last alone are neighbours, on one host where they can
/// be. Replicas that differ in data or shard alone hold the same part of the model.
///
///   const Mesh mesh = Mesh::parse("data=2,stage=2,tensor=2", 8);
///   mesh.place_of(5);                  // data 1, stage 0, tensor 1
///   mesh.members(5, Axis::tensor);     // 4, 5
///
/// Thread rule: a value; const functions from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::mesh {

enum class Axis : uint8_t {
  data,    ///< other samples, all of the model's state
  shard,   ///< other samples, and a piece of the state each
  stage,   ///< other layers
  tensor,  ///< other pieces of each layer that is cut
};
inline constexpr int kNumAxes = 4;
std::string_view name_of(Axis axis) noexcept;

/// By axis.
using Place = std::array<int, kNumAxes>;

class Mesh {
 public:
  /// All on the data axis.
  explicit Mesh(int replicas = 1);

  /// Of "data=2,stage=2": axes in any order, each once, those not named are 1; data may be left
  /// out, and is then what the others leave of `replicas`. "": all on the data axis. replicas 0: as
  /// many as the axes have. Throws UsageError for text that is none, and where the product is not
  /// `replicas`.
  static Mesh parse(std::string_view text, int replicas);

  int size(Axis axis) const noexcept { return sizes_[static_cast<size_t>(axis)]; }
  int replicas() const noexcept;
  /// Ranks in sync on other samples: data x shard.
  int data_replicas() const noexcept { return size(Axis::data) * size(Axis::shard); }
  /// Ranks that compute one of them together: stage x tensor.
  int model_ranks() const noexcept { return size(Axis::stage) * size(Axis::tensor); }

  /// rank in [0, replicas()).
  Place place_of(int rank) const noexcept;
  int rank_at(const Place& place) const noexcept;
  /// Ranks whose places differ from that of `rank` on these axes alone, itself among them,
  /// ascending.
  std::vector<int> members(int rank, const std::vector<Axis>& axes) const;

  /// "data=2,stage=2": axes of more than one, "data=1" where there is none.
  std::string to_string() const;
  /// "8 replicas: data 2 x stage 2 x tensor 2".
  std::string sentence() const;
  bool operator==(const Mesh&) const = default;

 private:
  Place sizes_{1, 1, 1, 1};
};

}  // namespace tutti::mesh
