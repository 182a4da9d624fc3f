#include "nn/weights/nf4.h"

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

#include "nn/adjacent_tensors.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/dequantize.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/nn/weights/quantized_weight.h"

namespace vlmtrain::nn {

namespace {

constexpr int64_t kBlockSize = 64;         // values per absmax, as in bitsandbytes
constexpr int64_t kNestedBlockSize = 256;  // absmax per nested absmax, as in bitsandbytes
constexpr int64_t kSuperBlockSize = kBlockSize * kNestedBlockSize;
/// Values quantized per chunk: 8.4 million, 34 MB in fp32. Quantization runs on the CPU while
/// weights are loaded; the chunk size hardly matters for speed there.
constexpr int64_t kMaxNf4ChunkElements = 512 * kSuperBlockSize;
/// Maximum number of superblocks dequantized per chunk: 26.2 million values, with 131 MB of fp32
/// values and indices. This is a little more than half of an MLP weight of a 7B model, or its q, k
/// and v together. Smaller chunks need more launches, larger ones more memory.
constexpr int64_t kMaxChunkSuperBlocks = 1600;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Returns pairs of neighboring bytes as int32 indices, [n] → [n / 2]; ATen has no smaller indices.
at::Tensor to_byte_pair_indices(const at::Tensor& bytes) {
  return bytes.view(at::kUInt16).to(at::kInt);
}

/// Returns the fp32 values of the entries `pairs` of a table of Nf4Tables, [n] → [n · values per
/// entry].
at::Tensor look_up_pairs(const at::Tensor& table, const at::Tensor& pairs) {
  return at::gather(table, 0, pairs).view(at::kFloat);
}

/// Returns the fp32 values of single bytes, [256], from a table of byte pairs.
at::Tensor extract_single_byte_table(const at::Tensor& pair_table) {
  return pair_table.view(at::kFloat).view({-1, 2}).select(1, 0).narrow(0, 0, 256);
}

/// Expands a table of single bytes [256, n] to one of byte pairs [65536, 2 n].
at::Tensor expand_to_byte_pair_table(const at::Tensor& byte_table) {
  const int64_t bytes = byte_table.size(0);
  return at::cat({byte_table.repeat({bytes, 1}), byte_table.repeat_interleave(bytes, 0)}, 1).view(-1);
}

/// Packs two 4-bit indices per byte, the first in the high bits. Pads an odd number of indices with
/// 7, the index of the value 0.
at::Tensor pack_4bit_indices(const at::Tensor& indices) {
  const at::Tensor padded = indices.size(0) % 2 == 0 ? indices : at::constant_pad_nd(indices, {0, 1}, 7);
  const at::Tensor pairs = padded.view({-1, 2});
  return pairs.select(1, 0) * 16 + pairs.select(1, 1);
}

}  // namespace

Nf4Tables make_nf4_tables(at::Device device) {
  const at::Tensor values = make_nf4_codebook();
  const at::Tensor byte_value_table = at::stack({values.repeat_interleave(16), values.repeat({16})}, 1);
  return {expand_to_byte_pair_table(byte_value_table).view(at::kComplexDouble).to(device),
          expand_to_byte_pair_table(make_dynamic_codebook().unsqueeze(1)).view(at::kLong).to(device)};
}

std::vector<std::shared_ptr<Nf4Weight>> make_nf4_weights(const std::vector<int64_t>& out_features, int64_t in_features,
                                                         const at::TensorOptions& options, const Nf4Tables& tables) {
  const size_t count = out_features.size();
  std::vector<int64_t> super_block_counts, bytes;
  for (const int64_t out : out_features) super_block_counts.push_back(ceil_div(out * in_features, kSuperBlockSize));
  for (const int64_t num_blocks : super_block_counts) bytes.push_back(num_blocks * kNestedBlockSize);
  for (const int64_t num_blocks : super_block_counts) bytes.push_back(num_blocks * kSuperBlockSize / 2);
  const auto storage = allocate_adjacent_tensors(bytes, {}, options.dtype(at::kByte));
  const auto nested_absmax = allocate_adjacent_tensors(super_block_counts, {}, options.dtype(at::kFloat));
  const auto nested_offset = allocate_adjacent_tensors(std::vector<int64_t>(count, 1), {}, options.dtype(at::kFloat));
  std::vector<std::shared_ptr<Nf4Weight>> weights;
  for (size_t i = 0; i < count; ++i) {
    weights.push_back(std::make_shared<Nf4Weight>(
        at::IntArrayRef{out_features[i], in_features}, options.dtype().toScalarType(),
        Nf4Tensors{storage[i], storage[count + i], nested_absmax[i], nested_offset[i]}, tables));
  }
  return weights;
}

Nf4Weight::Nf4Weight(at::IntArrayRef sizes, at::ScalarType dtype, Nf4Tensors tensors, Nf4Tables tables)
    : QuantizedWeight(sizes), dtype_(dtype), tensors_(std::move(tensors)), tables_(std::move(tables)) {}

void Nf4Weight::quantize(const at::Tensor& weight) {
  const at::NoGradGuard no_gradients;
  const at::Tensor values = weight.detach().to(at::kCPU).contiguous().view(-1);
  const at::Tensor codebook = make_nf4_codebook();
  std::vector<at::Tensor> absmax;
  for (int64_t first = 0; first < elements(); first += kMaxNf4ChunkElements) {
    const int64_t count = std::min(kMaxNf4ChunkElements, elements() - first);
    const auto quantized_blocks = quantize_blocks(values.narrow(0, first, count).to(at::kFloat), kBlockSize, codebook);
    tensors_.packed.narrow(0, first / 2, ceil_div(count, 2)).copy_(pack_4bit_indices(quantized_blocks.indices));
    absmax.push_back(quantized_blocks.absmax);
  }
  const at::Tensor all_absmax = at::cat(absmax);
  const at::Tensor offset = all_absmax.mean();
  const auto nested_blocks = quantize_blocks(all_absmax - offset, kNestedBlockSize, make_dynamic_codebook());
  tensors_.absmax.narrow(0, 0, ceil_div(elements(), kBlockSize)).copy_(nested_blocks.indices);
  tensors_.nested_absmax.copy_(nested_blocks.absmax);
  tensors_.nested_offset.fill_(offset.item<float>());
}

/// Weights that are dequantized as one if they are adjacent in memory. The weights must outlive the
/// object.
class Nf4Weight::AdjacentWeights {
 public:
  explicit AdjacentWeights(const std::vector<const Nf4Weight*>& weights) : weights_(weights) {
    std::vector<at::Tensor> absmax, packed, nested_absmax, nested_offset;
    for (const Nf4Weight* weight : weights) {
      absmax.push_back(weight->tensors_.absmax);
      packed.push_back(weight->tensors_.packed);
      nested_absmax.push_back(weight->tensors_.nested_absmax);
      nested_offset.push_back(weight->tensors_.nested_offset);
    }
    absmax_ = view_adjacent_tensors(absmax);
    packed_ = view_adjacent_tensors(packed);
    nested_absmax_ = view_adjacent_tensors(nested_absmax);
    nested_offset_ = view_adjacent_tensors(nested_offset);
  }

