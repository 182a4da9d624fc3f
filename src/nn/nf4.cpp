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

#include "vlmtrain/nn/codebook.h"

namespace vlmtrain::nn {

namespace {

constexpr int64_t kBlock = 64;         // values that share an absmax
constexpr int64_t kNestedBlock = 256;  // absmax that share a nested one
constexpr int64_t kSuperBlock = kBlock * kNestedBlock;
/// Values that are quantised at a time.
constexpr int64_t kPiece = 512 * kSuperBlock;
/// Superblocks that are dequantised at a time: half of a weight of a 7B model's MLP, 22.5 million values.
constexpr int64_t kMostSuperBlocks = 1376;

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

Nf4Weight::Nf4Weight(at::IntArrayRef sizes, const at::TensorOptions& options, Nf4Tables tables)
    : QuantizedWeight(sizes),
      dtype_(options.dtype().toScalarType()),
      tables_(std::move(tables)),
      elements_(c10::multiply_integers(sizes)),
      blocks_(divided_up(elements_, kBlock)),
      super_blocks_(divided_up(elements_, kSuperBlock)) {
  bytes_ = at::empty({super_blocks_ * (kNestedBlock + kSuperBlock / 2)}, options.dtype(at::kByte));
  nested_absmax_ = at::empty({super_blocks_}, options.dtype(at::kFloat));
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
    packed().narrow(0, first / 2, divided_up(count, 2)).copy_(packed_pairs(piece.indices));
    absmax.push_back(piece.absmax);
  }
  const at::Tensor all = at::cat(absmax);
  const at::Tensor offset = all.mean();
  const auto nested = quantize_blocks(all - offset, kNestedBlock, dynamic_codebook());
  quantized_absmax().narrow(0, 0, blocks_).copy_(nested.indices);
  nested_absmax_.copy_(nested.absmax);
  nested_offset_.fill_(offset.item<float>());
}

at::Tensor Nf4Weight::quantized_absmax() const {
  return bytes_.narrow(0, 0, super_blocks_ * kNestedBlock);
}

at::Tensor Nf4Weight::packed() const {
  return bytes_.narrow(0, super_blocks_ * kNestedBlock, super_blocks_ * kSuperBlock / 2);
}

at::Tensor Nf4Weight::absmax_of(const at::Tensor& pairs) const {
  const at::Tensor scaled = looked_up(tables_.absmax, pairs).view({-1, kNestedBlock});
  return scaled.mul_(nested_absmax_.unsqueeze(1)).add_(nested_offset_).view({-1, 1});
}

/// In pieces of about the same size. The absmax are made indices of together with the first.
at::Tensor Nf4Weight::dequantize() const {
  const at::NoGradGuard no_gradients;
  const at::Tensor result = at::empty({super_blocks_ * kSuperBlock}, bytes_.options().dtype(dtype_));
  const int64_t pieces = divided_up(super_blocks_, kMostSuperBlocks);
  const int64_t piece_blocks = divided_up(super_blocks_, pieces) * kNestedBlock;
  const int64_t all_blocks = super_blocks_ * kNestedBlock;
  at::Tensor absmax;
  for (int64_t first = 0; first < all_blocks; first += piece_blocks) {
    const int64_t blocks = std::min(piece_blocks, all_blocks - first);
    const int64_t first_byte = first == 0 ? 0 : all_blocks + first * kBlock / 2;
    const int64_t end_byte = all_blocks + (first + blocks) * kBlock / 2;
    at::Tensor pairs = pairs_of(bytes_.narrow(0, first_byte, end_byte - first_byte));
    if (first == 0) {
      absmax = absmax_of(pairs.narrow(0, 0, all_blocks / 2));
      pairs = pairs.narrow(0, all_blocks / 2, blocks * kBlock / 4);
    }
    at::Tensor values = result.narrow(0, first * kBlock, blocks * kBlock).view({-1, kBlock});
    at::mul_out(values, looked_up(tables_.values, pairs).view({-1, kBlock}), absmax.narrow(0, first, blocks));
  }
  return result.narrow(0, 0, elements_).view(sizes());
}

std::vector<std::pair<std::string, at::Tensor>> Nf4Weight::state() const {
  return {{"weight", packed().narrow(0, 0, divided_up(elements_, 2)).unsqueeze(1)},
          {"absmax", quantized_absmax().narrow(0, 0, blocks_)},
          {"nested_absmax", nested_absmax_},
          {"nested_offset", nested_offset_}};
}

std::vector<at::Tensor> Nf4Weight::tensors() const {
  return {bytes_, nested_absmax_, nested_offset_};
}

}  // namespace vlmtrain::nn
