#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace vlmtrain::nn {

class ActivationOffloader;

/// The tensors that a checkpointed block saves in its first run.
enum class CheckpointMode : uint8_t {
  kFull,       ///< the input of the block
  kSelective,  ///< also the outputs of attention kernels, which the second run reuses
};

/// A block with several inputs and outputs: the hidden states, and tensors that blocks exchange, such as keys and
/// values.
using BlockFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

/// Runs `block(inputs)` with activation checkpointing: only the inputs are saved, and the backward
/// pass runs the block again in the DropoutScope of the first run (Chen et al. 2016, arXiv
/// 1604.06174). Loss and gradients are equal to those without checkpointing.
///
/// `parameters` are all leaf tensors that the block reads and that may require gradients. They
/// become inputs of the autograd node, so their hooks run once per backward pass. Throws
/// InternalError, in the backward pass at the latest, if the block reads another tensor that
/// requires gradients. The block must run the same operations both times and draw random numbers
/// only through segment_dropout(). Objects that it references must outlive the backward pass.
///
/// `offloader`, which must outlive the backward pass, saves the first input; null: it stays on the device.
std::vector<at::Tensor> run_checkpointed(const BlockFunction& block, const std::vector<at::Tensor>& inputs,
                                         const std::vector<at::Tensor>& parameters,
                                         CheckpointMode mode = CheckpointMode::kFull,
                                         ActivationOffloader* offloader = nullptr);

/// Does the same for a block with one input and one output.
at::Tensor run_checkpointed(const std::function<at::Tensor(const at::Tensor&)>& block, const at::Tensor& input,
                            const std::vector<at::Tensor>& parameters, CheckpointMode mode = CheckpointMode::kFull);

/// Returns whether the current forward pass on this thread needs gradients: autograd records them,
/// or run_checkpointed() will run the block again. Dropout is active exactly then, so it is equal in both
/// runs.
bool is_grad_needed();

}  // namespace vlmtrain::nn
