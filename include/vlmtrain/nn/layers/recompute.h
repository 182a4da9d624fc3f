#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace vlmtrain::nn {

/// What a block that is run again keeps of its first run.
enum class CheckpointMode : uint8_t {
  kFull,
  kSelective,  ///< also what nn::attention's kernels gave, which do not run a second time then
};

/// Runs `block(input)` and keeps only the input for the backward pass, which runs the block again, in the
/// DropoutScope of the first run (Chen et al. 2016, arXiv 1604.06174). Loss and gradients are the same as without.
///
/// `parameters` are all tensors that the block reads and that may require gradients; they are inputs of the autograd
/// node like `input`, so that hooks and gradient synchronisation see them once; they are leaves. Another tensor that
/// requires gradients is refused with an InternalError, in the backward pass at the latest. The block must give the
/// same operations in both runs, draw nothing at random but by nn::segment_dropout, and outlive the backward pass.
at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& block, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, CheckpointMode mode = CheckpointMode::kFull);

/// Whether gradients through what runs now are wanted: they are recorded, or will be when `recompute` runs the block
/// again. Training differs from evaluation by it (dropout), in both runs of a block alike.
bool is_grad_needed();

}  // namespace vlmtrain::nn
