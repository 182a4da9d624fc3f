#include "nn/nf4.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "nn/stack.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/dequantize.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/nn/codebook.h"

namespace vlmtrain::nn {

namespace {

constexpr int64_t kBlock = 64;         // values that share an absmax
constexpr int64_t kNestedBlock = 256;  // absmax that share a nested one
constexpr int64_t kSuperBlock = kBlock * kNestedBlock;
/// Values that are quantised at a time.
constexpr int64_t kPiece = 512 * kSuperBlock;
/// Superblocks that are dequantised at a time, with 131 MB of fp32 values and indices: 26.2 million values, a little
/// more than half of a weight of a 7B model's MLP, or of its q, k and v.
constexpr int64_t kMostSuperBlocks = 1600;

int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Pairs of bytes as indices; ATen's have at least 32 bits.
at::Tensor pairs_of(const at::Tensor& bytes) {
  return bytes.view(at::kUInt16).to(at::kInt);
}

/// The fp32 values that entries of a table consist of.
at::Tensor looked_up(const at::Tensor& table, const at::Tensor& pairs) {
  return at::gather(table, 0, pairs).view(at::kFloat);
}

/// fp32 [256]: what one byte stands for, of a table of two.
at::Tensor codes_of_low_bytes(const at::Tensor& of_two) {
  return of_two.view(at::kFloat).view({-1, 2}).select(1, 0).narrow(0, 0, 256);
}

/// [256, n] of a byte → [65536, 2 n] of two bytes.
at::Tensor of_two_bytes(const at::Tensor& of_one) {
  const int64_t bytes = of_one.size(0);
  return at::cat({of_one.repeat({bytes, 1}), of_one.repeat_interleave(bytes, 0)}, 1).view(-1);
}

at::Tensor packed_pairs(const at::Tensor& indices) {
  const at::Tensor even = indices.size(0) % 2 == 0 ? indices : at::constant_pad_nd(indices, {0, 1}, 7);
  const at::Tensor pairs = even.view({-1, 2});
  return pairs.select(1, 0) * 16 + pairs.select(1, 1);
}

}  // namespace

Nf4Tables make_nf4_tables(at::Device device) {
  const at::Tensor values = nf4_codebook();
  const at::Tensor of_bytes = at::stack({values.repeat_interleave(16), values.repeat({16})}, 1);
  return {of_two_bytes(of_bytes).view(at::kComplexDouble).to(device),
          of_two_bytes(dynamic_codebook().unsqueeze(1)).view(at::kLong).to(device)};
}

std::vector<std::shared_ptr<Nf4Weight>> make_nf4_weights(const std::vector<int64_t>& out_features, int64_t in_features,
                                                         const at::TensorOptions& options, const Nf4Tables& tables) {
  const size_t count = out_features.size();
  std::vector<int64_t> super_blocks, bytes;
  for (const int64_t out : out_features) super_blocks.push_back(divided_up(out * in_features, kSuperBlock));
  for (const int64_t own : super_blocks) bytes.push_back(own * kNestedBlock);
  for (const int64_t own : super_blocks) bytes.push_back(own * kSuperBlock / 2);
  const auto held = end_to_end(bytes, {}, options.dtype(at::kByte));
  const auto nested_absmax = end_to_end(super_blocks, {}, options.dtype(at::kFloat));
  const auto nested_offset = end_to_end(std::vector<int64_t>(count, 1), {}, options.dtype(at::kFloat));
  std::vector<std::shared_ptr<Nf4Weight>> made;
  for (size_t i = 0; i < count; ++i) {
    made.push_back(
        std::make_shared<Nf4Weight>(at::IntArrayRef{out_features[i], in_features}, options.dtype().toScalarType(),
                                    Nf4Tensors{held[i], held[count + i], nested_absmax[i], nested_offset[i]}, tables));
  }
  return made;
}

Nf4Weight::Nf4Weight(at::IntArrayRef sizes, at::ScalarType dtype, Nf4Tensors held, Nf4Tables tables)
    : QuantizedWeight(sizes), dtype_(dtype), held_(std::move(held)), tables_(std::move(tables)) {}

void Nf4Weight::quantize(const at::Tensor& weight) {
  const at::NoGradGuard no_gradients;
  const at::Tensor values = weight.detach().to(at::kCPU).contiguous().view(-1);
  const at::Tensor codebook = nf4_codebook();
  std::vector<at::Tensor> absmax;
  for (int64_t first = 0; first < elements(); first += kPiece) {
    const int64_t count = std::min(kPiece, elements() - first);
    const auto piece = quantize_blocks(values.narrow(0, first, count).to(at::kFloat), kBlock, codebook);
    held_.packed.narrow(0, first / 2, divided_up(count, 2)).copy_(packed_pairs(piece.indices));
    absmax.push_back(piece.absmax);
  }
  const at::Tensor all = at::cat(absmax);
  const at::Tensor offset = all.mean();
  const auto nested = quantize_blocks(all - offset, kNestedBlock, dynamic_codebook());
  held_.absmax.narrow(0, 0, divided_up(elements(), kBlock)).copy_(nested.indices);
  held_.nested_absmax.copy_(nested.absmax);
  held_.nested_offset.fill_(offset.item<float>());
}

/// Weights that lie end to end, as one.
class Nf4Weight::Together {
 public:
  explicit Together(const std::vector<const Nf4Weight*>& weights) : weights_(weights) {
    std::vector<at::Tensor> absmax, packed, nested_absmax, nested_offset;
    for (const Nf4Weight* weight : weights) {
      absmax.push_back(weight->held_.absmax);
      packed.push_back(weight->held_.packed);
      nested_absmax.push_back(weight->held_.nested_absmax);
      nested_offset.push_back(weight->held_.nested_offset);
    }
    absmax_ = stacked(absmax);
    packed_ = stacked(packed);
    nested_absmax_ = stacked(nested_absmax);
    nested_offset_ = stacked(nested_offset);
  }

