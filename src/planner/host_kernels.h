#pragma once

namespace vlmtrain::planner {

/// Tells LibTorch what tensors some of its CPU kernels make, results and what they need meanwhile: for a rehearsal on
/// the meta device, which it has no such functions for. Once in a process; further calls do nothing.
void describe_cpu_kernels();

}  // namespace vlmtrain::planner
