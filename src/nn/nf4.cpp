#include "nn/nf4.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "vlmtrain/nn/codebook.h"

namespace vlmtrain::nn {

namespace {

constexpr int64_t kBlock = 64;         // values that share an absmax
constexpr int64_t kNestedBlock = 256;  // absmax that share a nested one
constexpr int64_t kSuperBlock = kBlock * kNestedBlock;
/// Values that are quantised at a time.
constexpr int64_t kPiece = 512 * kSuperBlock;
/// Blocks of blocks that are dequantised at a time, 21 million values, which take 5 bytes each on the way.
constexpr int64_t kMostSuperBlocks = 1280;

int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// The entries of a table [n] at indices of 8 or 16 bits; ATen's have at least 32.
at::Tensor looked_up(const at::Tensor& table, const at::Tensor& indices) {
  return at::index_select(table, 0, indices.to(at::kInt));
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
  constexpr int64_t kBytes = 256;
  const at::Tensor of_pairs = at::cat({of_bytes.repeat({kBytes, 1}), of_bytes.repeat_interleave(kBytes, 0)}, 1);
  return {of_pairs.view(-1).view(at::kComplexDouble).to(device), dynamic_codebook().to(device)};
}

Nf4Weight::Nf4Weight(at::IntArrayRef sizes, const at::TensorOptions& options, Nf4Tables tables)
    : QuantizedWeight(sizes),
      dtype_(options.dtype().toScalarType()),
      tables_(std::move(tables)),
      elements_(c10::multiply_integers(sizes)),
      blocks_(divided_up(elements_, kBlock)) {
  const int64_t super_blocks = divided_up(elements_, kSuperBlock);
  packed_ = at::empty({super_blocks * kSuperBlock / 2}, options.dtype(at::kByte));
  absmax_ = at::empty({super_blocks * kNestedBlock}, options.dtype(at::kByte));
  nested_absmax_ = at::empty({super_blocks}, options.dtype(at::kFloat));
  nested_offset_ = at::empty({1}, options.dtype(at::kFloat));
}

void Nf4Weight::quantize(const at::Tensor& weight) {
  const at::NoGradGuard no_gradients;
  const at::Tensor values = weight.detach().to(at::kCPU).contiguous().view(-1);
  const at::Tensor codebook = nf4_codebook();
  std::vector<at::Tensor> absmax;
  for (int64_t first = 0; first < elements_; first += kPiece) {
    const int64_t count = std::min(kPiece, elements_ - first);
    const auto piece = quantize_blocks(values.narrow(0, first, count).to(at::kFloat), kBlock, codebook);
    packed_.narrow(0, first / 2, divided_up(count, 2)).copy_(packed_pairs(piece.indices));
    absmax.push_back(piece.absmax);
  }
  const at::Tensor all = at::cat(absmax);
  const at::Tensor offset = all.mean();
  const auto nested = quantize_blocks(all - offset, kNestedBlock, dynamic_codebook());
  absmax_.narrow(0, 0, blocks_).copy_(nested.indices);
  nested_absmax_.copy_(nested.absmax);
  nested_offset_.fill_(offset.item<float>());
}

at::Tensor Nf4Weight::dequantized_absmax() const {
  const at::Tensor scaled = looked_up(tables_.dynamic_map, absmax_).view({-1, kNestedBlock});
  return scaled.mul_(nested_absmax_.unsqueeze(1)).add_(nested_offset_).view({-1, 1});
}

at::Tensor Nf4Weight::dequantize() const {
  const at::NoGradGuard no_gradients;
  const at::Tensor absmax = dequantized_absmax();
  const int64_t all = 2 * packed_.size(0);
  const at::Tensor result = at::empty({all}, packed_.options().dtype(dtype_));
  const int64_t super_blocks = all / kSuperBlock;
  const int64_t pieces = divided_up(super_blocks, kMostSuperBlocks);
  const int64_t most = divided_up(super_blocks, pieces) * kSuperBlock;
  for (int64_t first = 0; first < all; first += most) {
    const int64_t count = std::min(most, all - first);
    const at::Tensor pairs = packed_.narrow(0, first / 2, count / 2).view(at::kUInt16);
    const at::Tensor values = looked_up(tables_.pairs, pairs).view(at::kFloat).view({-1, kBlock});
    at::Tensor piece = result.narrow(0, first, count).view({-1, kBlock});
    at::mul_out(piece, values, absmax.narrow(0, first / kBlock, count / kBlock));
  }
  return result.narrow(0, 0, elements_).view(sizes());
}

std::vector<std::pair<std::string, at::Tensor>> Nf4Weight::state() const {
  return {{"weight", packed_.narrow(0, 0, divided_up(elements_, 2)).unsqueeze(1)},
          {"absmax", absmax_.narrow(0, 0, blocks_)},
          {"nested_absmax", nested_absmax_},
          {"nested_offset", nested_offset_}};
}

std::vector<at::Tensor> Nf4Weight::tensors() const {
  return {packed_, absmax_, nested_absmax_, nested_offset_};
}

}  // namespace vlmtrain::nn