  /// False where they lie apart.
  bool lie_end_to_end() const {
    return absmax_.defined() && packed_.defined() && nested_absmax_.defined() && nested_offset_.defined();
  }

  /// Of each its values, views of one tensor.
  std::vector<at::Tensor> values() const {
    const bool is_own = kernels::has(kernels::Kernel::kNf4, packed_) && weights_.front()->dtype_ != at::kDouble &&
                        std::ssize(weights_) <= kernels::kMostNf4Weights;
    const at::Tensor all = is_own ? in_one_pass() : values_of_all_blocks();
    std::vector<at::Tensor> result;
    int64_t first = 0;
    for (const Nf4Weight* weight : weights_) {
      result.push_back(all.narrow(0, first, weight->elements()).view(weight->sizes()));
      first += weight->super_blocks() * kSuperBlock;
    }
    return result;
  }

 private:
  at::Tensor in_one_pass() const {
    static const at::Tensor values = nf4_codebook();
    kernels::Nf4Blocks blocks{.packed = packed_,
                              .absmax = absmax_,
                              .nested_absmax = nested_absmax_,
                              .nested_offset = nested_offset_,
                              .absmax_codes = codes_of_low_bytes(weights_.front()->tables_.absmax),
                              .values = values,
                              .first_super_blocks = {}};
    int64_t super_blocks = 0;
    for (const Nf4Weight* weight : weights_) {
      blocks.first_super_blocks.push_back(super_blocks);
      super_blocks += weight->super_blocks();
    }
    at::Tensor result = at::empty({super_blocks * kSuperBlock}, packed_.options().dtype(weights_.front()->dtype_));
    kernels::nf4_dequantize(result, blocks);
    return result;
  }

