#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace vlmtrain::nn {

/// The tensors that a checkpointed block saves in its first run.
enum class CheckpointMode : uint8_t {
  kFull,       ///< its input
  kSelective,  ///< also the outputs of attention kernels, which then run once
};

/// Runs `block(input)` with activation checkpointing: only the input is saved, and the backward
/// pass runs the block again in the DropoutScope of the first run (Chen et al. 2016, arXiv
/// 1604.06174). Loss and gradients equal those of an ordinary run.
///
/// `parameters` are all leaf tensors read by the block that may require gradients. They become
/// inputs of the autograd node, so hooks see them once. Throws InternalError, in the backward pass
/// at the latest, if the block reads another tensor that requires gradients. The block must run the
/// same operations both times, draw random numbers only through segment_dropout(), and outlive the
/// backward pass.
at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& block, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, CheckpointMode mode = CheckpointMode::kFull);

/// Returns whether the current run needs gradients: autograd records them, or recompute() will run
/// the block again. Dropout depends on it and is therefore equal in both runs.
bool is_grad_needed();

}  // namespace vlmtrain::nn