  /// Returns whether the weights are adjacent in memory.
  bool are_adjacent() const {
    return absmax_.defined() && packed_.defined() && nested_absmax_.defined() && nested_offset_.defined();
  }

  /// Returns whether write_values() may be called.
  bool has_kernel() const {
    return weights_.front()->has_dequantize_kernel() && std::ssize(weights_) <= kernels::kMaxNf4WeightsPerLaunch;
  }

  /// Writes the values of weight i to results[i], rows of one matrix in ascending order, with the
  /// custom kernel. REQUIRES: are_adjacent(), has_kernel().
  void write_values(const std::vector<at::Tensor>& results) const {
    static const at::Tensor values = make_nf4_codebook();
    kernels::Nf4Weights blocks{.packed_indices = packed_,
                               .absmax = absmax_,
                               .nested_absmax = nested_absmax_,
                               .nested_offset = nested_offset_,
                               .absmax_codebook = extract_single_byte_table(weights_.front()->tables_.absmax),
                               .values = values,
                               .columns = weights_.front()->sizes()[1],
                               .weights = {}};
    const at::Tensor& first = results.front();
    int64_t num_super_blocks = 0, end_row = 0;
    for (size_t i = 0; i < weights_.size(); ++i) {
      const int64_t first_row = (results[i].storage_offset() - first.storage_offset()) / first.stride(0);
      end_row = first_row + results[i].size(0);
      blocks.weights.push_back(
          {.first_super_block = num_super_blocks, .first_row = first_row, .rows = results[i].size(0)});
      num_super_blocks += weights_[i]->num_super_blocks();
    }
    kernels::nf4_dequantize(first.as_strided({end_row, first.size(1)}, first.strides()), blocks);
  }

  /// Returns the dequantized values of each weight as views of one tensor. REQUIRES:
  /// are_adjacent().
  std::vector<at::Tensor> values() const {
    const at::Tensor all = dequantize_chunked();
    std::vector<at::Tensor> result;
    int64_t first = 0;
    for (const Nf4Weight* weight : weights_) {
      result.push_back(all.narrow(0, first, weight->elements()).view(weight->sizes()));
      first += weight->num_super_blocks() * kSuperBlockSize;
    }
    return result;
  }

