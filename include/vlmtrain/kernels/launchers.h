#pragma once

#include <cstdint>

#include "vlmtrain/kernels/table.h"

namespace vlmtrain::kernels {

// The interface of libvlmtrain_kernels.so. The library needs only LibTorch's CUDA runtime, which
// must be loaded before it. libvlmtrain_kernels_emulated.so, for tests, has the same interface and
// sources, compiled for the CPU.
//
// The structs hold the arguments of one launch. Pointers are device pointers, not owned. Tensors
// are dense and row-major unless a stride is given.

struct Launchers;
/// Types and symbols of the functions that the library exports. The first returns a static table of
/// entry points. The second returns VLMTRAIN_KERNELS_VERSION as of the library's build, a hash of
/// this header and table.h (cmake/Kernels.cmake).
using GetLaunchersFunction = const Launchers*();
using KernelsVersionFunction = int();
inline constexpr const char* kGetLaunchersSymbol = "vlmtrain_kernels";
inline constexpr const char* kKernelsVersionSymbol = "vlmtrain_kernels_version";

/// Element type of a kernel's tensors. Kernels compute in fp32.
enum class ElementType : int32_t { kFloat, kBFloat16, kHalf };

/// Activation of a gated activation.
enum class GateActivation : int32_t {
  kSilu,
  kGeluTanh,
};

/// Arguments of value = activation(gate) · up for the columns [gate, up] of x.
struct GatedActivationForwardArgs {
  ElementType element;
  GateActivation activation;
  int64_t rows, features;
  int64_t x_stride, value_stride;  ///< elements between rows
  const void* x;                   ///< [rows, 2 · features]
  void* value;                     ///< [rows, features]
};

/// Arguments of the gradient of GatedActivationForwardArgs with respect to x.
struct GatedActivationBackwardArgs {
  ElementType element;
  GateActivation activation;
  int64_t rows, features;
  int64_t gradient_stride, x_stride, dx_stride;  ///< elements between rows
  const void* gradient;                          ///< of value, [rows, features]
  const void* x;                                 ///< [rows, 2 · features]
  void* dx;                                      ///< [rows, 2 · features]
};

/// An elementwise activation.
enum class ActivationFunction : int32_t {
  kGelu,
  kGeluTanh,
  kQuickGelu,
  kRelu,
};

/// Arguments of result = function(x) if `gradient` is null, else result = gradient · function'(x).
struct ActivationArgs {
  ElementType element;
  ActivationFunction function;
  int64_t rows, features;
  int64_t gradient_stride, x_stride, result_stride;  ///< elements between rows
  const void* gradient;                              ///< of the value, [rows, features]; null in the forward pass
  const void* x;                                     ///< [rows, features]
  void* result;                                      ///< [rows, features]
};

/// Arguments of rotary position embeddings: query and key heads are rotated, value heads copied.
/// Feature i pairs with i + features / 2.
struct RopeArgs {
  /// Heads of all rows; the heads of a row are contiguous.
  struct Heads {
    const void* from;                ///< [rows, heads, features]
    void* to;                        ///< [rows, heads, features]
    int64_t from_stride, to_stride;  ///< elements between rows
    int64_t num_heads;
  };

  ElementType element;
  int64_t rows, features;  ///< features of a head, even
  float direction;         ///< 1, or −1 for the inverse rotation
  const float* cos;        ///< [rows, features / 2]
  const float* sin;        ///< [rows, features / 2]
  Heads query, key, value;
};

/// Arguments of the cross-entropy of each row of logits with its label. With a cap, the softmax is
/// that of y = cap · tanh(logit / cap). The gradient overwrites the logits: (softmax − one-hot) ·
/// factor · row factor, with a cap also · (1 − (y / cap)²).
struct CrossEntropyArgs {
  ElementType element;
  bool compute_gradient;  ///< whether to overwrite the logits with their gradient
  int64_t rows, vocabulary;
  int64_t logits_stride;     ///< elements between rows
  void* logits;              ///< [rows, vocabulary]
  const int64_t* labels;     ///< [rows], each in [0, vocabulary)
  const float* row_factors;  ///< [rows]; null: 1
  float factor;
  float logit_soft_cap;  ///< positive, or 0: no cap
  float* cross_entropy;  ///< [rows]
  float* is_correct;     ///< [rows]: 1 if no logit, after the cap, is larger than the label's, else 0
};

/// The gain by which a norm multiplies its result: weight, or 1 + weight.
enum class NormGain : int32_t {
  kWeight,
  kOnePlusWeight,
};

/// Arguments of QK-norm and rotary position embeddings of query and key heads: x / sqrt(mean(x²) +
/// eps) · gain over a head's features, then the rotation.
struct QkNormRopeForwardArgs {
  /// Heads of all rows; the heads of a row are contiguous.
  struct Heads {
    const void* x;           ///< [rows, heads, features]
    const void* weight;      ///< [features]
    void* rotated;           ///< [rows, heads, features]
    int64_t rotated_stride;  ///< elements between rows
    int64_t num_heads;
  };

