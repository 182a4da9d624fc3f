#pragma once

#include <cstddef>
#include <cstdint>

namespace vlmtrain::nn {

/// What of a model a pass goes through.
struct PassSpec {
  int64_t vision_passes = 0;  ///< of the vision tower, one behind the other; all before the text model
  bool text_model = true;
  bool backward = false;  ///< the same once more, backwards
};

/// What brings the weights of blocks together where each process holds a part of them only, so that all have to run the
/// same blocks in the same order. Everything between begin_pass() and end_pass() is called by one process for itself;
/// what others run meanwhile that it does not is brought together there as well, and left unread.
class BlockUnsharder {
 public:
  BlockUnsharder() = default;
  virtual ~BlockUnsharder() = default;
  BlockUnsharder(const BlockUnsharder&) = delete;
  BlockUnsharder& operator=(const BlockUnsharder&) = delete;

  /// A forward pass begins, here or in other processes; all that this process does goes through it.
  virtual void begin_pass(const PassSpec& spec) = 0;
  /// The block whose parameters begin with `first` of ParameterStore::all() is about to be read: in a forward pass, or,
  /// behind it, in the backward pass.
  virtual void prepare_block(size_t first) = 0;
  /// It is over, or has failed. Nothing is there any more.
  virtual void end_pass() = 0;
  /// This process begins no pass and brings no block any more: goes along with what others do until that is so of all.
  virtual void join_remaining_passes() = 0;
  /// The block's weights are there, outside of passes, until another block's are brought or anything else is called.
  /// All other processes follow meanwhile.
  virtual void unshard_block(size_t first) = 0;
};

}  // namespace vlmtrain::nn
