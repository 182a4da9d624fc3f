#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/moments.h"

namespace vlmtrain::engine {

/// The fp32 values of a chunk of blocks while AdamW moves them. One for all groups of tensors.
struct ChunkRoom {
  /// Of at most `blocks` blocks, and never more than a chunk has.
  ChunkRoom(OptimizerStates states, int64_t blocks, const at::TensorOptions& options);

  MomentScratch scratch;
  at::Tensor first_values;   ///< fp32 [blocks, 256]
  at::Tensor second_values;  ///< the same
};

/// A part of a tensor: elements [first, first + count) of it, which lie from element `place` of its chunk on.
struct ChunkPiece {
  size_t tensor;
  int64_t first;
  int64_t count;
  int64_t place;
};

/// Blocks that are expanded, moved and compressed together.
struct Chunk {
  int64_t first_block;
  int64_t blocks;
  std::vector<ChunkPiece> pieces;
};

/// Both moments of several tensors, held in less than fp32. Only a chunk of them at a time exists in fp32.
class CompressedStates {
 public:
  /// Tensors of these sizes; all moments are zeros. `room` must outlive them.
  CompressedStates(const std::vector<int64_t>& elements, OptimizerStates states, ChunkRoom& room,
                   const at::TensorOptions& options);

  static int64_t blocks_of(int64_t elements);

  /// Chunks of all blocks of the tensors that are `wanted`, and of no others.
  std::vector<Chunk> chunks(const std::vector<bool>& wanted) const;

  /// Views of the room, [count], in which a chunk's piece lies between expand() and compress().
  at::Tensor first_values(const ChunkPiece& piece) const;
  at::Tensor second_values(const ChunkPiece& piece) const;

  void expand(const Chunk& chunk);
  void compress(const Chunk& chunk, const at::Tensor& skipped);

  /// What holds a tensor's moments, each with its name before the tensor's: `first_moment`, `second_moment`, and with 8
  /// bits `first_moment_absmax` and `second_moment_absmax`.
  std::vector<std::pair<std::string, at::Tensor>> state(size_t tensor) const;

 private:
  struct Place {
    int64_t elements;
    int64_t first_block;
    int64_t end_block() const { return first_block + blocks_of(elements); }
  };

  void add_chunks(std::vector<Chunk>& chunks, size_t first_tensor, size_t end_tensor) const;

  ChunkRoom& room_;
  std::vector<Place> places_;
  std::unique_ptr<Moments> first_, second_;
};

}  // namespace vlmtrain::engine
