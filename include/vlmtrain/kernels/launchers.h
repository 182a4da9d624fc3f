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

enum class ActivationFunction : int32_t {
  kGelu,
  kGeluTanh,
  kQuickGelu,
  kRelu,
};

/// result = function(x), or, with a gradient of that, gradient · function'(x).
struct Activate {
  Element element;
  ActivationFunction function;
  int64_t count;
  const void* gradient;  ///< null: forwards
  const void* x;
  void* result;
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

/// What a norm multiplies by.
enum class Gain : int32_t {
  kWeight,
  kOnePlusWeight,
};

/// Heads of queries and keys normed, x / sqrt(mean(x²) + eps) · gain over a head's features, and then rotated.
struct NormRotateForward {
  /// Heads of a row lie one after the other.
  struct Heads {
    const void* x;
    const void* weight;  ///< [features]
    void* rotated;
    int64_t rotated_stride;  ///< elements from a row to the next
    int64_t heads;
  };

  Element element;
  Gain gain;
  int64_t rows, features;  ///< of a head, even and at most kMostNormedFeatures
  int64_t x_stride;        ///< elements from a row of x to the next, of queries as of keys
  float eps;
  const float* cos;  ///< [rows, features / 2]
  const float* sin;
  float* reciprocal;  ///< [rows, heads of queries, then of keys]: 1 / sqrt(mean(x²) + eps)
  Heads query, key;
};

/// The gradient of that, and of the values beside them, which are only copied.
struct NormRotateBackward {
  struct Heads {
    const void* gradient;  ///< of what was rotated
    int64_t gradient_stride;
    const void* x;
    const void* weight;
    void* of_x;
    int64_t heads;
  };

  Element element;
  Gain gain;
  int64_t rows, features;
  int64_t x_stride, of_x_stride;
  const float* cos;
  const float* sin;
  const float* reciprocal;
  Heads query, key, value;  ///< of values only gradient, its stride, of_x and heads count
  int64_t warps;            ///< that share the heads of all rows; a multiple of kNormRotateWarps
  float*
      of_weights;  ///< of each warp a partial sum of the weights' gradients, [warps, query and key, features], or null
};
inline constexpr int64_t kMostNormedFeatures = 256;
inline constexpr int64_t kNormRotateWarps = 8;  ///< of a block

/// Each starts a kernel on a stream, a cudaStream_t, of the current device, and gives 0 or a cudaError_t. Tensors are
/// dense where nothing else is said, and none is empty.
struct Launchers {
  int (*gate_forward)(const GateForward&, void* stream);
  int (*gate_backward)(const GateBackward&, void* stream);
  int (*activate)(const Activate&, void* stream);
  int (*rotate)(const Rotate&, void* stream);
  int (*norm_rotate_forward)(const NormRotateForward&, void* stream);
  int (*norm_rotate_backward)(const NormRotateBackward&, void* stream);
};

}  // namespace vlmtrain::kernels
