#include "engine/optimizer/compressed_states.h"

#include <ATen/Context.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <limits>

#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/weights/quantized_weight.h"

namespace vlmtrain::engine {

namespace {

/// Number of values of an 8-bit code.
constexpr int64_t kNumCodes = 256;

class Bf16Moments : public Moments {
 public:
  Bf16Moments(int64_t blocks, const MomentTables& tables, StateMemory& memory)
      : random_generator_(tables.random),
        values_(memory.make_zeros({kNumMoments, blocks, kBlockElements}, at::kBFloat16)) {}

  void decompress(int64_t first, const ChunkBuffers& buffers) const override {
    buffers.values.copy_(values_.narrow(1, first, buffers.blocks()));
  }

  /// Rounds away from zero with a probability equal to the truncated fraction: adds a random number
  /// to the bits that bf16 lacks, which may carry, and then truncates. Skipped steps need no
  /// special treatment, because unchanged values have no such bits.
  void compress(int64_t first, const ChunkBuffers& buffers, const at::Tensor& /*skipped*/) override {
    // The low 16 bits of fp32, which bf16 lacks.
    constexpr int64_t kTruncatedBitsRange = int64_t{1} << 16;
    buffers.values.view(at::kInt).add_(buffers.integers.random_(0, kTruncatedBitsRange, random_generator_));
    constexpr int64_t kUpperHalfIndex = 1;  // little-endian
    const at::Tensor bf16_halves =
        buffers.values.view(at::kBFloat16).view({kNumMoments, buffers.blocks(), kBlockElements, 2});
    values_.narrow(1, first, buffers.blocks()).copy_(bf16_halves.select(3, kUpperHalfIndex));
  }

  std::vector<std::pair<std::string, at::Tensor>> state(int64_t moment, int64_t first, int64_t blocks) const override {
    return {{"", values_.select(0, moment).narrow(0, first, blocks)}};
  }

 private:
  at::Generator random_generator_;
  at::Tensor values_;  // bf16 [2, blocks, 256]
};

/// 8-bit moments. Most operations process both moments together, which takes fewer launches. The scales
/// stay on the device: they are 3 % of the bytes, and over the link they would take a request each.
class EightBitMoments : public Moments {
 public:
  EightBitMoments(int64_t blocks, const MomentTables& tables, StateMemory& memory)
      : tables_(tables),
        codes_(memory.make_zeros({kNumMoments, blocks, kBlockElements}, at::kByte)),
        absmax_(memory.make_resident_zeros({kNumMoments, blocks, 1}, at::kFloat)) {}

  /// Looks up two codes at a time, as one 16-bit index. ATen's indices have at least 32 bits, and
  /// pairs halve their number.
  void decompress(int64_t first, const ChunkBuffers& buffers) const override {
    const at::Tensor codes = codes_.narrow(1, first, buffers.blocks()).view(at::kUInt16);
    const at::Tensor indices = buffers.integers.view(-1).narrow(0, 0, codes.numel()).view({kNumMoments, -1});
    indices.view(codes.sizes()).copy_(codes);
    for (int64_t moment = 0; moment < kNumMoments; ++moment) {
      at::Tensor values = buffers.values.select(0, moment).view(-1).view(at::kLong);
      at::index_select_out(values, tables_.code_pairs.select(0, moment), 0, indices.select(0, moment));
    }
    buffers.values.mul_(absmax_.narrow(1, first, buffers.blocks()));
  }

  void compress(int64_t first, const ChunkBuffers& buffers, const at::Tensor& skipped) override {
    constexpr double kMinAbsmax = 1e-38;  // avoids 0 / 0 in blocks of zeros
    constexpr double kInfinityNormOrder = std::numeric_limits<double>::infinity();
    at::Tensor scales = buffers.scales, inverse_scales = buffers.inverse_scales;
    at::linalg_vector_norm_out(scales, buffers.values, kInfinityNormOrder, at::IntArrayRef{2}, /*keepdim=*/true);
    at::clamp_min_out(inverse_scales, scales, kMinAbsmax).reciprocal_();
    buffers.values.mul_(inverse_scales);
    // One call per moment, because at::searchsorted, which accepts a row of bounds per moment, does
    // not run on the meta device.
    for (int64_t moment = 0; moment < kNumMoments; ++moment) {
      at::Tensor integers = buffers.integers.select(0, moment);
      at::bucketize_out(integers, buffers.values.select(0, moment), tables_.bounds.select(0, moment),
                        /*out_int32=*/true);
    }
    // Compressing an expanded value may give another code, because no code has the value −1. In a
    // skipped step, blocks must keep their codes.
    update_unless_skipped(codes_.narrow(1, first, buffers.blocks()), get_low_bytes(buffers.integers), skipped);
    update_unless_skipped(absmax_.narrow(1, first, buffers.blocks()), scales, skipped);
  }

