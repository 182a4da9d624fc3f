#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace vlmtrain::planner {

/// Tells LibTorch what tensors some of its CPU kernels make, results and what they need meanwhile: for a rehearsal on
/// the meta device, which it has no such functions for. Once in a process; further calls do nothing.
void register_cpu_meta_kernels();

/// How many factors of a product of matrices the CPU's library copies into a layout that its kernels want, for as long
/// as the product is made: that depends on the processor's instructions, and is found by making one.
int64_t num_packed_operands(at::ScalarType dtype);

}  // namespace vlmtrain::planner
