#pragma once

#include <c10/core/Device.h>

#include <string>

#include "vlmtrain/engine/settings/options.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::train {

/// Returns the kernels' names, separated by commas.
std::string join_kernel_names(const kernels::KernelSet& kernels);

/// Returns the kernels that VLMTRAIN_WITHOUT_KERNELS names. Throws UserError for an unknown name.
kernels::KernelSet find_kernels_disabled_by_environment();

/// Returns the kernels that a run replaces by ATen's operations: all with training.kernels=aten,
/// else those that the GPU is known to compute wrongly and those that VLMTRAIN_WITHOUT_KERNELS
/// names. Throws UserError for an unknown name.
kernels::KernelSet find_disabled_kernels(const engine::TrainingOptions& options);

/// Loads the kernels for a device of memory::open_device(). Logs those that it computes wrongly.
void load_kernels(const engine::TrainingOptions& options, at::Device device);

}  // namespace vlmtrain::train
