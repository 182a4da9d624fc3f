#pragma once

#include <cstdint>

namespace vlmtrain::kernels {

/// What libvlmtrain_kernels.so exports, under these names. It needs nothing but the CUDA runtime of LibTorch, which has
/// to be loaded before it. For tests libvlmtrain_kernels_emulated.so has the same, made of the same sources for the
/// CPU.
struct Launchers;
using GetLaunchers = const Launchers*();
using KernelsVersion = int();
inline constexpr const char* kGetLaunchersSymbol = "vlmtrain_kernels";
inline constexpr const char* kKernelsVersionSymbol = "vlmtrain_kernels_version";
inline constexpr int kKernelsVersion = 3;

/// Of what tensors consist that a kernel reads or writes; it computes in fp32.
enum class ElementType : int32_t { kFloat, kBFloat16, kHalf };

enum class GateActivation : int32_t {
  kSilu,
  kGeluTanh,
};

/// value = activation(gate) · up of the columns [gate, up] of x.
struct GatedActivationForward {
  ElementType element;
  GateActivation activation;
  int64_t rows, features;
  const void* x;  ///< [rows, 2 · features]
  void* value;    ///< [rows, features]
};

/// The gradient of that.
struct GatedActivationBackward {
  ElementType element;
  GateActivation activation;
  int64_t rows, features;
  const void* gradient;  ///< of value, [rows, features]
  const void* x;         ///< [rows, 2 · features]
  void* dx;              ///< [rows, 2 · features]
};

enum class ActivationFunction : int32_t {
  kGelu,
  kGeluTanh,
  kQuickGelu,
  kRelu,
};

/// result = function(x), or, with a gradient of that, gradient · function'(x).
struct Activate {
  ElementType element;
  ActivationFunction function;
  int64_t count;
  const void* gradient;  ///< null: forwards
  const void* x;
  void* result;
};

/// Heads of queries and keys rotated, heads of values copied. Feature i pairs with i + features / 2.
struct Rope {
  /// Rows of heads that lie one after the other.
  struct Heads {
    const void* from;
    void* to;
    int64_t from_stride, to_stride;  ///< elements from a row to the next
    int64_t heads;
  };

  ElementType element;
  int64_t rows, features;  ///< features of a head, an even number
  float direction;         ///< 1, or −1 to rotate back
  const float* cos;        ///< [rows, features / 2]
  const float* sin;
  Heads query, key, value;
};

/// Of each row of logits the cross-entropy with its label, and in the logits' place its gradient with respect to them:
/// (softmax − one-hot) · factor · the row's factor.
struct CrossEntropy {
  ElementType element;
  bool compute_gradient;  ///< false: logits stay as they are
  int64_t rows, vocabulary;
  void* logits;              ///< [rows, vocabulary]
  const int64_t* labels;     ///< [rows]
  const float* row_factors;  ///< [rows]; null: 1
  float factor;
  float* cross_entropy;  ///< [rows]
  float* is_correct;     ///< [rows]: 1 where no logit is larger than the label's, else 0
};

/// What a norm multiplies by.
enum class Gain : int32_t {
  kWeight,
  kOnePlusWeight,
};

/// Heads of queries and keys normed, x / sqrt(mean(x²) + eps) · gain over a head's features, and then rotated.
struct QkNormRopeForward {
  /// Heads of a row lie one after the other.
  struct Heads {
    const void* x;
    const void* weight;  ///< [features]
    void* rotated;
    int64_t rotated_stride;  ///< elements from a row to the next
    int64_t heads;
  };

  ElementType element;
  Gain gain;
  int64_t rows, features;  ///< of a head, even and at most kMaxQkNormFeatures
  int64_t x_stride;        ///< elements from a row of x to the next, of queries as of keys
  float eps;
  const float* cos;  ///< [rows, features / 2]
  const float* sin;
  float* rstd;  ///< [rows, heads of queries, then of keys]: 1 / sqrt(mean(x²) + eps)
  Heads query, key;
};

/// The gradient of that, and of the values beside them, which are only copied.
struct QkNormRopeBackward {
  struct Heads {
    const void* gradient;  ///< of what was rotated
    int64_t gradient_stride;
    const void* x;
    const void* weight;
    void* dx;
    int64_t heads;
  };