 private:
  /// Dequantizes with ATen in chunks of about equal size.
  at::Tensor dequantize_chunked() const {
    const at::Tensor& table = weights_.front()->tables_.values;
    const int64_t num_super_blocks = nested_absmax_.numel();
    at::Tensor result =
        at::empty({num_super_blocks * kSuperBlockSize}, packed_.options().dtype(weights_.front()->dtype_));
    const int64_t num_chunks = ceil_div(num_super_blocks, kMaxChunkSuperBlocks);
    const int64_t max_chunk_blocks = ceil_div(num_super_blocks, num_chunks) * kNestedBlockSize;
    const int64_t num_blocks = num_super_blocks * kNestedBlockSize;
    // If the absmax of the whole group directly precede its packed values (make_nf4_weights()), the
    // first chunk converts both to indices at once, which saves launches.
    const at::Tensor bytes = view_adjacent_tensors({absmax_, packed_});
    at::Tensor absmax;
    if (!bytes.defined()) absmax = decode_absmax(to_byte_pair_indices(absmax_));
    for (int64_t first = 0; first < num_blocks; first += max_chunk_blocks) {
      const int64_t num_chunk_blocks = std::min(max_chunk_blocks, num_blocks - first);
      const int64_t packed_bytes = num_chunk_blocks * kBlockSize / 2;
      at::Tensor pairs;
      if (absmax.defined()) {
        pairs = to_byte_pair_indices(packed_.narrow(0, first * kBlockSize / 2, packed_bytes));
      } else {
        const at::Tensor byte_pairs = to_byte_pair_indices(bytes.narrow(0, 0, num_blocks + packed_bytes));
        absmax = decode_absmax(byte_pairs.narrow(0, 0, num_blocks / 2));
        pairs = byte_pairs.narrow(0, num_blocks / 2, packed_bytes / 2);
      }
      at::Tensor values = result.narrow(0, first * kBlockSize, num_chunk_blocks * kBlockSize).view({-1, kBlockSize});
      at::mul_out(values, look_up_pairs(table, pairs).view({-1, kBlockSize}),
                  absmax.narrow(0, first, num_chunk_blocks));
    }
    return result;
  }

  /// Returns the absmax of all blocks, fp32 [blocks, 1], given their codes as byte pairs.
  /// Consecutive weights of equal size share one addition of their offsets.
  at::Tensor decode_absmax(const at::Tensor& pairs) const {
    const at::Tensor relative_absmax =
        look_up_pairs(weights_.front()->tables_.absmax, pairs).view({-1, kNestedBlockSize});
    const at::Tensor absmax = relative_absmax.mul_(nested_absmax_.unsqueeze(1));
    int64_t first = 0, first_weight = 0;
    while (first < absmax.size(0)) {
      const int64_t size = weights_[first_weight]->num_super_blocks();
      int64_t count = 1;
      while (first_weight + count < std::ssize(weights_) && weights_[first_weight + count]->num_super_blocks() == size)
        ++count;
      absmax.narrow(0, first, count * size)
          .view({count, size * kNestedBlockSize})
          .add_(nested_offset_.narrow(0, first_weight, count).unsqueeze(1));
      first += count * size;
      first_weight += count;
    }
    return absmax.view({-1, 1});
  }

  const std::vector<const Nf4Weight*>& weights_;
  at::Tensor absmax_;  // uint8
  at::Tensor packed_;
  at::Tensor nested_absmax_;  // [superblocks]
  at::Tensor nested_offset_;  // [weights]
};

at::Tensor Nf4Weight::dequantize() const {
  return dequantize_group({this}).front();
}

bool Nf4Weight::has_dequantize_kernel() const {
  return kernels::is_available(kernels::Kernel::kNf4, tensors_.packed) && dtype_ != at::kDouble;
}

void Nf4Weight::write_dequantized(const at::Tensor& result) const {
  if (write_dequantized_group({this}, {result})) return;
  const at::NoGradGuard no_gradients;
  const int64_t columns = sizes()[1];
  result.narrow(1, 0, columns).copy_(dequantize());
  result.narrow(1, columns, result.size(1) - columns).zero_();
}

std::vector<at::Tensor> Nf4Weight::dequantize_group(const std::vector<const Nf4Weight*>& weights) {
  const at::NoGradGuard no_gradients;
  const AdjacentWeights group(weights);
  if (!group.are_adjacent()) return {};
  if (!group.has_kernel()) return group.values();
  const Nf4Weight& first = *weights.front();
  std::vector<int64_t> rows(weights.size());
  std::ranges::transform(weights, rows.begin(), [](const Nf4Weight* weight) { return weight->sizes()[0]; });
  auto results =
      allocate_adjacent_tensors(rows, {first.sizes()[1]}, first.tensors_.packed.options().dtype(first.dtype_));
  group.write_values(results);
  return results;
}

bool Nf4Weight::write_dequantized_group(const std::vector<const Nf4Weight*>& weights,
                                        const std::vector<at::Tensor>& results) {
  const at::NoGradGuard no_gradients;
  const AdjacentWeights group(weights);
  if (!group.are_adjacent() || !group.has_kernel()) return false;
  group.write_values(results);
  return true;
}

std::vector<std::pair<std::string, at::Tensor>> Nf4Weight::state() const {
  return {{"weight", tensors_.packed.narrow(0, 0, ceil_div(elements(), 2)).unsqueeze(1)},
          {"absmax", tensors_.absmax.narrow(0, 0, ceil_div(elements(), kBlockSize))},
          {"nested_absmax", tensors_.nested_absmax},
          {"nested_offset", tensors_.nested_offset}};
}

std::vector<at::Tensor> Nf4Weight::tensors() const {
  return {tensors_.absmax, tensors_.packed, tensors_.nested_absmax, tensors_.nested_offset};
}

}  // namespace vlmtrain::nn
