#pragma once

#include <string>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/engine/settings/options.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::train {

/// Returns the kernels' names, separated by commas.
std::string join_kernel_names(const kernels::KernelSet& kernels);

/// Returns the kernels that the environment variable VLMTRAIN_WITHOUT_KERNELS names, separated by
/// commas; empty if it is not set. Throws UserError (kUsage) for an unknown name.
kernels::KernelSet read_disabled_kernels_variable();

/// Returns the custom kernels that a run replaces with ATen's operations: all with
/// training.kernels=aten; otherwise the kernels that open_kernels() has disabled, because this GPU
/// computes them wrongly, and those in VLMTRAIN_WITHOUT_KERNELS. Throws UserError (kUsage) for an
/// unknown name.
kernels::KernelSet find_disabled_kernels(const engine::TrainingOptions& options);

/// Loads the custom kernels for `device`, which memory::open_device() has opened. Warns of kernels
/// whose results on this GPU differ from ATen's; ATen's operations replace them.
void load_custom_kernels(const engine::TrainingOptions& options, at::Device device);

}  // namespace vlmtrain::train