  ElementType element;
  Gain gain;
  int64_t rows, features;
  int64_t x_stride, dx_stride;
  const float* cos;
  const float* sin;
  const float* rstd;
  Heads query, key, value;          ///< of values only gradient, its stride, dx and heads count
  int64_t warps;                    ///< that share the heads of all rows; a multiple of kQkNormRopeWarps
  float* partial_weight_gradients;  ///< of each warp a partial sum of the weights' gradients, [warps, query and key,
                                    ///< features], or null
};
inline constexpr int64_t kMaxQkNormFeatures = 256;
inline constexpr int64_t kQkNormRopeWarps = 8;  ///< of a block

/// value = (x − mean) / sqrt(variance + eps) · gain (+ bias) (+ residual) of each row, or, where it is not centered,
/// with a mean of 0.
struct NormForward {
  ElementType element;
  Gain gain;
  bool is_centered;
  int64_t rows, features;
  float eps;
  const void* x;         ///< [rows, features]
  const void* weight;    ///< [features]
  const void* bias;      ///< [features]; null: 0
  const void* residual;  ///< [rows, features]; null: 0
  void* value;           ///< [rows, features]
  float* mean;           ///< [rows]; where it is centered
  float* rstd;           ///< [rows]: 1 / sqrt(variance + eps)
};

/// The gradient of x, and what goes on past the norm added to it.
struct NormBackward {
  ElementType element;
  Gain gain;
  bool is_centered;
  int64_t rows, features;
  const void* gradient;           ///< of value, [rows, features]
  const void* x;                  ///< [rows, features]
  const void* weight;             ///< [features]
  const void* residual_gradient;  ///< [rows, features]; null: 0
  const float* mean;              ///< [rows]; where it is centered
  const float* rstd;              ///< [rows]
  void* dx;                       ///< [rows, features]
};

/// Values that share a block's absmax, and blocks whose absmax share a nested one.
inline constexpr int64_t kNf4Block = 64;
inline constexpr int64_t kNf4NestedBlock = 256;
inline constexpr int64_t kNf4SuperBlock = kNf4Block * kNf4NestedBlock;
inline constexpr int kMaxNf4Weights = 16;

/// NF4 with double quantisation (Dettmers et al. 2023, arXiv 2305.14314) of weights that lie end to end, each in whole
/// superblocks: a value is values[index] · (absmax_codes[absmax] · nested_absmax + the weight's nested_offset), of two
/// indices in a byte the first in the high bits. Computed as ATen does, to the bit.
struct Nf4Dequantize {
  ElementType element;  ///< of the result
  int64_t super_blocks;
  const uint8_t* packed;       ///< [super_blocks · 8192]
  const uint8_t* absmax;       ///< [super_blocks · 256]
  const float* nested_absmax;  ///< [super_blocks]
  const float* nested_offset;  ///< [weights]
  const float* absmax_codes;   ///< [256]
  int64_t code_stride;         ///< from one of these to the next
  void* result;                ///< [super_blocks · 16384]
  float values[16];
  int weights;
  int64_t first_super_block[kMaxNf4Weights];  ///< of each weight
};

/// result = (values · the row's absmax) · step, two roundings to fp32 and one to the result's type.
struct Int8Dequantize {
  ElementType element;  ///< of the result
  int64_t rows, columns;
  const int8_t* values;     ///< [rows, columns]
  const float* row_absmax;  ///< [rows]
  float step;
  void* result;  ///< [rows, columns]
};

/// Elements of a tensor whose moments share a scale, where they have 8 bits; and codes of these.
inline constexpr int64_t kMomentBlock = 256;
inline constexpr int kMomentCodes = 256;

enum class MomentFormat : int32_t {
  kFp32,
  kBf16,  ///< in whole blocks
  k8Bit,  ///< codes in whole blocks, fp32 absmax for each
};

/// What AdamW moves of a tensor. Both moments: the mean of gradients, then of their squares.
struct AdamWTensor {
  float* master;
  const float* gradient;
  void* weight;        ///< 16 bits, refreshed from the master; null where the master is the weight
  void* moments[2];    ///< as MomentFormat says
  float* absmax[2];    ///< [blocks]; with 8 bits
  const float* steps;  ///< how many this tensor has done, this one included
  int64_t count;       ///< elements
  uint32_t tensor_id;  ///< of the tensor, for random numbers
  bool is_aligned;     ///< master, gradient, weight and fp32 moments can be read in packs of 16 bytes
};

inline constexpr int kMaxAdamWTensors = 40;  ///< that the arguments of a launch have room for
inline constexpr int64_t kAdamWBlocks = 64;  ///< of a tensor, that a block of threads takes

/// A step of AdamW (Loshchilov and Hutter 2017, arXiv 1711.05101), of tensors whose moments are held alike.
struct AdamW {
  MomentFormat moments;
  ElementType weight_element;
  int tensors;
  AdamWTensor tensor[kMaxAdamWTensors];
  int64_t first_block[kMaxAdamWTensors + 1];  ///< of threads, of each tensor, and how many in all
  double learning_rate, beta1, beta2;
  float decay;              ///< learning rate · weight decay
  float beta[2];            ///< β₁, β₂
  float one_minus_beta[2];  ///< 1 − β₁, 1 − β₂
  float epsilon;
  const float* divisor;  ///< of the gradients; null: 1
  const float* skipped;  ///< where it is not 0, nothing changes
  const float* codes;    ///< [2, 256], ascending; with 8 bits
  const float* bounds;   ///< [2, 256], between codes, the last of each not used
  uint64_t seed;         ///< of bf16's rounding
};
static_assert(sizeof(AdamW) <= 4096, "arguments of a kernel on every architecture");

inline constexpr int64_t kPixelChannels = 3;

/// Pictures cut into patches, a row each, line by line, channel by channel: (byte − mean) / deviation of the channel,
/// two roundings to fp32 and one to the rows' type. Pixels beyond the last whole patch of a picture are dropped.
struct Patchify {
  ElementType element;  ///< of the rows
  int64_t num_images;
  int64_t height, width;              ///< of a picture
  int64_t patch_height, patch_width;  ///< of a patch, which has less than 2³¹ bytes
  const uint8_t* bytes;               ///< [any, kPixelChannels, height, width]
  const int64_t* order;               ///< [pictures], which of them; null: the first
  float mean[kPixelChannels], deviation[kPixelChannels];
  void* rows;  ///< [pictures · ⌊height / patch_height⌋ · ⌊width / patch_width⌋, kPixelChannels · patch]
};

/// Rows from this one to the next stream's whose random numbers have this key.
struct DropoutStream {
  uint64_t key;
  int64_t first_row;
};

inline constexpr int kMaxDropoutStreams = 240;  ///< that the arguments of a launch have room for

/// What is dropped of x [rows, columns] by readers that drop independently of each other. Of 16 random bits for an
/// element, and 16 more where the first are equal to `keep_thresholds[0]`, it follows whether it is kept: a function of
/// its stream's key, its row within the stream, its column and the reader.
struct DropoutMask {
  ElementType element;
  int64_t columns;
  int64_t reader_stride;  ///< elements from what a reader has of all rows to what the next has
  int readers;
  float scale;                  ///< of what is kept
  uint32_t keep_thresholds[2];  ///< the upper 16 bits of the probability to be kept, times 2³², and the lower
  int64_t first_row, rows;      ///< of these streams
  int streams;
  DropoutStream stream[kMaxDropoutStreams];
};

/// Of each reader x · mask · scale.
struct Dropout {
  DropoutMask mask;
  const void* x;  ///< [rows, columns]
  void* dropped;  ///< [readers, rows, columns]
};

/// sum + Σ x · mask · scale over the readers, in place.
struct DropoutBackward {
  DropoutMask mask;
  const void* x;  ///< [readers, rows, columns]
  void* sum;      ///< [rows, columns]
};
static_assert(sizeof(Dropout) <= 4096 && sizeof(DropoutBackward) <= 4096,
              "arguments of a kernel on every architecture");

/// Each starts a kernel on a stream, a cudaStream_t, of the current device, and gives 0 or a cudaError_t. Tensors are
/// dense where nothing else is said, and none is empty.
struct Launchers {
  int (*gated_activation_forward)(const GatedActivationForward&, void* stream);
  int (*gated_activation_backward)(const GatedActivationBackward&, void* stream);
  int (*activate)(const Activate&, void* stream);
  int (*rope)(const Rope&, void* stream);
  int (*qk_norm_rope_forward)(const QkNormRopeForward&, void* stream);
  int (*qk_norm_rope_backward)(const QkNormRopeBackward&, void* stream);
  int (*norm_forward)(const NormForward&, void* stream);
  int (*norm_backward)(const NormBackward&, void* stream);
  int (*cross_entropy)(const CrossEntropy&, void* stream);
  int (*adamw)(const AdamW&, void* stream);
  int (*nf4_dequantize)(const Nf4Dequantize&, void* stream);
  int (*int8_dequantize)(const Int8Dequantize&, void* stream);
  int (*patchify)(const Patchify&, void* stream);
  int (*dropout)(const Dropout&, void* stream);
  int (*dropout_backward)(const DropoutBackward&, void* stream);
};

}  // namespace vlmtrain::kernels
