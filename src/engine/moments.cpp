#include "engine/moments.h"

#include <ATen/Context.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

namespace {

class Bf16Moments : public Moments {
 public:
  Bf16Moments(int64_t blocks, MomentScratch& scratch, const at::TensorOptions& options)
      : scratch_(scratch), held_(at::zeros({blocks, kBlockElements}, options.dtype(at::kBFloat16))) {}

  void expand(int64_t first, const at::Tensor& values) const override {
    values.copy_(held_.narrow(0, first, values.size(0)));
  }

  /// Up with the probability of what is cut off: a random number below the cut carries over.
  void compress(int64_t first, const at::Tensor& values, const at::Tensor& /*skipped*/) override {
    constexpr int64_t kCutOff = int64_t{1} << 16;
    const int64_t blocks = values.size(0);
    const at::Tensor random = scratch_.integers.narrow(0, 0, blocks).random_(0, kCutOff, scratch_.random);
    values.view(at::kInt).add_(random);
    constexpr int64_t kUpperHalf = 1;  // little-endian
    held_.narrow(0, first, blocks)
        .copy_(values.view(at::kBFloat16).view({blocks, kBlockElements, 2}).select(2, kUpperHalf));
  }

  std::vector<std::pair<std::string, at::Tensor>> state(int64_t first, int64_t blocks) const override {
    return {{"", held_.narrow(0, first, blocks)}};
  }

 private:
  MomentScratch& scratch_;
  at::Tensor held_;  // bf16 [blocks, 256]
};

class EightBitMoments : public Moments {
 public:
  EightBitMoments(nn::Signs signs, int64_t blocks, MomentScratch& scratch, const at::TensorOptions& options)
      : scratch_(scratch),
        codebook_(nn::dynamic_codebook(signs)),
        bounds_(nn::middles(codebook_).to(options.device())),
        codes_(at::zeros({blocks, kBlockElements}, options.dtype(at::kByte))),
        absmax_(at::zeros({blocks}, options.dtype(at::kFloat))) {
    codebook_ = codebook_.to(options.device());
  }

  void expand(int64_t first, const at::Tensor& values) const override {
    const int64_t blocks = values.size(0);
    const at::Tensor indices = scratch_.integers.narrow(0, 0, blocks);
    indices.copy_(codes_.narrow(0, first, blocks));
    at::Tensor flat = values.view(-1);
    at::index_select_out(flat, codebook_, 0, indices.view(-1));
    values.mul_(absmax_.narrow(0, first, blocks).unsqueeze(1));
  }

  void compress(int64_t first, const at::Tensor& values, const at::Tensor& skipped) override {
    constexpr double kSmallest = 1e-38;  // of what is divided by: a block of zeros stays one
    const int64_t blocks = values.size(0);
    at::Tensor scales = scratch_.scales.narrow(0, 0, blocks);
    at::Tensor factors = scratch_.factors.narrow(0, 0, blocks);
    at::linalg_vector_norm_out(scales, values, std::numeric_limits<double>::infinity(), at::IntArrayRef{1});
    factors.copy_(scales).clamp_min_(kSmallest);
    at::reciprocal_out(factors, factors);
    values.mul_(factors.unsqueeze(1));
    at::Tensor indices = scratch_.integers.narrow(0, 0, blocks);
    at::bucketize_out(indices, values, bounds_, /*out_int32=*/true);
    const at::Tensor codes = scratch_.bytes.narrow(0, 0, blocks);
    codes.copy_(indices);
    // Values of the codes have codes of their own that may differ from them: the map lacks −1.
    keep_or_take(codes_.narrow(0, first, blocks), codes, skipped);
    keep_or_take(absmax_.narrow(0, first, blocks), scales, skipped);
  }

  std::vector<std::pair<std::string, at::Tensor>> state(int64_t first, int64_t blocks) const override {
    return {{"", codes_.narrow(0, first, blocks)}, {"_absmax", absmax_.narrow(0, first, blocks)}};
  }

 private:
  static void keep_or_take(at::Tensor held, const at::Tensor& updated, const at::Tensor& skipped) {
    at::where_out(held, skipped, held, updated);
  }

  MomentScratch& scratch_;
  at::Tensor codebook_;  // fp32 [256]
  at::Tensor bounds_;    // fp32 [255]
  at::Tensor codes_;     // uint8 [blocks, 256]
  at::Tensor absmax_;    // fp32 [blocks]
};

}  // namespace

MomentScratch::MomentScratch(OptimizerStates states, int64_t blocks, const at::TensorOptions& options)
    : integers(at::empty({blocks, kBlockElements}, options.dtype(at::kInt))) {
  if (states == OptimizerStates::k8Bit) {
    bytes = at::empty({blocks, kBlockElements}, options.dtype(at::kByte));
    scales = at::empty({blocks}, options.dtype(at::kFloat));
    factors = at::empty({blocks}, options.dtype(at::kFloat));
  } else {
    const at::Device device = options.device().is_cuda() ? options.device() : at::kCPU;
    random = at::globalContext().defaultGenerator(device).clone();
  }
}

std::unique_ptr<Moments> make_moments(OptimizerStates states, nn::Signs signs, int64_t blocks, MomentScratch& scratch,
                                      const at::TensorOptions& options) {
  switch (states) {
    case OptimizerStates::kBf16:
      return std::make_unique<Bf16Moments>(blocks, scratch, options);
    case OptimizerStates::k8Bit:
      return std::make_unique<EightBitMoments>(signs, blocks, scratch, options);
    case OptimizerStates::kFp32:
      break;
  }
  throw InternalError("fp32 moments are not compressed");
}

}  // namespace vlmtrain::engine
