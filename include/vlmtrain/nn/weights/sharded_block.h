#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorOptions.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "vlmtrain/memory/host_arena.h"
#include "vlmtrain/nn/weights/quantized_weight.h"
#include "vlmtrain/nn/weights/shard.h"

namespace vlmtrain::nn {

/// The weights of a block. This rank owns one shard of them, which may be in host memory; without
/// sharding, it is all of them. Between unshard() and reshard() the block's tensors point into a
/// gathered buffer. At other times their data pointer is null and they
/// must not be read; Parameter::values() checks this.
///
/// The weights are in two sections, each sharded separately: trained weights in the model's dtype,
/// and frozen weights as bytes, in packed form if quantized. Tensors that together fill one allocation
/// keep their relative offsets, so groups of Linears remain adjacent; of a block that is not whole, only
/// frozen ones. Not thread-safe.
class ShardedBlock {
 public:
  /// The section of a weight.
  enum class SectionKind : uint8_t { kTrained, kFrozen };

  /// A weight to be sharded: a tensor, or a quantized weight.
  struct Weight {
    SectionKind kind;
    at::Tensor tensor;                                  ///< ignored if `quantized_weight` is not null
    std::shared_ptr<QuantizedWeight> quantized_weight;  ///< null unless quantized
  };

  /// Allocates the local shard, in `arena` unless it is null, and frees the memory of the given tensors,
  /// whose values are lost. `options`: device, and dtype of the trained weights. Throws the exceptions of
  /// memory::HostArena::allocate().
  ShardedBlock(const std::vector<Weight>& weights, const at::TensorOptions& options, const Shard& shard,
               memory::HostArena* arena = nullptr);

  /// Returns whether the shard is the whole block.
  bool is_whole() const { return shard_.covers_all(); }
  /// Returns whether the shard is in host memory.
  bool is_on_host() const { return is_on_host_; }

  /// Returns the number of elements of the whole section with padding, in its dtype; 0 if it is
  /// empty.
  int64_t elements(SectionKind kind) const { return section(kind).elements; }
  /// Returns the local shard of the section, [elements / shard.count].
  const at::Tensor& local_shard(SectionKind kind) const { return section(kind).local_shard; }
  /// Returns the same memory as a CPU tensor. REQUIRES: is_on_host().
  const at::Tensor& host_shard(SectionKind kind) const { return section(kind).host_shard; }
  /// Returns the bytes of a buffer for both gathered sections.
  int64_t bytes() const;
  /// Returns the view [elements] of a section in such a buffer, uint8 [≥ bytes()].
  at::Tensor view_section(SectionKind kind, const at::Tensor& buffer) const;

  /// Points all tensors into `buffer`, including those that a graph saved during an earlier
  /// unshard(). `buffer`, uint8 [≥ bytes()] with the gathered sections, must live until reshard().
  /// Throws InternalError if the block is unsharded or the buffer too small.
  void unshard(const at::Tensor& buffer);
  /// Sets the data pointers of all tensors to null. May be called repeatedly.
  void reshard();
  bool is_unsharded() const { return is_unsharded_; }

  /// Returns the section of weight i, in the order of the constructor.
  SectionKind section_kind(size_t i) const { return sharded_weights_[i].kind; }
  /// Returns the offset of weight i in its section, in elements of the section's dtype. REQUIRES:
  /// the weight is not quantized.
  int64_t section_offset(size_t i) const { return sharded_weights_[i].stored_tensors.front().first; }
  /// Returns whether two weights were in one allocation, and are adjacent in the block. REQUIRES: neither is
  /// quantized.
  bool are_adjacent(size_t i, size_t j) const {
    return sharded_weights_[i].stored_tensors.front().allocation ==
           sharded_weights_[j].stored_tensors.front().allocation;
  }
  /// Returns the elements of weight i that are in the local shard, relative to the weight. Throws
  /// InternalError if the weight is quantized.
  ElementRange local_range(size_t i) const;
  /// Returns local_range() of weight i as a view of the local shard, [count]. Throws InternalError
  /// if the weight is quantized.
  at::Tensor view_local_values(size_t i) const;
  /// The same for the host's use, as memory::view_on_host(). REQUIRES: is_on_host().
  at::Tensor view_host_values(size_t i) const { return memory::view_on_host(view_local_values(i)); }
  /// Copies the local part of `values`, the whole weight i, into the local shard, converted to the
  /// dtype or quantized. A quantized weight needs a temporary buffer of bytes(); throws
  /// InternalError if the block is unsharded then.
  void set_values(size_t i, const at::Tensor& values);

