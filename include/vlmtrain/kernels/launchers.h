#pragma once

#include <cstdint>

namespace vlmtrain::kernels {

/// What libvlmtrain_kernels.so exports, under these names. It needs nothing but the CUDA runtime of LibTorch, which has
/// to be loaded before it. For tests libvlmtrain_kernels_emulated.so has the same, made of the same sources for the
/// CPU.
struct Launchers;
using GetLaunchers = const Launchers*();
using KernelsVersion = int();
inline constexpr const char* kGetLaunchers = "vlmtrain_kernels";
inline constexpr const char* kKernelsVersionOf = "vlmtrain_kernels_version";
inline constexpr int kKernelsVersion = 1;

/// Of what tensors consist that a kernel reads or writes; it computes in fp32.
enum class Element : int32_t { kFloat, kBFloat16, kHalf };

enum class GateActivation : int32_t {
  kSilu,
  kGeluTanh,
};

/// value = activation(gate) · up of the columns [gate, up] of x.
struct GateForward {
  Element element;
  GateActivation activation;
  int64_t rows, features;
  const void* x;  ///< [rows, 2 · features]
  void* value;    ///< [rows, features]
};

/// The gradient of that.
struct GateBackward {
  Element element;
  GateActivation activation;
  int64_t rows, features;
  const void* gradient;  ///< of value, [rows, features]
  const void* x;         ///< [rows, 2 · features]
  void* of_x;            ///< [rows, 2 · features]
};

/// Heads of queries and keys rotated, heads of values copied. Feature i pairs with i + features / 2.
struct Rotate {
  /// Rows of heads that lie one after the other.
  struct Heads {
    const void* from;
    void* to;
    int64_t from_stride, to_stride;  ///< elements from a row to the next
    int64_t heads;
  };

  Element element;
  int64_t rows, features;  ///< features of a head, an even number
  float direction;         ///< 1, or −1 to rotate back
  const float* cos;        ///< [rows, features / 2]
  const float* sin;
  Heads query, key, value;
};

/// Each starts a kernel on a stream, a cudaStream_t, of the current device, and gives 0 or a cudaError_t. Tensors are
/// dense where nothing else is said, and none is empty.
struct Launchers {
  int (*gate_forward)(const GateForward&, void* stream);
  int (*gate_backward)(const GateBackward&, void* stream);
  int (*rotate)(const Rotate&, void* stream);
};

}  // namespace vlmtrain::kernels
