#pragma once

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace vlmtrain::distributed {

/// What libvlmtrain_nccl.so exports, under these names. It links LibTorch's CUDA library, which has to be loaded before
/// it: a run on the CPU needs neither.
///
/// The first makes PyTorch's process group over NCCL for this process's card, and connects it to those of the others;
/// both pointers are owned references. Throws what c10d throws.
using MakeNcclBackend = c10d::Backend*(c10d::Store* store, int rank, int world_size, int device_index);
using NcclVersion = int();
inline constexpr const char* kMakeNcclBackendSymbol = "vlmtrain_make_nccl_backend";
inline constexpr const char* kNcclVersionSymbol = "vlmtrain_nccl_version";
inline constexpr int kNcclPluginVersion = 1;

}  // namespace vlmtrain::distributed