  ElementType element;
  NormGain gain;
  int64_t rows, features;  ///< features of a head, even and at most kMaxQkNormFeatures
  int64_t x_stride;        ///< elements between rows of x, equal for queries and keys
  float eps;
  const float* cos;  ///< [rows, features / 2]
  const float* sin;  ///< [rows, features / 2]
  float* rstd;       ///< [rows, query heads + key heads]: 1 / sqrt(mean(x²) + eps)
  Heads query, key;
};

/// Arguments of the gradient of QkNormRopeForwardArgs. The gradients of the values are copied.
struct QkNormRopeBackwardArgs {
  /// Heads of all rows; the heads of a row are contiguous.
  struct Heads {
    const void* gradient;     ///< of the rotated heads, [rows, heads, features]
    int64_t gradient_stride;  ///< elements between rows
    const void* x;            ///< [rows, heads, features]
    const void* weight;       ///< [features]
    void* dx;                 ///< [rows, heads, features]
    int64_t num_heads;
  };

  ElementType element;
  NormGain gain;
  int64_t rows, features;           ///< as in the forward pass
  int64_t x_stride, dx_stride;      ///< elements between rows, equal for queries, keys and (dx only) values
  const float* cos;                 ///< [rows, features / 2]
  const float* sin;                 ///< [rows, features / 2]
  const float* rstd;                ///< [rows, query heads + key heads]
  Heads query, key, value;          ///< x and weight of `value` are not used
  int64_t warps;                    ///< warps that share the heads of all rows; a multiple of kQkNormRopeWarpsPerBlock
  float* partial_weight_gradients;  ///< [warps, 2 (query, key), features]: each warp's part of the gradients of the
                                    ///< weights; null if they are not needed
};
inline constexpr int64_t kMaxQkNormFeatures = 256;      ///< a lane holds 4 pairs of features in registers
inline constexpr int64_t kQkNormRopeWarpsPerBlock = 8;  ///< of the backward pass

/// Arguments of value = (x − mean) / sqrt(variance + eps) · gain (+ bias) (+ residual) for each
/// row. The mean is 0 if not centered.
struct NormForwardArgs {
  ElementType element;
  NormGain gain;
  bool is_centered;
  int64_t rows, features;
  int64_t x_stride, residual_stride, value_stride;  ///< elements between rows
  float eps;
  const void* x;         ///< [rows, features]
  const void* weight;    ///< [features]
  const void* bias;      ///< [features]; null: 0
  const void* residual;  ///< [rows, features], added to the result; null: 0
  void* value;           ///< [rows, features]
  float* mean;           ///< [rows], written if centered
  float* rstd;           ///< [rows]: 1 / sqrt(variance + eps)
};

/// Arguments of dx, the gradient of NormForwardArgs with respect to x, plus the gradient of the
/// residual.
struct NormBackwardArgs {
  ElementType element;
  NormGain gain;
  bool is_centered;
  int64_t rows, features;
  int64_t gradient_stride, x_stride, residual_gradient_stride, dx_stride;  ///< elements between rows
  const void* gradient;                                                    ///< of value, [rows, features]
  const void* x;                                                           ///< [rows, features]
  const void* weight;                                                      ///< [features]
  const void* residual_gradient;                                           ///< [rows, features]; null: 0
  const float* mean;                                                       ///< [rows], read if centered
  const float* rstd;                                                       ///< [rows]
  void* dx;                                                                ///< [rows, features]
};

inline constexpr int64_t kNf4BlockSize = 64;         ///< values per absmax, as in bitsandbytes
inline constexpr int64_t kNf4NestedBlockSize = 256;  ///< absmax values per nested absmax, as in bitsandbytes
inline constexpr int64_t kNf4SuperBlockSize = kNf4BlockSize * kNf4NestedBlockSize;
inline constexpr int kMaxNf4WeightsPerLaunch = 16;  ///< more than the Linears that share an input

/// Arguments of the dequantization of NF4 with double quantization (Dettmers et al. 2023, arXiv
/// 2305.14314) for weights [rows, columns] that are stored one after another, each in whole
/// superblocks. A value is values[index] · (absmax_codes[absmax] · nested_absmax + the weight's
/// nested_offset). Each byte holds two indices, the first in the high bits. Bit-identical to ATen.
struct Nf4DequantizeArgs {
  ElementType element;  ///< of the result
  int64_t super_blocks;
  const uint8_t* packed;                               ///< [super_blocks · 8192]: two 4-bit indices per byte
  const uint8_t* absmax;                               ///< [super_blocks · 256]: codes
  const float* nested_absmax;                          ///< [super_blocks]
  const float* nested_offset;                          ///< one per weight
  const float* absmax_codes;                           ///< [256]: values of the codes
  int64_t code_stride;                                 ///< elements between codes
  int64_t columns;                                     ///< of the weights
  int64_t result_columns;                              ///< those beyond `columns` are set to zero
  int64_t result_stride;                               ///< elements between rows of the result
  void* result;                                        ///< [rows of the weights, result_columns]
  float values[16];                                    ///< values of the indices
  int num_weights;                                     ///< at most kMaxNf4WeightsPerLaunch
  int64_t first_super_block[kMaxNf4WeightsPerLaunch];  ///< of each weight, ascending
  int64_t first_row[kMaxNf4WeightsPerLaunch];          ///< of the result, by weight
  int64_t elements[kMaxNf4WeightsPerLaunch];           ///< of each weight, less than 2³¹
};

/// Arguments of result = (values · row_absmax) · step. Each product is rounded to fp32, the result
/// then to its type.
struct Int8DequantizeArgs {
  ElementType element;  ///< of the result
  int64_t rows, columns;
  const int8_t* values;     ///< [rows, columns]
  const float* row_absmax;  ///< [rows]
  float step;
  int64_t result_columns;  ///< those beyond `columns` are set to zero
  int64_t result_stride;   ///< elements between rows of the result
  void* result;            ///< [rows, result_columns]
};

inline constexpr int64_t kMomentBlockSize = 256;  ///< elements per absmax of 8-bit moments, as in bitsandbytes
inline constexpr int kNumMomentCodes = 256;       ///< codes of 8 bits

/// Storage format of the moments.
enum class MomentFormat : int32_t {
  kFp32,
  kBf16,  ///< in whole blocks of kMomentBlockSize
  k8Bit,  ///< codes in whole blocks, with an fp32 absmax for each block
};

/// Storage format of the fp32 masters of 16-bit weights.
enum class MasterFormat : int32_t {
  kFp32,
  kSplit,       ///< the bf16 weight and the master's low bits; see split_master.h
  kStochastic,  ///< the bf16 weight alone, which each update rounds stochastically
};

/// A parameter of an adamw() update. The moments are the moving averages of the gradient and of its
/// square.
struct AdamWTensor {
  void* master;           ///< [count]: fp32; int16 low bits with kSplit; null with kStochastic
  const float* gradient;  ///< [count]
  void* weight;           ///< [count], overwritten: 16-bit copy of the master, null if the master is the weight; with
                          ///< kSplit and kStochastic also read
  uint32_t weight_columns, weight_stride;  ///< elements of the weight's rows and between them, with `count` less than
                                           ///< 2³²; both 0 if the weight is dense, as it must be
                                           ///< unless masters are kFp32
  void* moments[2];                        ///< in the MomentFormat
  float* absmax[2];                        ///< [blocks]; k8Bit only
  const float* steps;                      ///< number of updates, this one included
  int64_t count;                           ///< elements
  uint32_t tensor_id;  ///< index of the parameter in the optimizer, a coordinate of the random numbers
  bool is_aligned;     ///< master, gradient, fp32 moments and rows of the weight are aligned to 16 bytes, and rows of
                       ///< the weight have whole packs of 8; the other moment formats, stored in whole blocks, always
                       ///< are aligned
};

inline constexpr int kMaxAdamWTensorsPerLaunch = 40;  ///< as many as the arguments of a launch (4 KiB) can hold
/// Moment blocks per thread block, which loads its code tables once for all of them. Not tuned.
inline constexpr int64_t kAdamWBlocksPerThreadBlock = 64;

/// Arguments of an adamw() update (Loshchilov and Hutter 2017, arXiv 1711.05101) of parameters with
/// one format of moments and one of masters.
struct AdamWArgs {
  MomentFormat moments;
  MasterFormat masters;
  ElementType weight_type;  ///< kBFloat16, or with kFp32 masters kHalf; any if all weights are null
  int num_tensors;
  AdamWTensor tensors[kMaxAdamWTensorsPerLaunch];
  int64_t first_block[kMaxAdamWTensorsPerLaunch + 1];  ///< first thread block of each tensor, then their total
  double learning_rate, beta1, beta2;                  ///< for the bias corrections, whose powers need fp64
  float decay;                                         ///< learning rate · weight decay
  float fp32_betas[2];                                 ///< β₁, β₂ for the update in fp32
  float one_minus_betas[2];                            ///< 1 − β₁, 1 − β₂
  float epsilon;
  const float* divisor;  ///< gradients are divided by this scalar; null: 1
  const float* skipped;  ///< scalar: if not 0, nothing changes
  const float* codes;    ///< [2, 256], ascending: values of each moment's codes; k8Bit only
  const float* bounds;   ///< [2, 256]: upper rounding bound of each code; the last of each row is unused
  uint64_t seed;         ///< seed of the stochastic rounding to bf16
};
static_assert(sizeof(AdamWArgs) <= 4096, "every architecture accepts kernel arguments up to 4 KiB");

inline constexpr int64_t kNumPixelChannels = 3;  ///< red, green, blue

/// Arguments of splitting images into patches. Each patch becomes one row, in order of channel,
/// line, column. Its values are (byte − mean) / deviation of the channel, rounded to fp32 twice and
/// then to the rows' type. Columns of the rows beyond those of a patch are set to zero. Pixels beyond
/// the last whole patch are dropped.
struct PatchifyArgs {
  ElementType element;  ///< of the rows
  int64_t num_images;
  int64_t height, width;              ///< of an image
  int64_t patch_height, patch_width;  ///< of a patch, which has less than 2³¹ bytes
  const uint8_t* bytes;               ///< [images, kNumPixelChannels, height, width]
  const int64_t* order;               ///< [num_images]: indices into `bytes`; null: the first num_images images
  float mean[kNumPixelChannels], deviation[kNumPixelChannels];  ///< in units of a byte
  int64_t row_stride;                                           ///< elements between rows
  void* rows;  ///< [num_images · ⌊height / patch_height⌋ · ⌊width / patch_width⌋, kNumPixelChannels · patch_height ·
               ///< patch_width]
};

/// The random stream of rows [first_row, first_row of the next stream).
struct DropoutStream {
  uint64_t key;  ///< key of the random number generator
  int64_t first_row;
};

inline constexpr int kMaxDropoutStreamsPerLaunch = 240;  ///< as many as the arguments of a launch (4 KiB) can hold

/// Arguments of the dropout masks for several consumers of x [rows, columns]. 16 random bits decide
/// whether an element is kept. If they equal `keep_thresholds[0]`, 16 more bits decide. The bits
/// are a function of the stream's key, the row within the stream, the column and the consumer.
struct DropoutMask {
  ElementType element;
  int64_t columns;
  int64_t consumer_stride;      ///< elements between the tensors of two consumers
  int num_consumers;            ///< tensors computed from x, each with its own mask
  float scale;                  ///< factor of kept elements, 1 / (1 − probability)
  uint32_t keep_thresholds[2];  ///< upper and lower 16 bits of the keep probability · 2³²
  int64_t first_row, rows;      ///< rows of the streams in this launch
  int streams;                  ///< number of entries of `stream`
  DropoutStream stream[kMaxDropoutStreamsPerLaunch];
};

/// Arguments of dropped = x · mask · scale for each consumer.
struct DropoutArgs {
  DropoutMask mask;
  const void* x;  ///< [rows, columns]
  void* dropped;  ///< [consumers, rows, columns]
};

/// Arguments of sum += Σ x · mask · scale over the consumers.
struct DropoutBackwardArgs {
  DropoutMask mask;
  const void* x;  ///< [consumers, rows, columns]
  void* sum;      ///< [rows, columns]
};
static_assert(sizeof(DropoutArgs) <= 4096 && sizeof(DropoutBackwardArgs) <= 4096,
              "every architecture accepts kernel arguments up to 4 KiB");

/// The kernels' entry points. Each launches one kernel on `stream`, a cudaStream_t of the current
/// device, and returns 0 or a cudaError_t without synchronizing. REQUIRES: no tensor is empty.
/// Thread-safe.
struct Launchers {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a name cannot be in parentheses
#define VLMTRAIN_ENTRY_POINT(function, Args) int (*function)(const Args&, void* stream);
  VLMTRAIN_KERNEL_TABLE(VLMTRAIN_SKIP, VLMTRAIN_ENTRY_POINT)
#undef VLMTRAIN_ENTRY_POINT
};

}  // namespace vlmtrain::kernels
