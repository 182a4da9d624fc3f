#pragma once

#include <c10/core/Device.h>

#include <string>

#include "vlmtrain/engine/options.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::train {

/// Their names, with commas between them.
std::string join_kernel_names(const kernels::KernelSet& kernels);

/// Those that VLMTRAIN_WITHOUT_KERNELS names. Throws UserError where it names one that there is not.
kernels::KernelSet find_kernels_disabled_by_environment();

/// What a run leaves to ATen's operations: all kernels with training.kernels=aten, else what its card computes wrongly,
/// as far as that is known, and those that VLMTRAIN_WITHOUT_KERNELS names in the environment. Throws UserError where it
/// names one that there is not.
kernels::KernelSet find_disabled_kernels(const engine::TrainingOptions& options);

/// Loads the kernels for a device that memory::open_device() gave, and logs those that it computes wrongly.
void load_kernels(const engine::TrainingOptions& options, at::Device device);

}  // namespace vlmtrain::train
