#pragma once

namespace vlmtrain::memory {

/// From now on ATen's operations in the calling thread, and in no other, do without OpenMP's team: a thread that works
/// beside the one that trains does not take all cores.
void use_single_aten_thread();

}  // namespace vlmtrain::memory
