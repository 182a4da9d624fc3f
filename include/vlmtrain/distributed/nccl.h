#pragma once

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace vlmtrain::distributed {

// Functions that libvlmtrain_nccl.so exports under the names below. The library links LibTorch's
// CUDA library, which must be loaded before it. CPU runs need neither library.

/// Creates PyTorch's process group over NCCL for this process's GPU and connects it to the other
/// ranks. `store` and the result are owned references (c10::intrusive_ptr::release() and
/// reclaim()). Throws c10d's exceptions.
using MakeNcclBackendFunction = c10d::Backend*(c10d::Store* store, int rank, int world_size, int device_index);
/// Returns kNcclPluginVersion.
using NcclPluginVersionFunction = int();

inline constexpr const char* kMakeNcclBackendSymbol = "vlmtrain_make_nccl_backend";
inline constexpr const char* kNcclPluginVersionSymbol = "vlmtrain_nccl_version";
inline constexpr int kNcclPluginVersion = 1;  ///< increase it when a function's signature changes

}  // namespace vlmtrain::distributed
