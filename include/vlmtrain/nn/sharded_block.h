#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorOptions.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "vlmtrain/nn/quantization.h"
#include "vlmtrain/nn/shard.h"

namespace vlmtrain::nn {

/// The weights of a block, of which this process holds one of equal parts. For as long as it is lent a place, where all
/// processes' parts have been brought together, the block's tensors are there; else their data pointer is null, and
/// they must not be read: Parameter::values() checks that, and BlockList has a block lent before it runs.
///
/// They lie end to end in two sections, each cut into parts by itself: what may be trained, in the model's dtype, and
/// what never is, in bytes: frozen weights, and quantised ones as they are packed. What shares an allocation there
/// keeps its distances, so that groups of weights (nn/linear.h) are still one.
class ShardedBlock {
 public:
  enum class Kind : uint8_t { kTrained, kFrozen };

  /// A weight: its tensor, or the tensors of a quantised one.
  struct Weight {
    Kind kind;
    at::Tensor tensor;
    std::shared_ptr<QuantizedWeight> quantized;
  };

  /// Takes the memory of its part, and lets the tensors' own go; their values are lost.
  ShardedBlock(const std::vector<Weight>& weights, const at::TensorOptions& options, const Shard& shard);

  /// Of a section of all processes together, in its dtype; 0: there is none.
  int64_t elements(Kind kind) const { return section(kind).elements; }
  /// This process's, [elements / shard.count].
  const at::Tensor& local_shard(Kind kind) const { return section(kind).local_shard; }
  /// What a place for both sections takes.
  int64_t bytes() const;
  /// A section in such a place, uint8 [≥ bytes()]: a view [elements].
  at::Tensor view_section(Kind kind, const at::Tensor& buffer) const;

  /// The tensors are in `buffer`, which must outlive that, until reshard(), also those that a graph has kept of an
  /// earlier place.
  void unshard(const at::Tensor& buffer);
  void reshard();
  bool is_unsharded() const { return is_unsharded_; }

  /// Of weight i, as given to the constructor.
  Kind kind(size_t i) const { return members_[i].kind; }
  /// Where in its section it begins. REQUIRES: it is not quantised.
  int64_t first(size_t i) const { return members_[i].stored.front().first; }
  /// What of it is in this process's part, in elements of its own. REQUIRES: it is not quantised.
  ElementRange local_range(size_t i) const;
  /// That piece, [count]: a view of the part.
  at::Tensor local_slice(size_t i) const;
  /// Copies of values of the whole weight what is in this process's part, converted or quantised.
  void set_values(size_t i, const at::Tensor& values);

 private:
  /// A tensor in its section. Places are in elements of the section's dtype.
  struct StoredTensor {
    at::Tensor tensor;
    int64_t first;
    int64_t elements;
  };
  struct Member {
    Kind kind;
    std::vector<StoredTensor> stored;
    std::shared_ptr<QuantizedWeight> quantized;
  };
  struct Section {
    at::ScalarType dtype = at::kByte;
    int64_t elements = 0;
    int64_t byte_offset = 0;  // in a place
    at::Tensor local_shard;
    c10::Storage storage;  // of the tensors
  };

  const Section& section(Kind kind) const { return sections_[static_cast<size_t>(kind)]; }
  Section& section(Kind kind) { return sections_[static_cast<size_t>(kind)]; }
  void layout_sections(const std::vector<Weight>& weights);
  void assign_offsets();
  void rebind_tensors(const at::TensorOptions& options);
  at::Tensor slice_local(const Section& section, const StoredTensor& stored) const;
  ElementRange find_local_range(const Section& section, const StoredTensor& stored) const;
  void set_storage(void* buffer);

  Shard shard_;
  at::Device device_;
  std::array<Section, 2> sections_;
  std::vector<Member> members_;
  bool is_unsharded_ = false;
};

}  // namespace vlmtrain::nn