  /// In pieces of about the same size.
  at::Tensor values_of_all_blocks() const {
    const at::Tensor& table = weights_.front()->tables_.values;
    const int64_t super_blocks = nested_absmax_.numel();
    at::Tensor result = at::empty({super_blocks * kSuperBlock}, packed_.options().dtype(weights_.front()->dtype_));
    const int64_t pieces = divided_up(super_blocks, kMostSuperBlocks);
    const int64_t piece_blocks = divided_up(super_blocks, pieces) * kNestedBlock;
    const int64_t all_blocks = super_blocks * kNestedBlock;
    // A whole group's absmax lie before what it has packed, and are made indices of together with the first piece.
    const at::Tensor bytes = stacked({absmax_, packed_});
    at::Tensor absmax;
    if (!bytes.defined()) absmax = absmax_of(pairs_of(absmax_));
    for (int64_t first = 0; first < all_blocks; first += piece_blocks) {
      const int64_t blocks = std::min(piece_blocks, all_blocks - first);
      const int64_t packed_bytes = blocks * kBlock / 2;
      at::Tensor pairs;
      if (absmax.defined()) {
        pairs = pairs_of(packed_.narrow(0, first * kBlock / 2, packed_bytes));
      } else {
        const at::Tensor both = pairs_of(bytes.narrow(0, 0, all_blocks + packed_bytes));
        absmax = absmax_of(both.narrow(0, 0, all_blocks / 2));
        pairs = both.narrow(0, all_blocks / 2, packed_bytes / 2);
      }
      at::Tensor values = result.narrow(0, first * kBlock, blocks * kBlock).view({-1, kBlock});
      at::mul_out(values, looked_up(table, pairs).view({-1, kBlock}), absmax.narrow(0, first, blocks));
    }
    return result;
  }

  /// fp32 [blocks, 1] of these pairs of quantised absmax, which are those of all blocks. Weights of one size that
  /// follow each other have their offsets added at once.
  at::Tensor absmax_of(const at::Tensor& pairs) const {
    const at::Tensor relative = looked_up(weights_.front()->tables_.absmax, pairs).view({-1, kNestedBlock});
    const at::Tensor absmax = relative.mul_(nested_absmax_.unsqueeze(1));
    int64_t first = 0, first_weight = 0;
    while (first < absmax.size(0)) {
      const int64_t size = weights_[first_weight]->super_blocks();
      int64_t count = 1;
      while (first_weight + count < std::ssize(weights_) && weights_[first_weight + count]->super_blocks() == size)
        ++count;
      absmax.narrow(0, first, count * size)
          .view({count, size * kNestedBlock})
          .add_(nested_offset_.narrow(0, first_weight, count).unsqueeze(1));
      first += count * size;
      first_weight += count;
    }
    return absmax.view({-1, 1});
  }

  const std::vector<const Nf4Weight*>& weights_;
  at::Tensor absmax_;  // quantised
  at::Tensor packed_;
  at::Tensor nested_absmax_;  // [superblocks]
  at::Tensor nested_offset_;  // [weights]
};

at::Tensor Nf4Weight::dequantize() const {
  const at::NoGradGuard no_gradients;
  const std::vector<const Nf4Weight*> itself{this};
  const Together one(itself);
  VLMTRAIN_CHECK(one.lie_end_to_end(), "an NF4 weight that lies in pieces");
  return one.values().front();
}

std::vector<at::Tensor> Nf4Weight::dequantize_together(const std::vector<const Nf4Weight*>& weights) {
  const at::NoGradGuard no_gradients;
  const Together together(weights);
  return together.lie_end_to_end() ? together.values() : std::vector<at::Tensor>();
}

std::vector<std::pair<std::string, at::Tensor>> Nf4Weight::state() const {
  return {{"weight", held_.packed.narrow(0, 0, divided_up(elements(), 2)).unsqueeze(1)},
          {"absmax", held_.absmax.narrow(0, 0, divided_up(elements(), kBlock))},
          {"nested_absmax", held_.nested_absmax},
          {"nested_offset", held_.nested_offset}};
}

std::vector<at::Tensor> Nf4Weight::tensors() const {
  return {held_.absmax, held_.packed, held_.nested_absmax, held_.nested_offset};
}

}  // namespace vlmtrain::nn