  std::vector<std::pair<std::string, at::Tensor>> state(int64_t moment, int64_t first, int64_t blocks) const override {
    return {{"", codes_.select(0, moment).narrow(0, first, blocks)},
            {"_absmax", absmax_.select(0, moment).narrow(0, first, blocks).squeeze(1)}};
  }

 private:
  /// Returns a view of the low bytes of integers below 256.
  static at::Tensor get_low_bytes(const at::Tensor& integers) {
    constexpr int64_t kLowByteIndex = 0;  // little-endian
    return integers.view(at::kByte).view({kNumMoments, -1, kBlockElements, sizeof(int32_t)}).select(3, kLowByteIndex);
  }

  static void update_unless_skipped(at::Tensor current, const at::Tensor& updated, const at::Tensor& skipped) {
    at::where_out(current, skipped, current, updated);
  }

  MomentTables tables_;
  at::Tensor codes_;   // uint8 [2, blocks, 256]
  at::Tensor absmax_;  // fp32 [2, blocks, 1]
};

/// Returns int64 [65536]: for each pair of codes, both fp32 values; the value of the low byte's
/// code comes first in memory.
at::Tensor make_code_pair_table(const at::Tensor& codebook) {
  const at::Tensor code_pairs = at::stack({codebook.repeat({kNumCodes}), codebook.repeat_interleave(kNumCodes)}, 1);
  return code_pairs.view(-1).view(at::kLong);
}

}  // namespace

at::Generator make_generator(const at::TensorOptions& options) {
  const at::Device device = options.device().is_cuda() ? options.device() : at::kCPU;
  return at::globalContext().defaultGenerator(device).clone();
}

MomentTables::MomentTables(OptimizerStateDtype state_dtype, const at::TensorOptions& options) {
  if (state_dtype == OptimizerStateDtype::kFp32) return;
  if (state_dtype == OptimizerStateDtype::kBf16) {
    random = make_generator(options);
    return;
  }
  const at::Tensor first = nn::make_dynamic_codebook(nn::Signedness::kSigned),
                   second = nn::make_dynamic_codebook(nn::Signedness::kUnsigned);
  code_pairs = at::stack({make_code_pair_table(first), make_code_pair_table(second)}).to(options.device());
  bounds = at::stack({nn::compute_midpoints(first), nn::compute_midpoints(second)}).to(options.device());
  codebooks = at::stack({first, second}).to(options.device());
  padded_bounds = at::constant_pad_nd(bounds, {0, 1}, std::numeric_limits<double>::infinity());
}

std::unique_ptr<Moments> make_moments(OptimizerStateDtype state_dtype, int64_t blocks, const MomentTables& tables,
                                      StateMemory& memory) {
  switch (state_dtype) {
    case OptimizerStateDtype::kBf16:
      return std::make_unique<Bf16Moments>(blocks, tables, memory);
    case OptimizerStateDtype::k8Bit:
      return std::make_unique<EightBitMoments>(blocks, tables, memory);
    case OptimizerStateDtype::kFp32:
      break;
  }
  throw InternalError("fp32 moments are not compressed");
}

CompressedStates::CompressedStates(const BlockLayout& layout, OptimizerStateDtype state_dtype,
                                   const MomentTables& tables, StateMemory& memory)
    : layout_(layout), moments_(make_moments(state_dtype, layout.num_blocks(), tables, memory)) {}

void CompressedStates::decompress(const Chunk& chunk) {
  moments_->decompress(chunk.first_block, chunk.buffers);
}

void CompressedStates::compress(const Chunk& chunk, const at::Tensor& skipped) {
  moments_->compress(chunk.first_block, chunk.buffers, skipped);
}

std::vector<std::pair<std::string, at::Tensor>> CompressedStates::state(size_t tensor) const {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [prefix, moment] : {std::pair{"first_moment", 0}, {"second_moment", 1}}) {
    for (auto& [suffix, moment_tensor] :
         moments_->state(moment, layout_.first_block(tensor), layout_.num_blocks(tensor)))
      tensors.emplace_back(prefix + suffix, moment_tensor);
  }
  return tensors;
}

}  // namespace vlmtrain::engine