 private:
  /// A tensor in its section. Offsets are in elements of the section's dtype.
  struct StoredTensor {
    at::Tensor tensor;
    int64_t first;
    int64_t elements;
    const void* allocation = nullptr;  // before the block was made; of a group that stays adjacent
  };
  /// A weight and its tensors: one, or several if quantized.
  struct ShardedWeight {
    SectionKind kind;
    std::vector<StoredTensor> stored_tensors;
    std::shared_ptr<QuantizedWeight> quantized_weight;
  };
  struct Section {
    at::ScalarType dtype = at::kByte;
    int64_t elements = 0;
    int64_t byte_offset = 0;  // in the gathered buffer
    at::Tensor local_shard;   // on the device, or as the device sees it
    at::Tensor host_shard;    // the same memory as a CPU tensor; undefined if it is not in host memory
    c10::Storage storage;     // shared by the tensors; points into the gathered buffer or is null
  };

  const Section& section(SectionKind kind) const { return sections_[static_cast<size_t>(kind)]; }
  Section& section(SectionKind kind) { return sections_[static_cast<size_t>(kind)]; }
  void lay_out_sections(const std::vector<Weight>& weights);
  void assign_offsets();
  void allocate_shards(const at::TensorOptions& options, memory::HostArena* arena);
  void rebind_tensors();
  at::Tensor slice_shard(const Section& section, const at::Tensor& shard, const StoredTensor& stored) const;
  ElementRange find_local_range(const Section& section, const StoredTensor& stored) const;
  void set_storage(void* buffer);

  Shard shard_;
  at::Device device_;
  std::array<Section, 2> sections_;
  std::vector<ShardedWeight> sharded_weights_;
  bool is_on_host_;
  bool is_unsharded_ = false;
};

/// The blocks that a forward pass runs.
struct ForwardPassSpec {
  int64_t num_vision_passes = 0;  ///< number of runs of the vision tower, all before the text model
  bool runs_text_model = true;    ///< whether the text model runs, once
  bool runs_backward = false;     ///< whether a backward pass follows
};

/// An interface that unshards blocks before their use and reshards them after it. All ranks take
/// part in the collectives of the same blocks in the same order, also a rank that does not run a
/// block. Not thread-safe.
class BlockUnsharder {
 public:
  BlockUnsharder() = default;
  virtual ~BlockUnsharder() = default;
  BlockUnsharder(const BlockUnsharder&) = delete;
  BlockUnsharder& operator=(const BlockUnsharder&) = delete;

  /// Begins a forward pass on this rank. All blocks that run until end_pass() belong to it.
  virtual void begin_pass(const ForwardPassSpec& spec) = 0;
  /// Unshards the block whose parameters begin at `first` of ParameterStore::all(), in a forward
  /// pass or the backward pass that follows it.
  virtual void prepare_block(size_t first) = 0;
  /// Ends the pass, also after a failure. Releases all gathered weights.
  virtual void end_pass() = 0;
  /// Takes part in the collectives of the other ranks' passes until no rank begins another pass.
  /// This rank must not begin a pass afterwards.
  virtual void join_remaining_passes() = 0;
  /// Unshards a block outside of passes, until the next call of any method. All other ranks must be
  /// in join_remaining_passes().
  virtual void unshard_block(size_t first) = 0;
};

}  // namespace vlmtrain::nn
